"""Gandiva (OSDI'18) as the Themis paper ran it (§6.1): greedy by highest placement preference.

Whenever GPUs are free, every app reports how well its next gang could be placed; the best-placed one is dealt first,
which maximises the average placement score greedily. A gang whose lease ends and that can now be packed better moves
there (migration). Time slicing and packing of several jobs on a GPU are left out, as in the paper's comparison.
"""

from __future__ import annotations

import heapq
from dataclasses import dataclass
from itertools import pairwise
from typing import NamedTuple

import numpy as np

from themis.model.answers import Solved
from themis.model.snapshot import Snapshot
from themis.model.units import Int, Locality, Seconds
from themis.policies.api import RENEWING, Cadence
from themis.policies.baseline import Baseline
from themis.policies.placement.blind import Placing
from themis.policies.placement.grants import Allocator, Demand, demand_of, jobs_of, lease_end
from themis.policies.placement.packing import Counts
from themis.policies.placement.turns import Key, Turns


@dataclass(frozen=True, slots=True, kw_only=True)
class Gandiva(Baseline):
    """Highest placement score first."""

    @property
    def pace(self) -> Cadence:
        """Decide whenever GPUs are free; the best-placed gang comes first, not the largest."""
        return RENEWING

    def grant(self, snapshot: Snapshot) -> Solved:
        """Deal gang after gang to the app that can be placed best now.

        Among equal scores the larger gang goes first (it has fewer good places), then the least share held, or, where
        weights differ, whose turn it is (``policies.placement.turns``), then arrival and id.
        """
        return _Greedy(snapshot, self.placement).solve()


_Bid = tuple[tuple[float, int, Key, float, int], tuple[Counts, Locality]]
"""Sort key, which ends with the app row, and the best place for the gang."""

_Kind = tuple[int, int, tuple[int, ...]]
"""(gang, model, smallest gang on each type): what a gang's best place depends on; apps differ in few of them."""


class _Next(NamedTuple):
    """An app's next gang: its minimum and maximum GPUs, and the sum of the minima of the app's other waiting jobs."""

    low: int
    high: int
    others: int


class _Greedy:
    def __init__(self, snapshot: Snapshot, placement: Placing) -> None:
        self.s = snapshot
        self.allocator = Allocator(snapshot, placement)
        self.turns = Turns.of(snapshot)
        self.alike = _alike(snapshot, self.turns)
        self.heads = np.array([queue[-1] for queue in self.alike], dtype=np.int64)
        self.next = dict(zip(self.heads.tolist(), _next_gangs(snapshot, self.heads)))
        keys = [] if snapshot.weighted else self.turns.keys(self.heads, snapshot.app_held[self.heads]).tolist()
        self.turn: dict[int, Key] = {a: tuple(key) for a, key in zip(self.heads.tolist(), keys)}
        """Turn keys of apps that were allocated nothing, where the turn of one does not depend on the others."""
        self.demand: dict[int, Demand] = {}
        """Demand of apps that were allocated something."""
        self.held: list[float] = snapshot.app_held.astype(float).tolist()
        self.arrival: list[float] = snapshot.app_arrival.tolist()
        self.config: list[int] = snapshot.job_config[snapshot.job_ptr[:-1]].tolist()
        self.scores: dict[tuple[int, Locality], float] = {}
        """Scores by model and locality."""
        self.kinds: dict[tuple[int, int], _Kind] = {}
        """Kinds by app and gang."""
        self.places: dict[_Kind, tuple[Counts, Locality] | None] = {}
        """Best places now."""
        self.fresh: dict[int, _Bid] = {}
        """Bids that were made since GPUs were last dealt: they stand."""

    def solve(self) -> Solved:
        """Deal the best-placed gang again and again.

        Scores of rigid gangs only fall as GPUs are dealt, so an app's old key is a bound: an app that is still first
        after its key was brought up to date is first of all (lazy greedy), and few apps are looked at twice. An elastic
        gang that shrinks with what is left may be placed better than its old key says; it is then dealt a little later.
        Of equal apps only the first stands in the heap; where it has no place, neither have the others.
        """
        allocator = self.allocator
        queue_of = {queue[-1]: queue for queue in self.alike}
        until = lease_end(self.s)
        self._know_kinds()
        self.fresh = {a: bid for a in self.next if (bid := self._bid(a))}
        heap = list(self.fresh.values())
        heapq.heapify(heap)
        while heap and allocator.left:
            a = heapq.heappop(heap)[0][-1]
            fresh = self.fresh[a] if a in self.fresh else self._bid(a)
            if fresh is None:
                continue
            self.fresh[a] = fresh
            if heap and heap[0][0] < fresh[0]:
                heapq.heappush(heap, fresh)
                continue
            self._give(a, *fresh[1], until)
            following = a
            if not self.demand[a].low and len(queue := queue_of.pop(a)) > 1:
                queue.pop()
                following = queue[-1]
                queue_of[following] = queue
                self.demand[following] = demand_of(self.s, following)
            if (demand := self.demand[following]).low:
                self.next[following] = _Next(demand.low[0], demand.high[0], sum(demand.low[1:]))
                if again := self._bid(following):
                    self.fresh[following] = again
                    heapq.heappush(heap, again)
        return Solved(answer=allocator.grant())

    def _give(self, a: int, counts: Counts, locality: Locality, until: Seconds) -> None:
        """The app's next gang gets this place, or stays where it stands if that is no worse."""
        if a not in self.demand:
            self.demand[a] = demand_of(self.s, a)
        size = sum(c for _, c in counts)
        self.allocator.give(a, self.allocator.home(a, size, locality) or counts, until)
        self.places.clear()
        self.fresh.clear()
        self.held[a] += size
        self.turn.pop(a, None)
        self.turns.take(a, size)
        self.demand[a].low.pop(0)
        self.demand[a].high.pop(0)

    def _bid(self, a: int) -> _Bid | None:
        """The app's next gang with its best place now."""
        gang = self._gang(self.next[a], self.allocator.left)
        found = self._place(a, gang) if gang else None
        if found is None:
            return None
        size = found[0][0][1] if len(found[0]) == 1 else sum(c for _, c in found[0])
        turn = self.turn.get(a) or self.turns.key(a, self.held[a])
        return (-self._score(a, found[1]), -size, turn, self.arrival[a], a), found

    def _gang(self, gang: _Next, left: int) -> int:
        """An elastic job asks for all that it can use beyond the smallest gangs of the app's other jobs."""
        low, high, others = gang
        if low > left:
            return 0
        return low if low == high else max(low, min(high, left - others))

    def _place(self, a: int, gang: int) -> tuple[Counts, Locality] | None:
        kind = self.kinds.get((a, gang))
        if kind is None:
            kind = self.kinds[a, gang] = (gang, self.config[a], tuple(self.allocator.least(a, gang)))
        if kind not in self.places:
            self.places[kind] = self.allocator.best_place(a, gang, kind[2])
        return self.places[kind]

    def _know_kinds(self) -> None:
        """``kinds`` of all first gangs together, as ``Allocator.least`` has them one by one."""
        s, left = self.s, self.allocator.left
        gang = np.array([self._gang(self.next[a], left) for a in self.heads.tolist()], dtype=np.int64)
        heads = self.heads[gang > 0]
        if not len(heads):
            return
        gang = gang[gang > 0]
        job, first = jobs_of(s, heads)
        size = np.repeat(gang, np.diff(np.append(first, len(job))))
        fits = (s.job_held[job] == 0) & (s.job_gpus_min[job] <= size) & (size <= s.job_gpus_max[job])
        sizes = np.where(s.job_allowed[job] & fits[:, None], s.job_gpus_min[job][:, None], size[:, None] + 1)
        least = np.minimum.reduceat(sizes, first, axis=0)
        for a, gpus, row in zip(heads.tolist(), gang.tolist(), least.tolist()):
            self.kinds[a, gpus] = (gpus, self.config[a], tuple(row))

    def _score(self, a: int, locality: Locality) -> float:
        kind = self.config[a], locality
        if kind not in self.scores:
            self.scores[kind] = 1.0 / self.s.speeds.slowdown.item(kind[0], int(locality))
        return self.scores[kind]


def _next_gangs(s: Snapshot, apps: Int) -> list[_Next]:
    """The first of each app's waiting jobs, as ``demand_of`` has them: warm ones first, then the longest."""
    if not len(apps):
        return []
    job, first = jobs_of(s, apps)
    each = np.diff(np.append(first, len(job)))
    waits, warm = s.job_held[job] == 0, s.job_expiring[job] > 0
    some_warm = np.repeat(np.logical_or.reduceat(waits & warm, first), each)
    left = np.where(waits & (warm | ~some_warm), s.job_left[job], -np.inf)
    longest = np.repeat(np.maximum.reduceat(left, first), each)
    at = np.minimum.reduceat(np.where(left == longest, np.arange(len(job)), len(job)), first)
    low = s.job_gpus_min[job]
    others = np.add.reduceat(np.where(waits, low, 0), first) - low[at]
    return [_Next(*row) for row in zip(low[at].tolist(), s.job_gpus_max[job[at]].tolist(), others.tolist())]


def _alike(s: Snapshot, turns: Turns) -> list[list[int]]:
    """Waiting apps whose only waiting job has the same request, last first; every other app is its own group."""
    rows = np.flatnonzero(s.job_held == 0)
    apps, first, waiting = np.unique(s.job_app[rows], return_index=True, return_counts=True)
    expiring = np.bincount(s.job_app, weights=s.job_expiring, minlength=s.apps)[apps] > 0
    single = (waiting == 1) & ~expiring
    job = rows[first]
    wants = np.column_stack(
        [s.job_gpus_min[job], s.job_gpus_max[job], s.job_config[s.job_ptr[apps]], s.job_allowed[job]]
    )
    # Apps that differ get a number of their own.
    wants = np.column_stack([wants, np.where(single, -1, apps)])
    turn = turns.keys(apps, s.app_held[apps])
    order = np.lexsort((-apps, -s.app_arrival[apps], *-turn.T[::-1], *wants.T[::-1]))
    ends = (wants[order[1:]] != wants[order[:-1]]).any(axis=1).nonzero()[0] + 1
    rows, cuts = apps[order].tolist(), [0, *ends.tolist(), len(apps)]
    return [rows[begin:end] for begin, end in pairwise(cuts)] if rows else []
