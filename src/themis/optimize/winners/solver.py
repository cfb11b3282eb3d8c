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
from themis.optimize.winners.prices import Best, Builder, PricedRows, mend, packed, price, repair, unpriced
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
    builder: Builder | None = None
    """The packing of the best choice among all, from which those without a winner are mended."""
    began: float = field(default_factory=time.monotonic)

    @property
    def seconds_left(self) -> float:
        """Seconds left of the auction's wall time, for all its problems together; infinite without such a limit."""
        if math.isinf(self.limits.seconds):
            return math.inf
        return max(self.limits.seconds - (time.monotonic() - self.began), 0.0)

    @property
    def vast(self) -> bool:
        """True if even the table of GPUs in sum is too large: then everything is priced."""
        return self.problem.row.size * int(self.problem.offer.free.sum()) > self.limits.entries

    @property
    def _exhausted(self) -> bool:
        """True if another integer program would exceed the auction's limit of work."""
        return (self.programs + 1) * self.problem.row.size**2 > self.limits.work

    def best(self) -> Found:
        """Best choice among all bidders."""
        self.cuts = totals(self.problem)
        known: list[int] = []
        if self.vast:
            return self._near_prices()
        if self.huge:
            self._price()  # tables without prices would be as large, and where slots are scarce their choice does not pack
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

    def _near_prices(self) -> Found:
        """A choice near everyone's best row at the prices of the linear relaxation, which bound any choice."""
        problem = self.problem
        self.priced = price(problem, [])
        best = Best(self.priced.net, problem.who)
        self.builder = repair(problem, self.priced, best.row[best.wins])
        rows = self.builder.rows()
        low, high = self._worth(rows), self._ceiling()
        places = self.builder.places(self.packer.gangs(rows))
        return Found(rows=rows, low=low, high=max(low, high), method="prices", places=places)

    def replaced(self, main: Found) -> dict[int, int]:
        """Gain of some loser in each winner's place, in steps of the quantum; without the winner the others gain it.

        A loser who asks for the same fits there; so does one that accepts any GPUs, if these and idle ones are enough.
        """
        problem = self.problem
        won = np.array(main.rows, dtype=np.int64)
        lost = np.flatnonzero(~np.isin(problem.who, problem.who[won]))
        if not lost.size:
            return {}
        ask, steps = asks(problem), problem.score // problem.unit
        best = np.zeros(int(ask.max()) + 1, dtype=np.int64)
        np.maximum.at(best, ask[lost], steps[lost])
        gain = best[ask[won]]
        for t in np.unique(problem.type[won]).tolist():
            mine = np.flatnonzero(problem.type[won] == t)
            room = problem.gpus[won[mine]] + int(problem.rack_room[:, t].sum()) - int(problem.gpus[won[mine]].sum())
            wide = lost[(problem.kind[lost] == WIDE) & (problem.type[lost] == t)]
            wide = wide[np.argsort(problem.gpus[wide], kind="stable")]
            upto = np.maximum.accumulate(np.append(0, steps[wide]))
            gain[mine] = np.maximum(gain[mine], upto[np.searchsorted(problem.gpus[wide], room, side="right")])
        return {a: more for a, more in zip(problem.who[won].tolist(), gain.tolist()) if more > 0}

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
        for a in waiting if self.table is None else ():
            found[a] = self._mended(a, main, self._ceiling(a))
        if self.huge or self._exhausted:
            return [found[a] for a in winners]  # an interval is what a huge auction is asked for
        bounds = PaymentBounds(self.problem) if len(waiting) > 1 else None
        for a in bounds.order(waiting) if bounds else waiting:
            like = bounds.like(a) if bounds else None
            if like is not None:
                found[a] = self._moved(found[like[0]], like[1])
                continue
            known = max([found[a].rows, *bounds.packable_without(a)] if bounds else [found[a].rows], key=self._worth)
            if self._exhausted:
                low = max(found[a].low, self._worth(known))
                found[a] = replace(found[a], rows=known, low=low, high=max(low, found[a].high))
                continue
            found[a] = self._hard(self._table_without(a), known, a)
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

    def _mended(self, a: int, main: Found, high: int, pick: Ints | None = None) -> Found:
        """`main` mended where bidder a leaves; `pick` is the tables' choice without it, which does not pack."""
        if self.builder is None:
            self.builder = packed(self.problem, np.array(main.rows)) or self._placed(main)
        # An interval is what a huge auction is asked for: its rows would be as many as winners, for each winner.
        low, rows = mend(self.builder, self.priced or unpriced(self.problem), pick, a, high, listed=not self.huge)
        return Found(rows=rows, low=low, high=max(low, high), method=main.method)

    def _placed(self, main: Found) -> Builder:
        """The packing of `main` that is known, or that the exact search finds."""
        problem, packer = self.problem, self.packer
        gangs, places = packer.gangs(main.rows), main.places
        if places is None:
            of_type: dict[int, Iterator[int]] = {}
            for t in np.unique(problem.type[main.rows]).tolist():
                mine = [r for r in main.rows if problem.type[r] == t]
                floor = packer.floor(mine, t)
                found = packer.places(floor, mine, t) if floor else None
                if not isinstance(found, list):
                    raise NotSolved(
                        f"no packing of the winning rows was found in {packer.steps} steps; raise Limits.packing"
                    )
                of_type[t] = iter(found)
            places = [next(of_type[int(problem.type[g.row])]) for g in gangs]
        return Builder.holding(problem, main.rows, gangs, places)

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
                yield a, self._mended(a, main, worth, rows), cuts

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
        if self._exhausted:
            return self._bounded(table, known, without)
        if table is not None and without >= 0:
            pick = table.trace()
            near = self._repaired(pick[pick >= 0], table.best(), without)
            if near is not None and self._settled(near):
                return near
            known = near.rows if near is not None and near.low > self._worth(known) else known
        if table is not None and self.searching and not self.huge:
            seen = search.search(problem, self.packer, table, leaves=self.limits.leaves, known=known)
            self.nodes += seen.nodes
            if seen.done:
                return Found(rows=seen.rows, low=seen.worth, high=seen.worth, method="search")
            self.searching = False
            known = seen.rows
        left = self.seconds_left
        rows = self._promising(table, known, without)
        if not left:
            return self._bounded(table, known, without)
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
            return self._bounded(table, known, without)
        self.nodes += packed.nodes
        low = int(problem.score[packed.rows].sum())
        high = max(low, int(np.ceil(packed.bound / problem.quantum)) * problem.unit + problem.unit - 1)
        if self.seconds_left or low >= sum(problem.score[known].tolist()):
            return Found(rows=packed.rows, low=low, high=high, method="program", places=packed.places)
        return replace(self._bounded(table, known, without), high=high)

    def _bounded(self, table: Tables | None, known: list[int], without: int) -> Found:
        """The best choice known, and the tables' bound."""
        low, high = self._worth(known), self._ceiling(without)
        return Found(
            rows=known,
            low=low,
            high=max(low, min(high, table.best()) if table else high),
            method="bound" if self.seconds_left else "time",
        )

    def _ceiling(self, without: int = -1) -> int:
        """Bound of any choice that gives nothing to one bidder: all others have their best rows at these prices."""
        priced = self.priced or unpriced(self.problem)
        return priced.most - (int(priced.top[without] + priced.fewer[without]) if without >= 0 else 0)
