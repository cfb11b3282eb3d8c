"""Winner determination: who wins which row, with everyone and without each winner (Themis pseudocode 1, lines 6-7).

1. Tables over the GPUs in sum give an upper bound and a choice. A choice that can be packed is optimal.
2. A choice that breaks a capacity makes that capacity part of the tables (a cut), and the tables are built again.
3. Capacities too many for tables are priced instead, which keeps the bound; huge auctions repair the choice and stop
   within their gap.
4. What is still open goes to a search over rows that is bounded by the tables, then to an integer program; the
   problems without a winner first to what is known without others that have equal requests.

Leaves out auctions in which everyone can have its best row: see ``themis.policies.auction.uncontested``.
"""

from __future__ import annotations

import math
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from themis.errors import NotSolved
from themis.optimize.programs import Bools, Ints
from themis.optimize.winners import bid_tables, patterns, search
from themis.optimize.winners.auction_problem import WIDE, WinnerProblem, asks
from themis.optimize.winners.bid_tables import Choices, Tables
from themis.optimize.winners.capacities import Capacity, broken, needs, totals
from themis.optimize.winners.gang_packing import Packer
from themis.optimize.winners.payment_bounds import PaymentBounds
from themis.optimize.winners.prices import PricedRows, price, repair, unpriced
from themis.optimize.winners.work_limits import Limits


@dataclass(frozen=True, slots=True, kw_only=True)
class Found:
    """A packable choice of problem rows, with its integer worth and a proven upper bound of any choice's worth."""

    rows: list[int]
    low: int
    high: int
    method: str
    places: list[int] | None = None


@dataclass(slots=True)
class Solver:
    """One auction being settled; the tables and the capacities in them are shared by all its problems."""

    problem: WinnerProblem
    packer: Packer
    limits: Limits
    gap: float
    huge: bool
    nodes: int = 0
    programs: int = 0
    searching: bool = True
    """False once a search ran out of nodes: the auction's other problems are as hard, so the program takes them."""
    cuts: list[Capacity] = field(default_factory=list)
    table: Tables | None = None
    priced: PricedRows | None = None
    began: float = field(default_factory=time.monotonic)

    @property
    def seconds_left(self) -> float:
        """Seconds left of the auction's wall time, for all its problems together; infinite without such a limit."""
        if math.isinf(self.limits.seconds):
            return math.inf
        return max(self.limits.seconds - (time.monotonic() - self.began), 0.0)

    def best(self) -> Found:
        """Best choice among all bidders."""
        self.cuts = totals(self.problem)
        known: list[int] = []
        while self._tabulate():
            assert self.table is not None
            pick = self.table.trace()
            rows = pick[pick >= 0]
            cuts = broken(self.problem, rows)
            if not cuts and self.packer.packs(rows.tolist()):
                found: Found | None = self._found(rows.tolist(), self.table.best())
            elif self._cut(cuts):
                continue
            else:
                found = self._repaired(rows, self.table.best())
            if found is not None and self._settled(found):
                return found
            known = found.rows if found is not None else []
            if not self._price():
                break
        return self._hard(self.table, known)

    def replaced(self, main: Found) -> dict[int, int]:
        """Gain of some loser in each winner's place, in steps of the quantum; without the winner the others gain it.

        A loser who asks for the same fits there; so does one that accepts any GPUs, if these and idle ones are enough.
        """
        problem = self.problem
        won = np.array(main.rows, dtype=np.int64)
        lost = np.flatnonzero(~np.isin(problem.who, problem.who[won]))
        if not lost.size:
            return {}
        ask = asks(problem)
        types = problem.rack_room.shape[1]
        used = np.bincount(problem.type[won], problem.gpus[won], types)
        room = problem.gpus[won] + (problem.rack_room.sum(0) - used)[problem.type[won]]
        fits = (problem.kind[lost] == WIDE) & (problem.gpus[lost] <= room[:, None])
        fits = (fits & (problem.type[lost] == problem.type[won, None])) | (ask[lost] == ask[won, None])
        gain = np.where(fits, problem.score[lost] // problem.unit, 0).max(1)
        return {a: steps for a, steps in zip(problem.who[won].tolist(), gain.tolist()) if steps > 0}

    def without(self, winners: Sequence[int], main: Found) -> list[Found]:
        """Best choice without each of `winners`, in their order."""
        found: dict[int, Found] = {}
        waiting = list(winners)
        while waiting and self.table is not None:
            broke: set[Capacity] = set()
            for a, answer, cuts in self._read(waiting, main):
                found[a] = answer
                broke |= set(cuts)
            waiting = [a for a in waiting if not self._settled(found[a])]
            if not waiting or not ((self._cut(sorted(broke)) or self._price()) and self._tabulate()):
                break
        if self.huge:
            waiting = [a for a in waiting if a not in found]  # an interval is what a huge auction is asked for
        bounds = PaymentBounds(self.problem) if len(waiting) > 1 else None
        for a in bounds.order(waiting) if bounds else waiting:
            like = bounds.like(a) if bounds else None
            if like is not None:
                found[a] = self._moved(found[like[0]], like[1])
                continue
            stay = max(found.get(a, main), self._left(main, a), key=lambda f: f.low if f is not main else -1)
            known = [stay.rows, *bounds.packable_without(a)] if bounds else [stay.rows]
            found[a] = self._hard(self._table_without(a), max(known, key=self._worth), a)
            if bounds:
                bounds.learn(a, found[a].rows)
        return [found[a] for a in winners]

    def _settled(self, found: Found) -> bool:
        """Proven as closely as asked: to the last integer in ordinary auctions, so that ties count."""
        steps = found.high // self.problem.unit - found.low // self.problem.unit
        return found.high == found.low or (self.huge and steps * self.problem.quantum <= self.gap)

    def _found(self, rows: list[int], high: int) -> Found:
        low = int(self.problem.score[rows].sum())
        return Found(rows=rows, low=low, high=max(low, high), method="prices" if self.priced else "table")

    def _repaired(self, pick: Ints, high: int, banned: int = -1) -> Found | None:
        """A packable choice near `pick`, where the tables are too coarse to do better."""
        if not self.priced:
            return None
        builder = repair(self.problem, self.priced, pick, banned)
        rows = builder.rows()
        low = int(self.problem.score[rows].sum())
        places = builder.places(self.packer.gangs(rows))
        return Found(rows=rows, low=low, high=max(low, high), method="prices", places=places)

    def _left(self, main: Found, a: int) -> Found:
        """Rest of `main` when bidder a leaves: optimal when nothing beats it."""
        rows = [r for r in main.rows if self.problem.who[r] != a]
        worth = int(self.problem.score[rows].sum())
        return Found(rows=rows, low=worth, high=worth, method=main.method)

    def _worth(self, rows: list[int]) -> int:
        return int(self.problem.score[rows].sum())

    def _moved(self, other: Found, steps: int) -> Found:
        """The answer that gains this many steps more than `other`; its rows are not needed."""
        unit = self.problem.unit
        return replace(other, rows=[], low=other.low + steps * unit, high=other.high + steps * unit, places=None)

    def _table_without(self, a: int) -> Tables | None:
        return self.table.leaving_out(int(np.searchsorted(self.table.who, a))) if self.table else None

    def _cut(self, cuts: Sequence[Capacity]) -> bool:
        """Add capacities to the tables, as many as the limit of states allows; False when none was added."""
        added = False
        for cut in cuts if not self.priced else ():
            if cut in self.cuts:
                continue
            need, caps = needs(self.problem, [*self.cuts, cut])
            entries = bid_tables.entries(need, caps)
            if entries <= self.limits.states and entries <= self.limits.wide * need.shape[0]:
                self.cuts = [*self.cuts, cut]
                added = True
        return added

    def _price(self) -> bool:
        """Price what the tables do not count; False when that is done already or everything is counted."""
        if self.priced or self.problem.trivial:
            return False
        self.priced = price(self.problem, self.cuts)
        return True

    def _tabulate(self) -> bool:
        need, caps = needs(self.problem, self.cuts)
        if caps.size > 1 and bid_tables.entries(need, caps) > self.limits.states:
            return False
        priced = self.priced or unpriced(self.problem)
        self.table = bid_tables.build(self.problem, need, caps, priced)
        return True

    def _read(self, winners: list[int], main: Found) -> Iterator[tuple[int, Found, list[Capacity]]]:
        """Table answers to each problem without a winner, and the capacities that their choice breaks.

        Proven answers need no rows: only their value is computed.
        """
        assert self.table is not None
        problem, table = self.problem, self.table
        spots = np.searchsorted(table.who, winners)
        sums = [table.without(i) for i in spots.tolist()]
        won = dict(zip(problem.who[main.rows].tolist(), problem.score[main.rows].tolist()))
        total = sum(won.values())
        asked = []
        for i, (a, (worth, _)) in enumerate(zip(winners, sums)):
            stay = total - won.get(a, 0)
            if problem.trivial or worth <= stay:
                best = max(stay, worth)
                yield a, Found(rows=[], low=best, high=best, method=main.method), []
            else:
                asked.append(i)
        if not asked:
            return
        choices = table.choices_without(spots[asked], np.array([sums[i][1] for i in asked]))
        found, open_ = self._counted(choices, [sums[i][0] for i in asked]), []
        for i, answer in zip(asked, found):
            if answer is not None:
                yield winners[i], answer, []
            else:
                open_.append(i)
        if not open_:
            return
        if len(open_) < len(asked):
            choices = table.choices_without(spots[open_], np.array([sums[i][1] for i in open_]))
        for i, pick in zip(open_, choices.rows()):
            a, worth, rows = winners[i], sums[i][0], pick[pick >= 0]
            cuts = broken(problem, rows)
            if not cuts and self.packer.packs(rows.tolist()):
                yield a, self._found(rows.tolist(), worth), []
            else:
                # Where repair was not good enough for everyone, what the program found for everyone is a better start.
                stay = self._left(main, a)
                start = np.array(stay.rows, np.int64) if main.method == "program" else rows
                near = self._repaired(start, worth, a)
                stay = replace(stay, high=worth)
                yield a, near if near is not None and near.low > stay.low else stay, cuts

    def _counted(self, choices: Choices, worth: list[int]) -> list[Found | None]:
        """Answers that are proven by sums over the rows of each choice; None if the rows themselves matter."""
        problem, none = self.problem, [None] * len(worth)
        if self.packer.anchored:
            return list(none)
        counts = self.packer.counts
        sums = choices.sums(np.concatenate([problem.score[:, None], problem.need, counts], axis=1))
        end = 1 + problem.need.shape[1]
        fits = np.atleast_1d((sums[:, 1:end] <= problem.have).all(axis=1))
        out: list[Found | None] = list(none)
        for i, (ok, low, gangs) in enumerate(zip(fits.tolist(), sums[:, 0].tolist(), sums[:, end:].tolist())):
            proven = ok and low >= worth[i] and self.packer.packs_counted(tuple(gangs))
            if proven:
                out[i] = Found(rows=[], low=low, high=low, method="prices" if self.priced else "table")
        return out

    def _promising(self, table: Tables | None, known: list[int], without: int) -> Ints:
        """Rows of all bidders but one that some choice as good as `known` may hold, by the tables' bound."""
        others: Bools = self.problem.who != without
        if table is not None:
            others = others & (table.forced(self.problem.who) >= int(self.problem.score[known].sum()))
        return np.flatnonzero(others)

    def _hard(self, table: Tables | None, known: list[int], without: int = -1) -> Found:
        """Search for better than the packable rows `known`, then the integer program."""
        problem = self.problem
        if not (problem.who != without).any():
            return Found(rows=[], low=0, high=0, method="search")
        if table is not None and self.searching and not self.huge:
            seen = search.search(problem, self.packer, table, leaves=self.limits.leaves, known=known)
            self.nodes += seen.nodes
            if seen.done:
                return Found(rows=seen.rows, low=seen.worth, high=seen.worth, method="search")
            self.searching = False
            known = seen.rows
        left = self.seconds_left
        if not left:
            return self._out_of_time(table, known, without)
        rows = self._promising(table, known, without)
        self.programs += 1
        accept = np.inf if self.limits.allow_gap or math.isfinite(left) else self.gap
        limits = replace(self.limits, seconds=left)
        off = patterns.HUGE if self.huge else patterns.PRICE if without >= 0 else ()
        try:
            packed = patterns.solve_rows(
                problem, self.packer, rows, gap=self.gap / 2, accept=accept, limits=limits, off=off
            )
        except NotSolved:
            if self.seconds_left:
                raise
            return self._out_of_time(table, known, without)
        self.nodes += packed.nodes
        low = int(problem.score[packed.rows].sum())
        high = max(low, int(np.ceil(packed.bound / problem.quantum)) * problem.unit + problem.unit - 1)
        if self.seconds_left or low >= sum(problem.score[known].tolist()):
            return Found(rows=packed.rows, low=low, high=high, method="program", places=packed.places)
        return replace(self._out_of_time(table, known, without), high=high)

    def _out_of_time(self, table: Tables | None, known: list[int], without: int) -> Found:
        """The best choice known, and the tables' bound: without tables, as if everyone could have its best row."""
        problem = self.problem
        low = int(problem.score[known].sum())
        best = np.zeros(problem.bidders, dtype=np.int64)
        others = problem.who != without
        np.maximum.at(best, problem.who[others], problem.score[others])
        high = min(int(best.sum()), table.best() if table is not None else int(best.sum()))
        return Found(rows=known, low=low, high=max(low, high), method="time")
