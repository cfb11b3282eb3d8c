"""Bounds of the best choice without one winner from the best choice without another: payments without a search.

Let W(a) be the most that all but a gain together, and S(a) a choice that gains it. Where a and b ask for the same, one
can take the other's place in any choice, so for d(r) = (gain of a by r) - (gain of b by r):

- W(b) >= W(a) + d(r) when b holds r in S(a), and W(b) >= W(a) when b holds nothing there;
- W(a) >= W(b) - max(0, max_r d(r)), whichever row a holds in S(b).

Where both sides meet, W(b) is W(a) and that difference exactly. Bidders with equal requests thus share one search. The
second bound takes a row of a that b does not ask for at its full gain.
"""

from __future__ import annotations

from themis.optimize.winners.auction_problem import WinnerProblem, asks


class PaymentBounds:
    """Answers known so far in one auction; gains are in steps of `WinnerProblem.quantum`."""

    def __init__(self, problem: WinnerProblem) -> None:
        self._problem = problem
        self._ask: list[int] = asks(problem).tolist()
        self._row: dict[int, dict[int, int]] = {}
        for r, (b, ask) in enumerate(zip(problem.who.tolist(), self._ask)):
            self._row.setdefault(b, {})[ask] = r
        self._gain: list[int] = (problem.score // problem.unit).tolist()
        self._known: list[tuple[int, dict[int, int]]] = []

    def order(self, bidders: list[int]) -> list[int]:
        """Bidders with the largest gain first: their answers settle more of the others."""
        return sorted(bidders, key=lambda b: -max(self._gain[r] for r in self._row[b].values()))

    def learn(self, a: int, rows: list[int]) -> None:
        """Remember a best choice without a."""
        who = self._problem.who[rows].tolist()
        self._known.append((a, dict(zip(who, rows))))

    def like(self, b: int) -> tuple[int, int] | None:
        """A bidder a with known answer without it and known W(b) - W(a), or None where the bounds do not meet."""
        for a, held in self._known:
            rows = self._row[a]
            most = max(0, *(self._more(r, b) for r in rows.values()))
            row = rows.get(self._ask[held[b]], -1) if b in held else -1
            if b in held and row < 0:
                continue
            least = self._more(row, b) if b in held else 0
            if least == most:
                return a, least
        return None

    def packable_without(self, b: int) -> list[list[int]]:
        """Packable choices without b: those known, with b's row taken by the one who was left out there."""
        found = []
        for a, held in self._known:
            rows = [r for who, r in held.items() if who != b]
            row = self._row[a].get(self._ask[held[b]], -1) if b in held else -1
            found.append([*rows, row] if row >= 0 else rows)
        return found

    def _more(self, row: int, b: int) -> int:
        """Gain of `row` minus the gain of b's own row with the same request, or minus 0 if there is none."""
        own = self._row[b].get(self._ask[row], -1)
        return self._gain[row] - (self._gain[own] if own >= 0 else 0)
