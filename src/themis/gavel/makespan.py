"""Makespan: Gavel §4.2. ``minimise max_j left_j / throughput(j, X)``, one program in 1 / makespan, not a bisection."""

from __future__ import annotations

import numpy as np

from themis.gavel.filling import flat, water_fill
from themis.gavel.level import highest_level
from themis.gavel.problem import Problem, Shares
from themis.model.units import Float


def min_makespan(problem: Problem, left: Float, *, fill: bool = True) -> Shares:
    """Minimise the time until the last job ends, were the shares kept; ``objective`` and ``bound`` are seconds.

    Parameters
    ----------
    left : [J], work left in the problem's unit of work; > 0. ``fill`` : hand out what the objective leaves over, in
        proportion to work left.
    """
    able = problem.active
    if not able.any():
        x = np.zeros((problem.jobs, problem.types))
        return Shares(x=x, objective=0.0, bound=0.0, price=np.zeros(len(problem.workers)))
    work = np.where(able, left, 0.0)
    ceiling = float((problem.fastest[able] / left[able]).min())
    found = highest_level(problem, lambda t: work * t, ceiling)
    x = found.x
    if fill:
        unit = np.where(able, left, 1.0)
        x = water_fill(problem, unit, flat(np.ones(problem.jobs)), np.where(able, found.level, 0.0)).x
    rate = problem.throughput(x)
    seconds = float((left[able] / rate[able]).max())
    due = np.divide(work * found.level, rate, out=np.zeros(problem.jobs), where=rate > 0)
    return Shares(x=x, objective=seconds, bound=1.0 / found.level, price=found.price, due=np.clip(due, 0.0, 1.0))
