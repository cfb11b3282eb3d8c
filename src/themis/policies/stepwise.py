"""Stepwise allocation of an offer to the app that gains most from the next step: the skeleton of Optimus and SLAQ.

A step is one GPU, or a job's smallest gang. What a gang is worth comes from the speed model at the narrowest span that
the offer has for it, so that a GPU beyond the machine counts for what it brings.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import numpy as np

from themis.model.answers import Solved
from themis.model.snapshot import Snapshot
from themis.model.units import Int, Locality
from themis.policies.placement.blind import Placing
from themis.policies.placement.grants import Allocator, Demand, demand_of, lease_end, waiting_apps
from themis.policies.placement.packing import narrowest

Value = Callable[[int, Sequence[float]], float]
"""Value to an app (row) of gangs of these speeds, one for each of its waiting jobs in the order of start."""

DECIMALS = 12
"""Gains that differ less are ties: the order must not hang on the last bit of a logarithm."""


def by_gain(s: Snapshot, value: Value, placement: Placing = Placing.PACKED) -> Solved:
    """Give steps to the app whose value grows most per GPU, ties by GPU time received per weight, arrival and id.

    Steps that gain nothing come last, but are dealt: a GPU that no app gains from costs no app anything. Where an
    elastic gang declines GPUs that are too far away, the apps that had no turn are dealt what is left.
    """
    allocator, worths = Allocator(s, placement), _Worths(s, blind=placement is Placing.BLIND)
    apps = waiting_apps(s).tolist()
    wants, until = _fill(s, apps, allocator.left, value, worths), lease_end(s)
    while wants:
        allocator.allocate(list(wants.items()), until)
        apps = [a for a in apps if a not in wants]
        wants = _fill(s, apps, allocator.left, value, worths)
    return Solved(answer=allocator.grant())


def _fill(s: Snapshot, apps: list[int], left: int, value: Value, worths: _Worths) -> dict[int, list[int]]:
    """Gangs for each app, the one with the first step first."""
    demands: dict[int, Demand] = {a: demand_of(s, a) for a in apps} if left else {}
    values = {a: value(a, ()) for a in demands}
    heap: list[tuple[float, float, float, int, int]] = []
    received = (s.app_attained / s.app_weight).tolist()

    def queue(a: int) -> None:
        """The app's next step joins those to choose from."""
        if step := demands[a].next_step():
            demands[a].take()
            before, values[a] = values[a], value(a, [worths.of(a, g) for g in demands[a].gangs])
            gain = round((values[a] - before) / step, DECIMALS)
            heapq.heappush(heap, (-gain, received[a], float(s.app_arrival[a]), a, step))

    for a in demands:
        queue(a)
    wants: dict[int, list[int]] = {}
    while heap and left:
        *_, a, step = heapq.heappop(heap)
        if step > left:
            continue
        left -= step
        wants[a] = demands[a].gangs.copy()
        queue(a)
    return wants


def start_order(s: Snapshot, a: int) -> Int:
    """Rows of the app's waiting jobs in the order of start: warm ones, then the longest (as in ``demand_of``)."""
    jobs = np.arange(s.job_ptr[a], s.job_ptr[a + 1])
    waiting = jobs[s.job_held[jobs] == 0]
    out: Int = waiting[np.lexsort((-s.job_left[waiting], s.job_expiring[waiting] == 0))]
    return out


@dataclass(frozen=True, slots=True)
class _Worths:
    """Speed of gangs cut from the offer, in reference GPUs; ``blind``: as if each were on one machine."""

    snapshot: Snapshot
    blind: bool = False
    known: dict[tuple[int, bytes, int, int], float] = field(default_factory=dict)

    def of(self, a: int, gpus: int) -> float:
        """A gang of up to ``gpus`` GPUs for app row ``a``; an elastic one declines those that would slow it down."""
        s = self.snapshot
        jobs = slice(int(s.job_ptr[a]), int(s.job_ptr[a + 1]))
        config, least = int(s.job_config[jobs.start]), int(s.app_gang_min[a])
        allowed = s.job_allowed[jobs].any(axis=0)
        key = (config, allowed.tobytes(), least, gpus)
        if key not in self.known:
            here = max(self._on_type(config, k, gpus) for k in np.flatnonzero(allowed).tolist())
            self.known[key] = max(here, self.of(a, gpus - 1)) if gpus > least else here
        return self.known[key]

    def _on_type(self, config: int, k: int, gpus: int) -> float:
        s = self.snapshot
        if self.blind:
            return float(s.speeds.scale[config, k, gpus] / s.speeds.slowdown[config, Locality.MACHINE])
        found = narrowest(s.free, s.machine_rack, gpus, s.machine_type == k)
        span = found[1] if found else Locality.CROSS_RACK
        return float(s.speeds.scale[config, k, gpus] / s.speeds.slowdown[config, span])
