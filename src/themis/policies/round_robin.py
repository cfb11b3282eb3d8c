"""Round robin, planned: the jobs take turns for whole rounds, and the next rounds are laid down in advance.

The smallest honest user of a ``RoundPlan``: jobs in order of least rounds received, per unit of weight, take the next
round while their gangs fit the cluster, round after round, until the window is planned.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from heapq import heapify, heappop, heappush
from typing import ClassVar

import numpy as np

from themis.errors import InputError
from themis.model.answers import RoundPlan, Solved
from themis.model.snapshot import Snapshot
from themis.model.units import Float, Int, Seconds
from themis.policies.api import Cadence, Granularity, Workbench
from themis.policies.attained_service import unit_service, units
from themis.policies.placement.packing import most_gpus
from themis.policies.shares import weights


@dataclass(frozen=True, slots=True, kw_only=True)
class RoundRobin:
    """Turns for jobs by weight, each with its most GPUs."""

    round_s: Seconds = 360.0
    window: int = 5
    """Rounds planned ahead."""

    claims: ClassVar[frozenset[str]] = frozenset()
    needs: ClassVar[frozenset[str]] = frozenset()
    level: ClassVar[Granularity] = Granularity.JOB

    def __post_init__(self) -> None:
        if not 1 <= self.window <= 1000:
            raise InputError(f"policy round_robin: window is {self.window}, expected 1 to 1000 rounds.")

    @property
    def pace(self) -> Cadence:
        """Rounds."""
        return Cadence(self.round_s)

    def __call__(self, snapshot: Snapshot, bench: Workbench) -> Solved:
        """Plan the window: in each round, fewest turns per weight first, ties to the lower id.

        Between users or groups the user that is least ahead of its share gives one of its jobs a turn, then the next
        such user.
        """
        s = snapshot
        capacity = int(s.machine_gpus.sum())
        gpus = most_gpus(s)
        turns, weight = s.received.sum(axis=1) / self.round_s, weights(s)
        users = _Users.of(s, gpus.astype(np.float64) * self.round_s) if s.between != "apps" else None
        run = np.zeros((s.jobs, self.window), dtype=bool)
        for r in range(self.window):
            # Jobs that hold a lease into this round keep it; the first round has only what is on offer.
            room = int(s.free.sum()) if r == 0 else capacity
            rows = np.lexsort((s.job_id, turns / weight))
            if r == 0:
                rows = rows[s.job_held[rows] == 0]
            for j in rows.tolist() if users is None else users.turns(rows.tolist(), gpus, room):
                if gpus[j] <= room:
                    run[j, r] = True
                    room -= int(gpus[j])
            turns = turns + run[:, r]
        return Solved(answer=RoundPlan(job=s.job_id, gpus=gpus, run=run, round_s=self.round_s))


@dataclass(frozen=True, slots=True)
class _Users:
    """Users taking turns.

    Attributes
    ----------
    ahead : [U], GPU-seconds per relative weight that each user is ahead of its share. ``unit`` : [J], each job's user.
    cost : [J], what a round of the job adds to it.
    """

    ahead: list[float]
    unit: list[int]
    cost: list[float]

    @classmethod
    def of(cls, s: Snapshot, gpu_seconds: Float) -> _Users:
        unit = units(s)
        weight = np.bincount(unit, weights=s.app_weight)
        ahead = np.zeros(len(weight))
        ahead[unit] = unit_service(s)
        of_job = unit[s.job_app]
        return cls(ahead.tolist(), of_job.tolist(), (gpu_seconds * weight.mean() / weight[of_job]).tolist())

    def turns(self, rows: Sequence[int], gpus: Int, room: int) -> list[int]:
        """Jobs that take part in a round with this many GPUs, ``rows`` : in the order in which users' own jobs come."""
        waiting: dict[int, deque[int]] = {}
        for j in rows:
            waiting.setdefault(self.unit[j], deque()).append(j)
        heap = [(self.ahead[u], u) for u in waiting]
        heapify(heap)
        out = []
        while heap and room:
            _, u = heappop(heap)
            while waiting[u]:
                j = waiting[u].popleft()
                if gpus[j] <= room:
                    out.append(j)
                    room -= int(gpus[j])
                    self.ahead[u] += self.cost[j]
                    heappush(heap, (self.ahead[u], u))
                    break
        return out
