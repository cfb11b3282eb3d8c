"""Gang by gang, the best placed first: allocation of an offer among apps that may wait for a good place."""

from __future__ import annotations

import heapq
from collections import Counter

import numpy as np

from themis.model.snapshot import Snapshot
from themis.model.units import Float, Int, Locality, Seconds
from themis.policies.placement.grants import Allocator, Demand, demand_of, expiring_on, least_waiting
from themis.policies.placement.packing import Counts


def best_first(allocator: Allocator, apps: Int, rank: Float, until: Seconds, *, young_s: Seconds = 0.0) -> None:
    """Give what is left to the gang that can be placed best, of equal ones to that of the least rank, again and again.

    A gang stays where it stands, unless a better place is worth the move. Places only get worse while GPUs are given out, so a gang
    that is still first after it was looked at again is first of all; before its first look an app counts with the best place that
    there is.

    Parameters
    ----------
    apps : rows of the snapshot's apps. ``rank`` : [A], lowest first.
    young_s : gangs that have run for less than this time keep their GPUs before all others.
    """
    s, least = allocator.s, least_waiting(allocator.s)[apps]
    line = _Line(allocator, rank, _young(s, young_s))
    may = apps[(least > 0) & (least <= allocator.left)]
    best = s.speeds.slowdown.min(axis=1)[s.job_config[s.job_ptr[may]]]
    if line.young:
        best[np.isin(may, [a for a, _ in line.young])] = 0.0
    heap: list[tuple[float, float, int]] = list(zip(best.tolist(), rank[may].tolist(), may.tolist()))
    heapq.heapify(heap)
    while heap and allocator.left:
        a = heapq.heappop(heap)[-1]
        key = line.key(a)
        if key is not None and (not heap or key <= heap[0]):
            line.give(a, until)
            key = line.key(a)
        if key is not None:
            heapq.heappush(heap, key)


def _young(s: Snapshot, young_s: Seconds) -> set[tuple[int, Counts]]:
    """(app row, place) of the gangs on offer that have run for less than this time."""
    on, out = expiring_on(s), set[tuple[int, Counts]]()
    for row in np.flatnonzero((s.job_expiring > 0) & (s.now - s.job_since < young_s)).tolist():
        for seat in (0, 1):
            if machines := on.get((int(s.job_id[row]), seat)):
                out.add((int(s.job_app[row]), tuple(sorted(Counter(machines).items()))))
    return out


class _Line:
    """Apps that wait, and the next gang of each."""

    def __init__(self, allocator: Allocator, rank: Float, young: set[tuple[int, Counts]]) -> None:
        self.allocator, self.rank, self.young = allocator, rank, young
        self.demand: dict[int, Demand] = {}
        self.found: tuple[Counts, Locality] | None = None
        """Place of the gang that ``key`` looked at last."""

    def key(self, a: int) -> tuple[float, float, int] | None:
        """(slowdown of the next gang's best place, 0 of a young gang's; rank; app); None where it has no place."""
        if a not in self.demand:
            self.demand[a] = demand_of(self.allocator.s, a)
        found = self.found = self.place(a) if self.demand[a].low else None
        if found is None:
            return None
        if (a, found[0]) in self.young:
            return 0.0, self.rank.item(a), a
        s = self.allocator.s
        return s.speeds.slowdown.item(s.job_config.item(s.job_ptr.item(a)), int(found[1])), self.rank.item(a), a

    def place(self, a: int) -> tuple[Counts, Locality] | None:
        """The next gang's place. An elastic one asks for all that it can use beyond the smallest gangs of the app's other jobs."""
        allocator, low, high = self.allocator, self.demand[a].low[0], self.demand[a].high[0]
        if low > allocator.left:
            return None
        gpus = max(low, min(high, allocator.left - sum(self.demand[a].low[1:])))
        if (home := allocator.home_unless_better(a, gpus)) is not None:
            return home
        found = allocator.best_place(a, gpus)
        if found is None:
            return None
        here = allocator.home(a, sum(c for _, c in found[0]), found[1])
        return (here, found[1]) if here else found

    def give(self, a: int, until: Seconds) -> None:
        """The app's next gang gets its place, which ``key`` found just before."""
        assert self.found is not None
        self.allocator.give(a, self.found[0], until)
        self.demand[a].low.pop(0)
        self.demand[a].high.pop(0)
