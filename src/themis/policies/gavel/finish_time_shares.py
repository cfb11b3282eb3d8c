"""Finish-time fairness of jobs: Gavel §4.2, after Themis.

    minimise max_j rho_j / w_j,   rho_j = (t_j + left_j / throughput(j, X)) / (t_iso_j + left_j / throughput(j, X_isolated))

In sigma = 1 / rho the rate that a job needs is left sigma / (w D - sigma t), with D the denominator: convex and rising,
so the engine's steps end at the exact optimum; no bisection over conic programs.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from themis.model.units import Float
from themis.optimize.shares.filling import flat, water_fill
from themis.optimize.shares.level import highest_level
from themis.optimize.shares.problem import Need, Problem, Shares
from themis.policies.gavel.max_min import normalised_unit


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class JobsProgress:
    """Progress of jobs.

    Attributes
    ----------
    left : [J], work left, in the problem's unit of work; > 0.
    elapsed : [J], seconds since arrival.
    isolated_elapsed : [J], seconds that the work done so far would have taken in isolation.
    isolated_rate : [J], throughput(j, X_isolated); > 0 for jobs that can run.
    """

    left: Float
    elapsed: Float
    isolated_elapsed: Float
    isolated_rate: Float

    def alone(self) -> Float:
        """[J], the denominator of rho: how long the job takes in isolation; infinite if it cannot run."""
        rate = self.isolated_rate
        out: Float = self.isolated_elapsed + np.divide(
            self.left, rate, out=np.full(len(self.left), np.inf), where=rate > 0
        )
        return out

    def rho(self, throughput: Float) -> Float:
        """[J], finish-time fairness at these effective throughputs; infinite where one is 0."""
        wait = np.divide(self.left, throughput, out=np.full(len(self.left), np.inf), where=throughput > 0)
        alone = self.alone()
        finite = np.isfinite(alone)
        out: Float = np.divide(self.elapsed + wait, alone, out=np.full(len(alone), np.inf), where=finite)
        return out


def needed(progress: JobsProgress, weight: Float, able: Float) -> Need:
    """Rates that bring everybody to ``rho / w <= 1 / sigma``, as a function of sigma."""
    alone = np.where(able > 0, weight * progress.alone(), 1.0)
    left, elapsed = np.where(able > 0, progress.left, 0.0), np.where(able > 0, progress.elapsed, 0.0)
    return lambda sigma: left * sigma / np.maximum(alone - sigma * elapsed, 1e-12 * alone)


def finish_time_fairness(problem: Problem, progress: JobsProgress, weight: Float, *, fill: bool = True) -> Shares:
    """Minimise the worst weighted rho; ``objective`` and ``bound`` are rho's, the bound below.

    Parameters
    ----------
    weight : [J], > 0; divides rho. ``fill`` : hand out what the objective leaves over.
    """
    able = problem.active
    if not able.any():
        x = np.zeros((problem.jobs, problem.types))
        return Shares(x=x, objective=0.0, bound=0.0, price=np.zeros(len(problem.workers)))
    fastest = np.where(able, problem.fastest, 1.0)
    ceiling = float((weight * progress.alone() / (progress.elapsed + progress.left / fastest))[able].min())
    need = needed(progress, weight, able.astype(np.float64))
    found = highest_level(problem, need, ceiling)
    x = found.x
    if fill:
        unit = np.where(able, normalised_unit(problem), 1.0)
        x = water_fill(problem, unit, flat(np.ones(problem.jobs)), need(found.level) / unit).x
    worst = float((progress.rho(problem.throughput(x)) / weight)[able].max())
    return Shares(x=x, objective=worst, bound=1.0 / found.level, price=found.price)
