"""Max-min fairness by water filling: the lexicographic max-min, Pareto efficient (Gavel §4.3)."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from themis.model.snapshot import Snapshot
from themis.optimize.shares.pair_filling import water_fill_paired
from themis.optimize.shares.pairs import PairShares
from themis.optimize.shares.problem import Problem, Shares
from themis.policies.gavel.max_min import max_min_water_filling, normalised_unit
from themis.policies.shares import weights
from themis.policies.sharing import PairPolicy, pair_rates


@dataclass(frozen=True, slots=True, kw_only=True)
class MaxMinWaterFilling(PairPolicy):
    """Raise all jobs together; those that are stuck stay, the others rise on."""

    def allocate(self, snapshot: Snapshot, problem: Problem) -> Shares:
        """Level by level."""
        return max_min_water_filling(problem, weights(snapshot))

    def paired(self, snapshot: Snapshot, problem: Problem) -> tuple[PairShares, float, float]:
        """The same over jobs and pairs."""
        unit = weights(snapshot) * normalised_unit(problem)
        found = water_fill_paired(problem, pair_rates(snapshot, problem), unit)
        reached = np.divide(found.throughput, unit, out=np.full(problem.jobs, np.inf), where=problem.active)
        return found, float(reached.min()), found.bound
