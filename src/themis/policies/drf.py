"""Dominant resource fairness (NSDI'11) on GPUs alone, as the Themis paper runs it: equalise the apps' shares.

Progressive filling: the app with the smallest share of the cluster, per unit of weight, takes its next gang, until
nothing fits. The share is what it holds beyond this instant plus what it was just dealt. Of equal shares the one that has
received least GPU time per unit of weight goes first, so that apps take turns where there are fewer GPUs than apps. Where weights
differ, shares that are no whole number of gangs are made up by turns (``policies.placement.turns``).
"""

from __future__ import annotations

import heapq
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from themis.model.answers import Solved
from themis.model.snapshot import Snapshot
from themis.model.units import Float, Int
from themis.policies.api import PACKING, Cadence, Granularity, Workbench
from themis.policies.placement.grants import Allocator, Demand, demand_of, demands_of, lease_end, waiting_apps
from themis.policies.placement.turns import Turns


@dataclass(frozen=True, slots=True, kw_only=True)
class Drf:
    """Smallest weighted share of GPUs first."""

    claims: ClassVar[frozenset[str]] = frozenset({"work_conserving"})
    needs: ClassVar[frozenset[str]] = frozenset()
    level: ClassVar[Granularity] = Granularity.APP

    @property
    def pace(self) -> Cadence:
        """Decide whenever GPUs are free."""
        return PACKING

    def __call__(self, snapshot: Snapshot, bench: Workbench) -> Solved:
        """Fill progressively; ties go to least received, then the earlier arrival, then the lower id."""
        allocator = Allocator(snapshot)
        queue = waiting_apps(snapshot)
        wants, until = _fill(snapshot, queue, allocator.left), lease_end(snapshot)
        while wants:
            allocator.allocate(wants, until)
            if not allocator.left:
                break
            # What elastic gangs declined, because it is too far away, fills the others' shares.
            queue = _without(queue, [a for a, _ in wants], snapshot.apps)
            if not len(queue):
                break
            wants = _fill(snapshot, queue, allocator.left)
        return Solved(answer=allocator.grant())


def _fill(s: Snapshot, queue: Int, left: int) -> list[tuple[int, list[int]]]:
    """Gangs for each app, least share first."""
    demands: dict[int, Demand] = {}
    ready: dict[int, Demand] = {}  # rows of apps whose turn may come: arrays are made for many of them together
    turns, lone = Turns.of(s, by_received=True), s.once(_only_gang, _only_gang)
    # Bursts leave hundreds of apps whose only gang is larger than the free GPUs.
    queue = queue[lone[queue] <= left]
    given = turns.keys(queue, s.app_held[queue])
    keys = given.T if s.weighted else given.T[1:3]  # the others are equal
    line = _Queue(s, queue, given, np.lexsort((s.app_arrival[queue], *keys[::-1])))
    while left and (key := line.pop()) is not None:
        a = key[-1]
        if s.weighted:
            # Another app of its user may have been dealt something since.
            has = float(s.app_held[a]) + (sum(demands[a].gangs) if a in demands else 0)
            fresh = (*turns.key(a, has), key[-2], a)
            if fresh > key:
                line.push(fresh)
                continue
        if a not in demands:
            if lone.item(a) > left:
                continue
            if a not in ready:
                several = s.job_ptr.item(a + 1) - s.job_ptr.item(a) > 1
                ready = demands_of(s, np.array([a, *line.coming()])) if several else {a: demand_of(s, a)}
            demands[a] = ready[a]
        step = demands[a].next_step()
        if step > left:
            continue
        if step:
            demands[a].take()
            turns.take(a, step)
            left -= step
            has = float(s.app_held[a]) + sum(demands[a].gangs)
            line.push((*turns.key(a, has), key[-2], a))
    wants = [(a, d.gangs) for a, d in demands.items() if d.gangs]
    if len(wants) < 2:
        return wants
    first = np.array([a for a, _ in wants], dtype=np.int64)
    order = np.lexsort(Turns.of(s).keys(first, s.app_held[first]).T[::-1])
    return [wants[i] for i in order]


def _without(queue: Int, rows: list[int], apps: int) -> Int:
    """The queue without these app rows; a table beats sorting both."""
    stays = np.ones(apps, dtype=bool)
    stays[rows] = False
    return queue[stays[queue]]


Key = tuple[float, float, float, float, float, int]
"""Sort key of the next app: its key of ``Turns``, arrival, app row."""


class _Queue:
    """Apps in rising order of their keys: most never have a turn, so keys are made as they are asked for."""

    def __init__(self, s: Snapshot, queue: Int, given: Float, order: Int) -> None:
        self.s, self.queue, self.given, self.order = s, queue, given, order
        self.made: list[Key] = []
        """The next ones, the last one first."""
        self.at, self.size = 0, 8
        self.back: list[Key] = []
        """A heap of those that were put back."""

    def first(self) -> Key | None:
        """The least key, which stays."""
        if not self.made:
            rows = self.order[self.at : self.at + self.size]
            self.at, self.size = self.at + self.size, 2 * self.size
            a = self.queue[rows]
            self.made = list(zip(*self.given[rows].T.tolist(), self.s.app_arrival[a].tolist(), a.tolist()))[::-1]
        back = self.back[0] if self.back else None
        if self.made and (back is None or self.made[-1] < back):
            return self.made[-1]
        return back

    def pop(self) -> Key | None:
        """Remove and return the smallest key."""
        key = self.first()
        if self.made and key is self.made[-1]:
            return self.made.pop()
        return heapq.heappop(self.back) if self.back else None

    def coming(self) -> list[int]:
        """Rows of the next apps, without those that were put back."""
        return [key[-1] for key in reversed(self.made)]

    def push(self, key: Key) -> None:
        """Put an app back under another key."""
        heapq.heappush(self.back, key)


def _only_gang(s: Snapshot) -> Int:
    """[A], smallest gang of each app's only waiting job; 0 with none or several."""
    waiting = s.job_held == 0
    count = np.bincount(s.job_app[waiting], minlength=s.apps)
    least = np.bincount(s.job_app[waiting], weights=s.job_gpus_min[waiting], minlength=s.apps)
    out: Int = np.where(count == 1, least, 0).astype(np.int64)
    return out
