"""AlloX (EuroSys'20): least mean completion time by assigning jobs to places in queues; a baseline of Gavel's §7."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from themis.gavel.baselines import allox
from themis.gavel.problem import Problem, Shares
from themis.model.snapshot import Snapshot
from themis.policies.shares import SharePolicy


@dataclass(frozen=True, slots=True, kw_only=True)
class Allox(SharePolicy):
    """Run the heads of the queues of the best assignment."""

    smaller_is_better: ClassVar[bool] = True

    def allocate(self, snapshot: Snapshot, problem: Problem) -> Shares:
        """One assignment."""
        return allox(problem, np.maximum(snapshot.job_left, 1e-6))
