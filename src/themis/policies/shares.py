"""Translation common to Gavel's policies: a snapshot becomes an allocation problem, its shares become the answer.

Jobs share, each with its app's weight, as gangs of the most GPUs that one type can hold. Work and rates are counted in
reference GPUs, so that "steps" of different models compare. A type's rate is that of the narrowest placement which its
machines allow for a gang of that size; where not all gangs can have that, spread placement is a type of its own
(``virtual``).
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass, field
from typing import ClassVar

import numpy as np

from themis.model.answers import Proof, Solved, TimeShare
from themis.model.snapshot import Snapshot
from themis.model.units import NONE, Float, Int, Locality, Seconds
from themis.optimize.shares.problem import Problem, Shares
from themis.policies.api import ADDED, Cadence, Granularity, Workbench
from themis.policies.gavel.agnostic import flattened, spread
from themis.policies.gavel.finish_time_shares import JobsProgress
from themis.policies.placement.packing import most_gpus
from themis.policies.virtual import virtual


@dataclass(frozen=True, slots=True, kw_only=True)
class SharePolicy(ABC):
    """A policy that decides on time shares, realised in rounds.

    Attributes
    ----------
    round_s : length of a round, seconds.
    aware : use each type's rate; otherwise every job is taken to run at its mean rate everywhere.
    resolve_interval : shares are solved again when jobs or machines come or go, but not within this many seconds; 0:
        immediately.
    backfill : GPUs that fall free in mid-round go to a waiting job immediately; otherwise they idle to the round's end.
    spare : GPUs that no share claims in a round go to jobs that wait, on top of their shares; otherwise they idle.
    placement : where gangs compete for room on machines, gangs on one machine and gangs across machines are two virtual types of
        each GPU type (Gavel §3.1, ``policies.virtual``), for policies that choose between types.
    """

    round_s: Seconds = 360.0
    aware: bool = True
    resolve_interval: Seconds = 0.0
    backfill: bool = True
    spare: bool = True
    placement: bool = field(default=True, metadata=ADDED)

    chooses_types: ClassVar[bool] = False
    """True if the policy's optimum decides which types jobs run on, whatever number of types there is."""
    claims: ClassVar[frozenset[str]] = frozenset()
    needs: ClassVar[frozenset[str]] = frozenset()
    level: ClassVar[Granularity] = Granularity.JOB
    smaller_is_better: ClassVar[bool] = False

    @property
    def pace(self) -> Cadence:
        """Rounds."""
        return Cadence(self.round_s, self.resolve_interval, self.backfill, spare=self.spare)

    @abstractmethod
    def allocate(self, snapshot: Snapshot, problem: Problem) -> Shares:
        """Solve the policy's problem."""

    def __call__(self, snapshot: Snapshot, bench: Workbench) -> Solved:
        """Shares of every job on every type."""
        problem, apart = problem_of(snapshot), None
        places = virtual(snapshot, problem) if self.aware and self.placement and self.chooses_types else None
        if places is not None:
            found = self.allocate(snapshot, places.problem)
            x, apart = places.folded(fitting(places.problem, found.x))
        elif self.aware:
            found = self.allocate(snapshot, problem)
            x = found.x
        else:
            found = self.allocate(snapshot, flattened(problem))
            x = spread(problem, found.x)
        sign = -1.0 if self.smaller_is_better else 1.0
        combos: Int = np.stack([snapshot.job_id, np.full(snapshot.jobs, NONE)], axis=1)
        x = fitting(problem, x)
        return Solved(
            answer=TimeShare(
                combos=combos,
                gpus=problem.gpus,
                x=x,
                round_s=self.round_s,
                due=found.due,
                apart=None if apart is None else np.minimum(apart, x),
            ),
            proof=Proof(
                objective=sign * found.objective,
                bound=sign * found.bound,
                method=type(self).__name__,
                late=snapshot.job_id[np.flatnonzero(found.late)]
                if found.late is not None
                else np.zeros(0, dtype=np.int64),
            ),
        )


def problem_of(s: Snapshot) -> Problem:
    """The allocation problem of a snapshot: rates in reference GPUs, workers in service."""
    types = len(s.gpu_types)
    gpus = most_gpus(s)
    workers = np.bincount(s.machine_type, weights=s.machine_gpus, minlength=types).astype(np.float64)
    largest = np.zeros(types, dtype=np.int64)
    np.maximum.at(largest, s.machine_type, s.machine_gpus)
    where = np.where(gpus[:, None] <= largest[None, :], Locality.MACHINE, Locality.RACK)
    kinds = np.broadcast_to(np.arange(types), (s.jobs, types))
    rate = s.speeds.effective(s.job_config[:, None], kinds, gpus[:, None], where)
    return Problem.of(np.where(s.job_allowed, rate, 0.0), gpus, workers)


def work_left(s: Snapshot) -> Float:
    """[J], seconds on a reference GPU, at least one: rounds are no shorter, and solvers hardly see less."""
    out: Float = np.maximum(s.job_left, 1.0)
    return out


def weights(s: Snapshot) -> Float:
    """[J], every job's weight is its app's; where fairness is between users or groups, its part of its app's."""
    out: Float = s.app_weight[s.job_app]
    return out if s.between == "apps" else out / np.diff(s.job_ptr)[s.job_app]


def allowances(s: Snapshot) -> Float:
    """[J], how many times the rho of a job of mean weight a job may have: a job of weight w has w shares. 1 for equal weights."""
    weight = weights(s)
    return weight.mean() / weight if s.weighted or s.between != "apps" else np.ones(len(weight))


def by_arrival(s: Snapshot, problem: Problem) -> Int:
    """[J], jobs from the first to the last to arrive; of equals the one with least work, then the fastest."""
    return np.lexsort((problem.fastest, problem.gpus, s.job_left, s.app_arrival[s.job_app]))


def progress(s: Snapshot, problem: Problem) -> JobsProgress:
    """Progress of jobs, for finish-time fairness in Gavel's form, where every job is a user.

    Differs from the paper: seconds that the work done would have taken in isolation are counted at the mean contention
    of the app's life, not at the contention of each instant.
    """
    in_app = np.diff(s.job_ptr)[s.job_app]
    # The mean number of jobs: contention counts weights in units of the app's own.
    relative = s.app_weight / s.app_weight.mean() if s.weighted else np.ones(s.apps)
    then = np.maximum((s.app_contention * relative)[s.job_app] * in_app, 1.0)
    rate_then = problem.isolated_rate(then)
    done = s.job_done * s.job_serial
    return JobsProgress(
        left=work_left(s),
        elapsed=np.maximum(s.app_elapsed[s.job_app], 0.0),
        isolated_elapsed=np.divide(done, rate_then, out=np.zeros(s.jobs), where=rate_then > 0),
        isolated_rate=problem.isolated_rate(),
    )


def fitting(problem: Problem, x: Float) -> Float:
    """Shares without the last rounding errors: within [0, 1], a job's sum at most 1, no pool above its workers."""
    x = np.clip(x, 0.0, 1.0)
    x = x / np.maximum(x.sum(axis=1, keepdims=True), 1.0)
    over = np.divide(problem.usage(x), problem.workers, out=np.zeros(len(problem.workers)), where=problem.workers > 0)
    return x / max(float(over.max(initial=0.0)), 1.0)
