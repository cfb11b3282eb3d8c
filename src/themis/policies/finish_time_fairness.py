"""Finish-time fairness as an optimisation over time shares (Gavel §4.2): no auction, jobs tell the truth.

Gavel's rho, job by job; the apps' rho of Themis, by auction, is the policy ``themis``.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from themis.gavel.finish_time import finish_time_fairness
from themis.gavel.problem import Problem, Shares
from themis.model.snapshot import Snapshot
from themis.policies.shares import SharePolicy, progress, weights


@dataclass(frozen=True, slots=True, kw_only=True)
class FinishTimeFairness(SharePolicy):
    """Minimise the worst rho over weight."""

    smaller_is_better: ClassVar[bool] = True

    def allocate(self, snapshot: Snapshot, problem: Problem) -> Shares:
        """One rho for all."""
        return finish_time_fairness(problem, progress(snapshot, problem), weights(snapshot))
