"""Makespan: Gavel §4.2. ``minimise max_j left_j / throughput(j, X)``, one program in 1 / makespan, not a bisection."""

from __future__ import annotations

import numpy as np

from themis.model.units import Float
from themis.optimize.shares.level import highest_level
from themis.optimize.shares.problem import Problem, Shares
from themis.policies.gavel.total import best_total

_SLACK = 1e-9
"""Part of the needed rates that solvers' tolerances may cost."""

_SMALLEST = 1e-5
"""Least weight of a job over the largest."""


def min_makespan(problem: Problem, left: Float, *, fill: bool = True) -> Shares:
    """Minimise the time until the last job ends, were the shares kept; ``objective`` and ``bound`` are seconds.

    Parameters
    ----------
    left : [J], work left in the problem's unit of work; > 0. ``fill`` : hand out what the objective leaves over, to the
        jobs with the least work left first.
    """
    able = problem.active
    if not able.any():
        x = np.zeros((problem.jobs, problem.types))
        return Shares(x=x, objective=0.0, bound=0.0, price=np.zeros(len(problem.workers)))
    work = np.where(able, left, 0.0)
    ceiling = float((problem.fastest[able] / left[able]).min())
    found = highest_level(problem, lambda t: work * t, ceiling)
    x = found.x
    used = (problem.rate > 0).any(axis=0)
    if fill and not (found.price[problem.pool] > 0)[used].all():  # if every pool has a price, nothing is left over
        x = _shortest_first(problem, left, work * (found.level * (1.0 - _SLACK)))
    rate = problem.throughput(x)
    seconds = float((left[able] / rate[able]).max())
    due = np.divide(work * found.level, rate, out=np.zeros(problem.jobs), where=rate > 0)
    return Shares(x=x, objective=seconds, bound=1.0 / found.level, price=found.price, due=np.clip(due, 0.0, 1.0))


def _shortest_first(problem: Problem, left: Float, least: Float) -> Float:
    """Shares in which every job has its ``least`` rate and the rest goes to where it completes the largest parts of
    jobs.

    Of equal jobs those with the least work left have it first. In proportion to work left, all jobs of a batch would
    end together, at its end.
    """
    fastest = np.where(problem.active, problem.fastest, 1.0)
    weight = np.where(problem.active, fastest / left, 0.0)
    # Solvers cannot see much smaller gains; without this, those jobs would get nothing of the rest.
    weight = np.maximum(weight, _SMALLEST * weight.max(initial=0.0))
    return best_total(problem, problem.rate * (weight / fastest)[:, None], least).x
