"""AlloX (EuroSys'20): least mean completion time by assigning jobs to places in queues; a baseline of Gavel's §7."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from themis.model.snapshot import Snapshot
from themis.optimize.shares.problem import Problem, Shares
from themis.policies.gavel.baselines import allox
from themis.policies.shares import SharePolicy, work_left


@dataclass(frozen=True, slots=True, kw_only=True)
class Allox(SharePolicy):
    """Run the heads of the queues of the best assignment."""

    smaller_is_better: ClassVar[bool] = True

    def allocate(self, snapshot: Snapshot, problem: Problem) -> Shares:
        """One assignment."""
        return allox(problem, work_left(snapshot))
