"""Max-min fairness by water filling: the lexicographic max-min, Pareto efficient (Gavel §4.3)."""

from __future__ import annotations

from dataclasses import dataclass

from themis.gavel.max_min import max_min_water_filling
from themis.gavel.problem import Problem, Shares
from themis.model.snapshot import Snapshot
from themis.policies.shares import SharePolicy, weights


@dataclass(frozen=True, slots=True, kw_only=True)
class MaxMinWaterFilling(SharePolicy):
    """Raise all jobs together; those that are stuck stay, the others rise on."""

    def allocate(self, snapshot: Snapshot, problem: Problem) -> Shares:
        """Level by level."""
        return max_min_water_filling(problem, weights(snapshot))
