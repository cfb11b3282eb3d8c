"""Winner determination: who wins which row, with everyone and without each winner (Themis pseudocode 1, lines 6-7).

1. If everyone can have its best row, that is the answer.
2. Otherwise tables over the GPUs in sum give an upper bound and a choice. A choice that can be packed is optimal.
3. A choice that breaks a capacity makes that capacity part of the tables (a cut), and the tables are built again.
4. What still cannot be packed goes to a search over rows that is bounded by the tables, then to an integer program.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from themis.auction import patterns, search, tables
from themis.auction.bids import Ints
from themis.auction.capacities import Capacity, broken, needs, totals
from themis.auction.market import Market
from themis.auction.outcome import Limits
from themis.auction.packing import Packer
from themis.auction.tables import Tables


@dataclass(frozen=True, slots=True, kw_only=True)
class Found:
    """A packable choice of market rows, with its integer worth and a proven upper bound of any choice's worth."""

    rows: list[int]
    low: int
    high: int
    method: str
    places: list[int] | None = None


@dataclass(slots=True)
class Solver:
    """One auction being settled; the tables and the capacities in them are shared by all its problems."""

    market: Market
    packer: Packer
    limits: Limits
    gap: float
    nodes: int = 0
    programs: int = 0
    cuts: list[Capacity] = field(default_factory=list)
    table: Tables | None = None

    def everyone(self) -> Found:
        """Best choice among all bidders."""
        rows = self._all_best()
        if rows is not None:
            worth = int(self.market.score[rows].sum())
            return Found(rows=rows.tolist(), low=worth, high=worth, method="all")
        self.cuts = totals(self.market)
        while self._tabulate():
            assert self.table is not None
            pick = self.table.trace()
            rows = pick[pick >= 0]
            worth = self.table.best()
            cuts = broken(self.market, rows)
            if not cuts and self._packable(rows.tolist()):
                return Found(rows=rows.tolist(), low=worth, high=worth, method="table")
            if not self._cut(cuts):
                break
        return self._hard(np.arange(self.market.row.size), self.table, [])

    def without(self, winners: Sequence[int], main: Found) -> list[Found]:
        """Best choice without each of `winners`, in their order."""
        if main.method == "all":
            return [self._left(main, a, exact=True) for a in winners]
        found: dict[int, Found] = {}
        waiting = list(winners)
        while waiting and self.table is not None:
            found |= self._read(waiting, main)
            failed = [a for a in waiting if a not in found]
            cuts = {c for a in failed for c in self._failed_cuts.get(a, ())}
            waiting = failed
            if not failed or not self._cut(sorted(cuts)) or not self._tabulate():
                break
        for a in waiting:
            stay = [r for r in main.rows if self.market.who[r] != a]
            found[a] = self._hard((self.market.who != a).nonzero()[0], self._table_without(a), stay)
        return [found[a] for a in winners]

    _failed_cuts: dict[int, list[Capacity]] = field(default_factory=dict)

    def _table_without(self, a: int) -> Tables | None:
        return self.table.leaving_out(int(np.searchsorted(self.table.who, a))) if self.table else None

    def _left(self, main: Found, a: int, exact: bool) -> Found:
        """What remains of `main` when a leaves, which is optimal when everyone had its best row."""
        rows = [r for r in main.rows if self.market.who[r] != a]
        worth = int(self.market.score[rows].sum())
        return Found(rows=rows, low=worth, high=worth if exact else main.high, method=main.method)

    def _all_best(self) -> Ints | None:
        """Everyone's best row, if together they can be packed."""
        market = self.market
        order = np.lexsort((-market.score, market.who))
        first = np.ones(order.size, np.bool_)
        first[1:] = market.who[order][1:] != market.who[order][:-1]
        rows: Ints = order[first]
        if (market.need[rows].sum(0) > market.have).any() or broken(market, rows):
            return None
        return rows if self._packable(rows.tolist()) else None

    def _packable(self, rows: list[int]) -> bool:
        if self.market.certain or not rows:
            return True
        return self.packer.fits(rows) is True

    def _cut(self, cuts: Sequence[Capacity]) -> bool:
        """Add capacities to the tables, as many as the limit of states allows; False when none was added."""
        added = False
        for cut in cuts:
            if cut in self.cuts:
                continue
            need, caps = needs(self.market, [*self.cuts, cut])
            if tables.entries(need, caps) <= self.limits.states:
                self.cuts = [*self.cuts, cut]
                added = True
        return added

    def _tabulate(self) -> bool:
        need, caps = needs(self.market, self.cuts)
        if caps.size > 1 and tables.entries(need, caps) > self.limits.states:
            return False
        self.table = tables.build(self.market, np.arange(self.market.row.size), need, caps, self.market.score)
        return True

    def _read(self, winners: list[int], main: Found) -> dict[int, Found]:
        """Answers without each winner that the tables alone settle; notes what the others break."""
        assert self.table is not None
        market, table = self.market, self.table
        spots = np.searchsorted(table.who, winners)
        sums = [table.without(int(i)) for i in spots]
        if market.trivial:
            return {a: Found(rows=[], low=v, high=v, method="table") for a, (v, _) in zip(winners, sums)}
        found = {}
        for a, (worth, _) in zip(winners, sums):
            stay = self._left(main, a, exact=False)
            if worth <= stay.low:
                found[a] = replace(stay, high=stay.low)
        open_ = [i for i, a in enumerate(winners) if a not in found]
        if not open_:
            return found
        winners, sums = [winners[i] for i in open_], [sums[i] for i in open_]
        picks = table.trace_without(spots[open_], np.array([s for _, s in sums]))
        for a, (worth, _), pick in zip(winners, sums, picks):
            rows = pick[pick >= 0]
            cuts = broken(market, rows)
            if cuts or not self._packable(rows.tolist()):
                self._failed_cuts[a] = cuts
            else:
                found[a] = Found(rows=rows.tolist(), low=worth, high=worth, method="table")
        return found

    def _hard(self, rows: Ints, table: Tables | None, known: list[int]) -> Found:
        """Search among `rows` for better than the packable rows `known`, then the integer program."""
        market = self.market
        if not rows.size:
            return Found(rows=[], low=0, high=0, method="search")
        if table is not None:
            seen = search.search(market, self.packer, table, leaves=self.limits.leaves, known=known)
            self.nodes += seen.nodes
            if seen.done:
                return Found(rows=seen.rows, low=seen.worth, high=seen.worth, method="search")
        self.programs += 1
        accept = np.inf if self.limits.allow_gap else self.gap
        packed = patterns.solve_rows(market, self.packer, rows, gap=self.gap / 2, accept=accept, limits=self.limits)
        self.nodes += packed.nodes
        low = int(market.score[packed.rows].sum())
        high = max(low, int(np.ceil(packed.bound / market.quantum)) * market.unit + market.unit - 1)
        return Found(rows=packed.rows, low=low, high=high, method="program", places=packed.places)
