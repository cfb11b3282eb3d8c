"""Gandiva (OSDI'18) as the Themis paper ran it (§6.1): greedy by highest placement preference.

Whenever GPUs are free, every app reports how well its next gang could be placed; the best-placed one is dealt first,
which maximises the average placement score greedily. A gang whose lease ends and that can now be packed better moves
there (migration). Time slicing and packing of several jobs on a GPU are left out, as in the paper's comparison.
"""

from __future__ import annotations

import heapq
from dataclasses import dataclass

import numpy as np

from themis.model.answers import Solved
from themis.model.snapshot import Snapshot
from themis.model.units import Locality
from themis.placement.blind import Placing
from themis.placement.grants import Allocator, Demand, demand_of, lease_end
from themis.placement.packing import Counts
from themis.placement.turns import Key, Turns
from themis.policies.baseline import Baseline


@dataclass(frozen=True, slots=True, kw_only=True)
class Gandiva(Baseline):
    """Highest placement score first."""

    def grant(self, snapshot: Snapshot) -> Solved:
        """Deal gang after gang to the app that can be placed best now.

        Among equal scores the larger gang goes first (it has fewer good places), then the least share held, or, where
        weights differ, whose turn it is (``placement.turns``), then arrival and id.
        """
        return _Greedy(snapshot, self.placement).solve()


@dataclass(frozen=True, slots=True, order=True)
class _Bid:
    key: tuple[float, int, Key, float, int]
    app: int
    counts: Counts


class _Greedy:
    def __init__(self, snapshot: Snapshot, placement: Placing) -> None:
        self.s = snapshot
        self.allocator = Allocator(snapshot, placement)
        self.turns = Turns.of(snapshot)
        self.alike = _alike(snapshot, self.turns)
        self.demand: dict[int, Demand] = {}
        self.held = snapshot.app_held.astype(float)
        self.places: dict[tuple[int, int, bytes], tuple[Counts, Locality] | None] = {}
        """Best place now by (gang, model, smallest gang on each type); apps differ in few of them."""

    def solve(self) -> Solved:
        """Deal the best-placed gang again and again.

        Scores of rigid gangs only fall as GPUs are dealt, so an app's old key is a bound: whoever is still first after
        its key was brought up to date is first of all (lazy greedy), and few apps are looked at twice. An elastic gang
        that shrinks with what is left may be placed better than its old key says; it is then dealt a little later.
        Of apps that are alike only the first stands in the heap; where it has no place, neither have the others.
        """
        allocator = self.allocator
        self.demand = {queue[-1]: demand_of(self.s, queue[-1]) for queue in self.alike}
        queue_of = {queue[-1]: queue for queue in self.alike}
        starving = any(d.next_step() > allocator.left for d in self.demand.values())
        until = lease_end(self.s, starving)
        heap = [bid for a in self.demand if (bid := self._bid(a))]
        heapq.heapify(heap)
        while heap and allocator.left:
            old = heapq.heappop(heap)
            fresh = self._bid(old.app)
            if fresh is None:
                continue
            if heap and heap[0].key < fresh.key:
                heapq.heappush(heap, fresh)
                continue
            allocator.give(fresh.app, fresh.counts, until)
            self.places.clear()
            size = sum(c for _, c in fresh.counts)
            self.held[fresh.app] += size
            self.turns.take(fresh.app, size)
            demand = self.demand[fresh.app]
            demand.low.pop(0)
            demand.high.pop(0)
            following = fresh.app
            if not demand.low and len(queue := queue_of.pop(following)) > 1:
                queue.pop()
                following = queue[-1]
                queue_of[following], self.demand[following] = queue, demand_of(self.s, following)
            if again := self._bid(following):
                heapq.heappush(heap, again)
        return Solved(answer=allocator.grant())

    def _bid(self, a: int) -> _Bid | None:
        """The app's next gang with its best place now."""
        s, gang = self.s, self._gang(self.demand[a], self.allocator.left)
        found = self._place(a, gang) if gang else None
        if found is None:
            return None
        size = sum(c for _, c in found[0])
        turn = self.turns.key(a, float(self.held[a]))
        counts = self.allocator.home(a, size, found[1]) or found[0]
        return _Bid((-self._score(a, found[1]), -size, turn, float(s.app_arrival[a]), a), a, counts)

    def _gang(self, demand: Demand, left: int) -> int:
        """An elastic job asks for all it can use of what is left, once the app's other jobs have their smallest gang."""
        if not demand.low or demand.low[0] > left:
            return 0
        others = sum(demand.low[1:])
        return max(demand.low[0], min(demand.high[0], left - others))

    def _place(self, a: int, gang: int) -> tuple[Counts, Locality] | None:
        key = (gang, int(self.s.job_config[self.s.job_ptr[a]]), self.allocator.least(a, gang).tobytes())
        if key not in self.places:
            self.places[key] = self.allocator.best_place(a, gang)
        return self.places[key]

    def _score(self, a: int, locality: Locality) -> float:
        return 1.0 / float(self.s.speeds.slowdown[self.s.job_config[self.s.job_ptr[a]], locality])


def _alike(s: Snapshot, turns: Turns) -> list[list[int]]:
    """Waiting apps whose only waiting job asks for the same, last first; every other app is alone."""
    rows = np.flatnonzero(s.job_held == 0)
    apps, first, waiting = np.unique(s.job_app[rows], return_index=True, return_counts=True)
    expiring = np.bincount(s.job_app, weights=s.job_expiring, minlength=s.apps)[apps] > 0
    single = (waiting == 1) & ~expiring
    job = rows[first]
    wants = np.column_stack(
        [s.job_gpus_min[job], s.job_gpus_max[job], s.job_config[s.job_ptr[apps]], s.job_allowed[job]]
    )
    # Apps that are not alike get a number of their own.
    wants = np.column_stack([wants, np.where(single, -1, apps)])
    turn = turns.keys(apps, s.app_held[apps])
    order = np.lexsort((-apps, -s.app_arrival[apps], *-turn.T[::-1], *wants.T[::-1]))
    ends = (wants[order[1:]] != wants[order[:-1]]).any(axis=1).nonzero()[0] + 1
    return [part.tolist() for part in np.split(apps[order], ends)] if len(apps) else []
