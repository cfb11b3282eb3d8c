"""Max-min fairness over normalised effective throughput (least attained service): Gavel §4.1.

maximise min_j  gpus_j throughput(j, X) / (w_j throughput(j, X_equal))
"""

from __future__ import annotations

import numpy as np

from themis.model.units import Float
from themis.optimize.shares.filling import flat, water_fill
from themis.optimize.shares.level import highest_level
from themis.optimize.shares.problem import Alike, Problem, Shares


def normalised_unit(problem: Problem) -> Float:
    """[J], the rate that counts as a normalised effective throughput of 1: ``throughput(j, X_equal) / gpus_j``."""
    out: Float = problem.equal_rate() / problem.gpus
    return out


def normalised(problem: Problem, x: Float) -> Float:
    """[J], normalised effective throughput of shares; infinite for jobs that cannot run."""
    unit = normalised_unit(problem)
    out: Float = np.divide(problem.throughput(x), unit, out=np.full(problem.jobs, np.inf), where=unit > 0)
    return out


def max_min(problem: Problem, weight: Float, *, fill: bool = True) -> Shares:
    """Maximise the least weighted normalised throughput.

    Parameters
    ----------
    weight : [J], > 0.
    fill : hand out what the objective leaves over, by equal growth of the jobs that can still use it.
    """
    able = problem.active
    if fill and able.any() and float(np.ptp(weight[able])) == 0.0:
        # All grow equally from the start: the filling is one, and its first level is the objective.
        return max_min_water_filling(problem, weight)
    unit = weight * normalised_unit(problem)
    safe = np.where(able, unit, 1.0)
    ceiling = float((problem.fastest / safe)[able].min(initial=np.inf)) if able.any() else 0.0
    found = highest_level(problem, lambda t: np.minimum(unit * t, problem.fastest), ceiling)
    x = found.x
    if fill and able.any():
        x = water_fill(problem, safe, flat(np.ones(problem.jobs)), np.where(able, found.level, 0.0)).x
    return Shares(x=x, objective=least(problem, weight, x), bound=found.level, price=found.price)


def max_min_water_filling(problem: Problem, weight: Float) -> Shares:
    """The lexicographic max-min of weighted normalised throughputs, Pareto efficient: Gavel §4.3 with flat weights.

    Its objective is the least one; the bound is the proof of that level.
    """
    unit = normalised_unit(problem)
    groups = Alike.by(problem.rate, problem.gpus, weight)
    found = water_fill(groups.merged(problem), unit[groups.first], flat(weight[groups.first]))
    able, x, amount = problem.active, found.x[groups.of], found.amount[groups.of]
    bound = float((amount / weight)[able].min(initial=np.inf)) if able.any() else 0.0
    return Shares(x=x, objective=least(problem, weight, x), bound=bound, price=found.price)


def least(problem: Problem, weight: Float, x: Float) -> float:
    """The objective: the least weighted normalised throughput of the jobs that can run; 0 if none can."""
    able = problem.active
    return float((normalised(problem, x) / weight)[able].min()) if able.any() else 0.0
