"""Makespan: all jobs present end as early as possible (Gavel §4.2)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from themis.model.snapshot import Snapshot
from themis.optimize.shares.pairs import PairShares
from themis.optimize.shares.problem import Problem, Shares
from themis.policies.gavel.makespan_shares import min_makespan
from themis.policies.shares import work_left
from themis.policies.sharing import PairPolicy, shared_level


@dataclass(frozen=True, slots=True, kw_only=True)
class Makespan(PairPolicy):
    """Minimise the time until the last job ends."""

    smaller_is_better: ClassVar[bool] = True

    def allocate(self, snapshot: Snapshot, problem: Problem) -> Shares:
        """One end for all."""
        return min_makespan(problem, work_left(snapshot))

    def paired(self, snapshot: Snapshot, problem: Problem) -> tuple[PairShares, float, float]:
        """One end for all, over jobs and pairs."""
        left = work_left(snapshot)
        found, able = shared_level(snapshot, problem, left), problem.active
        return found, float((left[able] / found.throughput[able]).max()), 1.0 / found.bound
