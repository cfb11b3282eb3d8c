"""Makespan: all jobs present end as early as possible (Gavel §4.2)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from themis.gavel.makespan import min_makespan
from themis.gavel.problem import Problem, Shares
from themis.model.snapshot import Snapshot
from themis.policies.shares import SharePolicy


@dataclass(frozen=True, slots=True, kw_only=True)
class Makespan(SharePolicy):
    """Minimise the time until the last job ends."""

    smaller_is_better: ClassVar[bool] = True

    def allocate(self, snapshot: Snapshot, problem: Problem) -> Shares:
        """One end for all."""
        return min_makespan(problem, np.maximum(snapshot.job_left, 1e-6))
