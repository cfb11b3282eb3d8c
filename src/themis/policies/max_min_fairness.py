"""Max-min fairness over normalised throughput, Gavel's form of least attained service (§4.1).

What the objective leaves over goes to the jobs that can still use it, all growing alike; with space sharing it stays idle.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from themis.errors import InputError
from themis.gavel.max_min import max_min, normalised_unit
from themis.gavel.problem import Problem, Shares
from themis.model.answers import Proof, Solved
from themis.model.snapshot import Snapshot
from themis.policies.api import Workbench
from themis.policies.shares import SharePolicy, problem_of, weights
from themis.policies.sharing import share_of, shared_level


@dataclass(frozen=True, slots=True, kw_only=True)
class MaxMinFairness(SharePolicy):
    """Maximise the least weighted normalised throughput.

    Attributes
    ----------
    sharing : two single-GPU jobs may share a GPU where profiles know their speeds beside each other (§3.1).
    """

    sharing: bool = False

    def __post_init__(self) -> None:
        if self.sharing and not self.aware:
            raise InputError(
                "sharing is true while aware is false; pairs need the rates of each type, so set aware=true."
            )

    def __call__(self, snapshot: Snapshot, bench: Workbench) -> Solved:
        """Shares of every job, or of jobs and pairs, on every type."""
        problem = problem_of(snapshot)
        if not self.sharing or not problem.active.any():
            return SharePolicy.__call__(self, snapshot, bench)
        unit = weights(snapshot) * normalised_unit(problem)
        found, able = shared_level(snapshot, problem, unit), problem.active
        reached = float(np.divide(found.throughput, unit, out=np.full(problem.jobs, np.inf), where=able).min())
        return Solved(
            answer=share_of(snapshot, problem, found, self.round_s),
            proof=Proof(objective=reached, bound=found.bound, method=type(self).__name__),
        )

    def allocate(self, snapshot: Snapshot, problem: Problem) -> Shares:
        """One level for all."""
        return max_min(problem, weights(snapshot))
