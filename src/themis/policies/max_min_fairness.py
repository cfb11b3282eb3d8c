"""Max-min fairness over normalised throughput, Gavel's form of least attained service (§4.1).

What the objective leaves over goes to the jobs that can still use it, all growing alike.
"""

from __future__ import annotations

from dataclasses import dataclass

from themis.gavel.max_min import max_min
from themis.gavel.problem import Problem, Shares
from themis.model.snapshot import Snapshot
from themis.policies.shares import SharePolicy, weights


@dataclass(frozen=True, slots=True, kw_only=True)
class MaxMinFairness(SharePolicy):
    """Maximise the least weighted normalised throughput."""

    def allocate(self, snapshot: Snapshot, problem: Problem) -> Shares:
        """One level for all."""
        return max_min(problem, weights(snapshot))
