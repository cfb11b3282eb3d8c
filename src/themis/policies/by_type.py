"""GPU type of each job under ``fair_finish``, on clusters with several types in service.

Apps that cannot wait take GPUs first, in their order, each job of the fastest type that has room. The other jobs are assigned
to the queues of all GPUs on offer so that the mean completion time is least (``policies.gavel.baselines.allox``): a job that gains
little from a fast type leaves it to one that gains much. Leases end together, at multiples of their length
since the first arrival, so that a decision may move every job.
"""

from __future__ import annotations

import numpy as np

from themis.model.answers import Solved
from themis.model.snapshot import Snapshot
from themis.model.units import Float, Int, Locality
from themis.optimize.shares.problem import Problem
from themis.policies.gavel.baselines import allox
from themis.policies.placement.grants import Allocator, lease_end
from themis.policies.placement.packing import narrowest
from themis.policies.shares import problem_of, work_left

ASSIGNED = 200
"""Number of jobs that are assigned together, shortest first; all others then take the rest, each its fastest type."""


def types_differ(s: Snapshot) -> bool:
    """True if GPUs of several types are in service."""
    there = s.machine_type[s.machine_gpus > 0]
    return bool((there != there[:1]).any())


def fastest(s: Snapshot) -> Float:
    """[A], reference GPUs that a GPU of the type that runs it best is worth to each app, above 0; of one type, that type's."""
    out: Float = np.maximum(s.app_speed, 1e-9)
    if types_differ(s):
        problem = problem_of(s)
        best = np.maximum.reduceat(problem.fastest / problem.gpus, s.job_ptr[:-1])
        out = np.where(best > 0, best, out)
    return out


def by_type(s: Snapshot, first: Int) -> Solved:
    """Grants for the waiting jobs.

    Parameters
    ----------
    first : rows of the apps that cannot wait, most pressing first.
    """
    problem, left = problem_of(s), work_left(s)
    standing = s.job_expiring > 0
    stays = np.zeros_like(problem.rate)
    # A job that changes its type restarts.
    stays[standing, s.job_gpu_type[standing]] = s.restart_s / s.lease_s
    rate = problem.rate * (1.0 + stays)
    free = np.bincount(s.machine_type, weights=s.free, minlength=len(s.gpu_types)).astype(np.float64)
    waiting = s.job_held == 0
    dealt = _Dealt(s, problem, free)
    for a in first.tolist():
        for j in range(int(s.job_ptr[a]), int(s.job_ptr[a + 1])):
            if waiting[j] and dealt.free.any():
                for k in np.argsort(-rate[j], kind="stable").tolist():
                    if dealt.give(j, k):
                        break
    seconds = np.divide(left, problem.fastest, out=np.full(s.jobs, np.inf), where=problem.active)
    rest = np.flatnonzero(waiting & problem.active & ~dealt.served)
    rest = rest[np.argsort(seconds[rest] * problem.gpus[rest], kind="stable")]
    near = rest[:ASSIGNED]
    if len(near) and dealt.free.any():
        x = allox(Problem.of(rate[near], problem.gpus[near], dealt.free.copy()), left[near]).x
        for row in np.flatnonzero(x.any(axis=1)).tolist():
            dealt.give(int(near[row]), int(x[row].argmax()))
    for j in rest[~dealt.served[rest]].tolist():
        if not dealt.free.any():
            break
        for k in np.argsort(-rate[j], kind="stable").tolist():
            if dealt.give(j, k, int(s.job_gpus_min[j])):
                break
    return Solved(answer=dealt.allocator.grant())


class _Dealt:
    """The offer while it is given out, by type."""

    def __init__(self, s: Snapshot, problem: Problem, free: Float) -> None:
        self.s, self.problem, self.free = s, problem, free
        self.allocator = Allocator(s)
        self.served = np.zeros(s.jobs, dtype=np.bool_)
        self.until = lease_end(s)

    def give(self, j: int, k: int, least: int = 0) -> bool:
        """A gang of the job on GPUs of the type; False if there is no room or the type does not run it.

        ``least`` : GPUs of the smallest gang that will do; 0: the widest alone will.
        """
        s, gpus = self.s, int(self.problem.gpus[j])
        if least:
            gpus = max(min(gpus, int(self.free[k])), least)
        if self.problem.rate[j, k] <= 0 or gpus > self.free[k]:
            return False
        a, allocator = int(s.job_app[j]), self.allocator
        counts = allocator.home(a, gpus, Locality.CROSS_RACK)
        if counts is None or any(s.machine_type[n] != k for n, _ in counts):
            found = narrowest(allocator.free, s.machine_rack, gpus, s.machine_type == k)
            if found is None:
                return False
            counts = found[0]
        allocator.give(a, counts, self.until)
        self.free[k] -= gpus
        self.served[j] = True
        return True
