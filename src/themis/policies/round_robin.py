"""Round robin, planned: the jobs take turns for whole rounds, and the next rounds are laid down in advance.

The smallest honest user of a ``RoundPlan``: jobs in order of least rounds received, per unit of weight, take the next
round while their gangs fit the cluster, round after round, until the window is planned.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from themis.errors import InputError
from themis.model.answers import RoundPlan, Solved
from themis.model.snapshot import Snapshot
from themis.model.units import Seconds
from themis.placement.packing import most_gpus
from themis.policies.api import Level, Pace, Workbench
from themis.policies.shares import weights


@dataclass(frozen=True, slots=True, kw_only=True)
class RoundRobin:
    """Turns for jobs by weight, each with its most GPUs."""

    round_s: Seconds = 360.0
    window: int = 5
    """Rounds planned ahead."""

    claims: ClassVar[frozenset[str]] = frozenset()
    needs: ClassVar[frozenset[str]] = frozenset()
    level: ClassVar[Level] = Level.JOB

    def __post_init__(self) -> None:
        if not 1 <= self.window <= 1000:
            raise InputError(f"policy round_robin: window is {self.window}, expected 1 to 1000 rounds.")

    @property
    def pace(self) -> Pace:
        """Rounds."""
        return Pace(self.round_s)

    def __call__(self, snapshot: Snapshot, bench: Workbench) -> Solved:
        """Plan the window: in each round, fewest turns per weight first, ties to the lower id."""
        s = snapshot
        capacity = int(s.machine_gpus.sum())
        gpus = most_gpus(s)
        turns, weight = s.received.sum(axis=1) / self.round_s, weights(s)
        run = np.zeros((s.jobs, self.window), dtype=bool)
        for r in range(self.window):
            # Jobs that hold a lease into this round keep it; the first round has only what is on offer.
            room = int(s.free.sum()) if r == 0 else capacity
            for j in np.lexsort((s.job_id, turns / weight)).tolist():
                if not (r == 0 and s.job_held[j]) and gpus[j] <= room:
                    run[j, r] = True
                    room -= int(gpus[j])
            turns = turns + run[:, r]
        return Solved(answer=RoundPlan(job=s.job_id, gpus=gpus, run=run, round_s=self.round_s))
