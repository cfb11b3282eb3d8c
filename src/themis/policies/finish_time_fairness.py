"""Finish-time fairness as an optimisation over time shares (Gavel §4.2): no auction, jobs tell the truth.

Gavel's rho, job by job; the apps' rho of Themis, by auction, is the policy ``themis``.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from themis.model.snapshot import Snapshot
from themis.optimize.shares.pairs import PairShares, highest_level_paired
from themis.optimize.shares.problem import Problem, Shares
from themis.policies.gavel.finish_time_shares import finish_time_fairness, needed
from themis.policies.shares import allowances, progress
from themis.policies.sharing import PairPolicy, pair_rates


@dataclass(frozen=True, slots=True, kw_only=True)
class FinishTimeFairness(PairPolicy):
    """Minimise the worst rho times weight: a job of weight w has w shares, and is to finish as much earlier."""

    smaller_is_better: ClassVar[bool] = True

    def allocate(self, snapshot: Snapshot, problem: Problem) -> Shares:
        """One rho for all."""
        return finish_time_fairness(problem, progress(snapshot, problem), allowances(snapshot))

    def paired(self, snapshot: Snapshot, problem: Problem) -> tuple[PairShares, float, float]:
        """One rho for all, over jobs and pairs."""
        so_far, weight, able = progress(snapshot, problem), allowances(snapshot), problem.active
        pairs = pair_rates(snapshot, problem)
        alone = np.where(able, weight * so_far.alone(), 1.0)
        quickest = so_far.elapsed + so_far.left / np.where(able, pairs.fastest(problem), 1.0)
        found = highest_level_paired(
            problem,
            pairs,
            needed(so_far, weight, able.astype(np.float64)),
            float((alone / quickest)[able].min()),
            np.column_stack([so_far.left, so_far.elapsed, alone]),
        )
        return found, float((so_far.rho(found.throughput) / weight)[able].max()), 1.0 / found.bound
