"""AlloX (EuroSys'20): least mean completion time by assigning jobs to places in queues; a baseline of Gavel's §7."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import ClassVar

import numpy as np

from themis.errors import InputError
from themis.model.snapshot import Snapshot
from themis.model.units import Float, Int
from themis.optimize.shares.problem import Problem, Shares
from themis.policies.api import ADDED, Cadence
from themis.policies.gavel.baselines import allox
from themis.policies.shares import SharePolicy, weights, work_left


@dataclass(frozen=True, slots=True, kw_only=True)
class Allox(SharePolicy):
    """Run the heads of the queues of the best assignment; with ``alpha`` below 1 the least served jobs come first.

    Attributes
    ----------
    alpha : above 0, up to 1; the filter. In each round this share of the jobs, at least one, is assigned first: those that had
        the least GPU time for their life, weight and gang; of equals the first to come, then the shortest. The others are
        assigned to the GPUs that these leave. 1: no filter.
    """

    alpha: float = field(default=1.0, metadata=ADDED)

    smaller_is_better: ClassVar[bool] = True

    def __post_init__(self) -> None:
        if not 0 < self.alpha <= 1:
            raise InputError(f"policy allox: alpha is {self.alpha}, expected above 0, up to 1 (all jobs, no filter).")

    @property
    def pace(self) -> Cadence:
        """Rounds; with a filter every round is decided again, because the worst-off apps change with each round."""
        every = None if self.alpha < 1 else self.resolve_interval
        return Cadence(self.round_s, every, self.backfill, spare=self.spare)

    def allocate(self, snapshot: Snapshot, problem: Problem) -> Shares:
        """One assignment, or one of the filtered jobs and one of the others."""
        left = work_left(snapshot)
        if self.alpha == 1:
            return allox(problem, left)
        order = np.lexsort((problem.gpus, left, snapshot.app_arrival[snapshot.job_app], _had(snapshot, problem)))
        able = order[problem.active[order]]
        first = able[: math.ceil(self.alpha * len(able) - 1e-9)]
        found = allox(_of(problem, first, problem.workers), left)
        others = np.setdiff1d(np.arange(problem.jobs), first)
        rest = allox(_of(problem, others, problem.workers - problem.usage(found.x)), left)
        total = found.objective * len(first) + rest.objective * int(problem.active[others].sum())
        mean = total / max(int(problem.active.sum()), 1)
        return Shares(x=found.x + rest.x, objective=mean, bound=mean, price=found.price)


def _had(s: Snapshot, problem: Problem) -> Float:
    """[J], the part of its life that each job had all its GPUs, over its weight; 0 for a job that just came."""
    life = s.app_elapsed[s.job_app] * problem.gpus * weights(s)
    out: Float = np.divide(s.job_attained, life, out=np.zeros(s.jobs), where=life > 0)
    return out


def _of(problem: Problem, jobs: Int, workers: Float) -> Problem:
    """The same problem on these workers, with all other jobs barred."""
    rate = np.zeros_like(problem.rate)
    rate[jobs] = problem.rate[jobs]
    return Problem.of(rate, problem.gpus, workers, problem.pool)
