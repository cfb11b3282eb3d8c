"""Dominant resource fairness (NSDI'11) on GPUs alone, as the Themis paper runs it: equalise the apps' shares.

Progressive filling: the app with the smallest share of the cluster, per unit of weight, takes its next gang, until
nothing fits. The share is what it holds beyond this instant plus what it was just dealt. Of equal shares the one that has
received least GPU time per unit of weight goes first, so that apps take turns where there are fewer GPUs than apps. Where weights
differ, shares that are no whole number of gangs are made up by turns (``placement.turns``).
"""

from __future__ import annotations

import heapq
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from themis.model.answers import Solved
from themis.model.snapshot import Snapshot
from themis.model.units import Float, Int
from themis.placement.grants import Allocator, Demand, demand_of, lease_end, waiting_apps
from themis.placement.turns import Turns
from themis.policies.api import ON_FREE_GPUS, Cadence, Granularity, Workbench


@dataclass(frozen=True, slots=True, kw_only=True)
class Drf:
    """Smallest weighted share of GPUs first."""

    claims: ClassVar[frozenset[str]] = frozenset({"work_conserving"})
    needs: ClassVar[frozenset[str]] = frozenset()
    level: ClassVar[Granularity] = Granularity.APP

    @property
    def pace(self) -> Cadence:
        """On free GPUs."""
        return ON_FREE_GPUS

    def __call__(self, snapshot: Snapshot, bench: Workbench) -> Solved:
        """Fill progressively; ties go to least received, then the earlier arrival, then the lower id."""
        allocator = Allocator(snapshot)
        queue = waiting_apps(snapshot)
        wants, starving = _fill(snapshot, queue, allocator.left)
        until = lease_end(snapshot, starving)
        while wants:
            allocator.allocate(wants, until)
            # What elastic gangs declined, because it is too far away, fills the others' shares.
            queue = np.setdiff1d(queue, [a for a, _ in wants])
            wants, _ = _fill(snapshot, queue, allocator.left)
        return Solved(answer=allocator.grant())


def _fill(s: Snapshot, queue: Int, left: int) -> tuple[list[tuple[int, list[int]]], bool]:
    """Gangs for each app, least share first, and whether a gang larger than all ``left`` GPUs is due first."""
    demands: dict[int, Demand] = {}
    turns = Turns.of(s, by_received=True)
    given = turns.keys(queue, s.app_held[queue])
    arrival, lone = s.app_arrival[queue], _only_gang(s)[queue]
    order = np.lexsort((queue, arrival, *given.T[::-1]))
    # Bursts leave hundreds of apps whose only gang is larger than what is free: all that matters is if one comes first.
    large, rest = order[lone[order] > left], order[lone[order] <= left]
    due = _keys(given, arrival, queue, large[:1])
    heap, gang = _keys(given, arrival, queue, rest), dict(zip(queue[rest].tolist(), lone[rest].tolist()))
    starving, allocated = False, False
    while heap and left:
        key = heapq.heappop(heap)
        a = key[-1]
        if s.weighted:
            # Another app of its user may have been dealt something since.
            has = float(s.app_held[a]) + (sum(demands[a].gangs) if a in demands else 0)
            fresh = (*turns.key(a, has), key[-2], a)
            if fresh > key:
                heapq.heappush(heap, fresh)
                continue
        starving |= not allocated and bool(due) and due[0] < key
        if a not in demands:
            if gang[a] > left:
                continue
            demands[a] = demand_of(s, a)
        step = demands[a].next_step()
        if step > left:
            starving |= not allocated
            continue
        if step:
            demands[a].take()
            turns.take(a, step)
            allocated, left = True, left - step
            has = float(s.app_held[a]) + sum(demands[a].gangs)
            heapq.heappush(heap, (*turns.key(a, has), key[-2], a))
    starving |= bool(due) and left > 0 and not allocated
    wants = [(a, d.gangs) for a, d in demands.items() if d.gangs]
    first = np.array([a for a, _ in wants], dtype=np.int64)
    order = np.lexsort(Turns.of(s).keys(first, s.app_held[first]).T[::-1])
    return [wants[i] for i in order], starving


def _keys(given: Float, arrival: Float, queue: Int, at: Int) -> list[tuple[float, float, float, float, float, int]]:
    """What decides who is next, for positions in the queue: its key (``Turns``), arrival, app row."""
    return list(zip(*given[at].T.tolist(), arrival[at].tolist(), queue[at].tolist()))


def _only_gang(s: Snapshot) -> Int:
    """[A], smallest gang of each app's only waiting job; 0 with none or several."""
    waiting = s.job_held == 0
    count = np.bincount(s.job_app[waiting], minlength=s.apps)
    least = np.bincount(s.job_app[waiting], weights=s.job_gpus_min[waiting], minlength=s.apps)
    out: Int = np.where(count == 1, least, 0).astype(np.int64)
    return out
