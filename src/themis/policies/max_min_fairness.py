"""Max-min fairness over normalised throughput, Gavel's form of least attained service (§4.1).

What the objective leaves over goes to the jobs that can still use it, all growing equally; with space sharing it stays
idle.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from themis.model.snapshot import Snapshot
from themis.optimize.shares.pairs import PairShares
from themis.optimize.shares.problem import Problem, Shares
from themis.policies.gavel.max_min import max_min, normalised_unit
from themis.policies.shares import weights
from themis.policies.sharing import PairPolicy, shared_level


@dataclass(frozen=True, slots=True, kw_only=True)
class MaxMinFairness(PairPolicy):
    """Maximise the least weighted normalised throughput."""

    def allocate(self, snapshot: Snapshot, problem: Problem) -> Shares:
        """One level for all."""
        return max_min(problem, weights(snapshot))

    def paired(self, snapshot: Snapshot, problem: Problem) -> tuple[PairShares, float, float]:
        """One level for all, over jobs and pairs."""
        unit = weights(snapshot) * normalised_unit(problem)
        found, able = shared_level(snapshot, problem, unit), problem.active
        reached = np.divide(found.throughput, unit, out=np.full(problem.jobs, np.inf), where=able)
        return found, float(reached.min()), found.bound
