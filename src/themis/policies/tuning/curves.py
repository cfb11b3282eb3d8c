"""Curve stopping (Themis §4.3.2): jobs of an app that promise too little to continue, by their learning curves.

Each job's reports are fitted with ``a g(b x) + c`` for eight forms g (``shapes``) and extrapolated to its last step;
x is the share of the run. For a given form and rate b the best a >= 0 and c are linear least squares, bounded so that the
forecast is not below the floor of losses. Forms and rates are tried at fixed values, and each counts by its likelihood,
so that a curve that has not yet bent says little. The forecast's variance is that of the fits plus that between them.

The rule is HyperDrive's (Rasley et al., Middleware'17) and, before it, Domhan et al.'s (IJCAI'15): a job is poor once
the probability that it will be good enough falls below 5 %. Good enough is to end below the app's k-th best job:

    chance_j = F((mean_k - mean_j) / sqrt(deviation_j^2 + deviation_k^2))

F is Student's t distribution with as many degrees of freedom as the less observed of the two has reports beyond the
curve's three parameters: four reports can lie close to a curve by chance, so they need a wide gap. The k jobs with the
lowest reported losses are never stopped.

Differs from HyperDrive: its user names a target to be reached, here it is what the app's best jobs are forecast to
reach; its mixture of eleven forms is sampled by Markov chains, here eight forms are tried on a grid; its slots per class
of jobs are the app scheduler's business (``policies.tuning.split``).

Pure functions of the reports; what has been reported is core state.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np

from themis.model.units import Bool, Float, Int
from themis.model.workload import App, CurveStopping

SLOW: Float = np.geomspace(0.1, 1000.0, 16)[:, None]
"""Rates tried for power laws and the logarithm: from nearly straight to flat after a hundredth of the run."""

FAST: Float = np.geomspace(0.5, 50.0, 16)[:, None]
"""Rates tried for forms that fall exponentially, or late and then steeply."""

MISFIT = 0.03
"""Error of every form, as a share of the reports' standard deviation: no run follows a formula more closely."""

PARAMETERS = 3
"""a, b and c: that many reports say nothing of how well a curve fits."""

DONE = 1_000_000_000
"""Report number of a job whose final loss is known."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    """A stopped job (row of the app's jobs): its forecast, the loss that it had to beat, and its chance of that."""

    row: int
    forecast: float
    deviation: float
    standard: float
    chance: float


WORST = 1e300
"""Loss of a job that ended without one."""


def shapes(x: Float) -> Float:
    """The forms at shares ``x`` of a run, [forms * rates, n]; all fall: power laws, exponential, Weibull, Hill, logarithm."""
    slow, fast = SLOW * x, FAST * x
    power = 1.0 / (slow + 1.0)
    forms = (np.sqrt(power), power, power**2, np.exp(-fast), np.exp(-(fast**2)))
    return np.concatenate((*forms, 1.0 / (1.0 + fast**2), 1.0 / (1.0 + fast**4), -np.log1p(slow)))


LAST: Float = shapes(np.ones(1))[:, 0]
"""The forms at a run's last step."""


def floor_of(lowest: float, highest: float, declared: float | None) -> float:
    """Lowest loss that a job of an app can end with: as declared; else 0, or by the reported range if some are below 0."""
    if declared is not None:
        return min(declared, lowest)
    return 0.0 if lowest >= 0 else lowest - (highest - lowest)


def forecast(steps: Float, loss: Float, end: float, floor: float = -np.inf) -> tuple[Float, Float]:
    """Mean and standard deviation of the losses of J jobs at step ``end``, [J] each.

    Parameters
    ----------
    steps : [n], where all of them reported, rising, above 0; n > 3. ``loss`` : [J, n].
    floor : no loss is below it.
    """
    n, last = len(steps), LAST
    x = shapes(steps / end)
    mean_x = x.mean(axis=1)
    dx = x - mean_x[:, None]
    mean_y = loss.mean(axis=1, keepdims=True)
    dy = loss - mean_y
    # einsum, not @: the sums must not depend on which BLAS is installed.
    spread, total = np.einsum("bn,bn->b", dx, dx), np.einsum("jn,jn->j", dy, dy)[:, None]
    cross = np.einsum("jn,bn->jb", dy, dx)
    spread = np.maximum(spread, 1e-30)  # reports too close to each other for any shape to tell them apart
    a = np.maximum(cross / spread, 0.0)
    value, residual = mean_y + a * (last - mean_x), total - 2 * a * cross + a * a * spread
    if floor > -np.inf:
        # Where least squares would end below the floor: those through (end, floor), with a alone to fit.
        h, y = x - last[:, None], loss - floor
        square = np.maximum(np.einsum("bn,bn->b", h, h), 1e-30)
        through = np.einsum("jn,bn->jb", y, h) ** 2 / square
        below = value < floor
        residual = np.where(below, np.einsum("jn,jn->j", y, y)[:, None] - through, residual)
        value = np.where(below, floor, value)
    # Below this residuals are rounding: a perfect fit must not outweigh its neighbours without bound.
    rounding = 1e-12 * (total + n * mean_y * mean_y) + 1e-300
    variance = (np.maximum(residual, 0.0) + rounding) / (n - PARAMETERS) + MISFIT**2 * total / n
    weight = (variance.min(axis=1, keepdims=True) / variance) ** ((n - PARAMETERS) / 2)
    weight /= weight.sum(axis=1, keepdims=True)
    mean = (weight * value).sum(axis=1)
    of_fits = variance * (1 / n + (last - mean_x) ** 2 / spread)
    return mean, np.sqrt((weight * (of_fits + (value - mean[:, None]) ** 2)).sum(axis=1))


def poor_jobs(
    mean: Float, deviation: Float, reports: Int, observed: Float, unfinished: Bool, tuner: CurveStopping
) -> list[Verdict]:
    """The jobs that should stop now, in order of row; none while no more than ``keep`` jobs can be compared.

    Parameters
    ----------
    mean, deviation : [J], forecasts of the app's jobs; NaN without one (too few reports, or stopped before). A job that
        is done has its loss and deviation 0.
    reports : [J], how many reports a forecast rests on; ``DONE`` for jobs that are done.
    observed : [J], the lowest loss that each job reported; the ``keep`` lowest of them continue, whatever is forecast.
    unfinished : [J], the job has not ended.
    """
    known: Int = np.flatnonzero(~np.isnan(mean))
    if len(known) <= tuner.keep:
        return []
    ranked = known[np.argsort(mean[known], kind="stable")]
    k = int(ranked[tuner.keep - 1])
    behind = ranked[tuner.keep :]
    # Jobs that reported no loss are equal, and behind all others.
    worth = np.minimum(mean, WORST)
    lead, both = worth[k] - worth[behind], np.hypot(deviation[behind], deviation[k])
    # Equal forecasts without any doubt are a draw; else a job behind without doubt has no chance.
    from scipy.special import stdtr  # takes longer to import than all of the core

    freedom = np.minimum(reports[behind], reports[k]) - float(PARAMETERS)
    with np.errstate(over="ignore"):
        chance = np.where(lead == 0, 0.5, stdtr(freedom, lead / np.maximum(both, 1e-300)))
    may_stop = unfinished.copy()
    may_stop[known[np.argsort(observed[known], kind="stable")][: tuner.keep]] = False
    stop = (chance < 1 - tuner.confidence) & may_stop[behind]
    return [
        Verdict(
            row=int(behind[i]),
            forecast=float(mean[behind[i]]),
            deviation=float(deviation[behind[i]]),
            standard=float(mean[k]),
            chance=float(chance[i]),
        )
        for i in np.flatnonzero(stop)[np.argsort(behind[stop], kind="stable")]
    ]


def observation_noise(seed: int, job: int, reports: int) -> Float:
    """Standard normal draws for a job's first reports: the same for (seed, job), however often it restarts."""
    return np.random.default_rng((seed, job)).standard_normal(reports)


def dry_run(app: App) -> Float:
    """Steps of each job of an app under curve stopping, [J], if all of them trained concurrently at the same speed.

    What a generator plans with and ``themis trace describe`` reports; in a cluster jobs take turns, and late ones meet
    a standard that is known already. Reports are as noisy as simulated ones, by draws that depend on the app's name.
    """
    tuner = app.tuner
    assert isinstance(tuner, CurveStopping)
    total = np.array([job.steps for job in app.jobs])
    checks: Float = tuner.check_steps * np.arange(1.0, total.max() // tuner.check_steps + 1.0)
    a, b, c = (np.array([[getattr(job.loss, name)] for job in app.jobs]) for name in "abc")
    seed = zlib.crc32(app.name.encode())
    noise = np.stack([observation_noise(seed, j, len(checks)) for j in range(len(app.jobs))])
    loss = (a / (b * checks + 1.0) + c) * (1.0 + tuner.noise * noise)
    return rehearse(checks, loss, total, (a / (b * total[:, None] + 1.0) + c)[:, 0], tuner)


Forecast: TypeAlias = Callable[[Float, Float, float, float], tuple[Float, Float]]
"""A function like ``forecast``."""


def rehearse(
    checks: Float, loss: Float, total: Float, final: Float, tuner: CurveStopping, extrapolate: Forecast = forecast
) -> Float:
    """Steps after which each job stops or ends, [J], where all report concurrently.

    Parameters
    ----------
    checks : [n], steps of the reports. ``loss`` : [J, n], the reports.
    total, final : [J], the jobs' steps and their losses after them.
    """
    mean, deviation, done = np.full(len(total), np.nan), np.zeros(len(total)), total.copy()
    going, reports = np.ones(len(total), dtype=bool), np.zeros(len(total), dtype=np.int64)
    observed = np.full(len(total), np.inf)
    for n in range(1, len(checks) + 1):
        ended = going & (total <= checks[n - 1])
        going &= ~ended
        mean[ended], deviation[ended], reports[ended] = final[ended], 0.0, DONE
        observed[ended] = np.minimum(observed, final)[ended]
        observed[going] = np.minimum(observed, loss[:, n - 1])[going]
        if n >= tuner.warmup:
            floor = floor_of(float(observed.min()), float(loss[:, :n].max()), tuner.floor)
            for end in np.unique(total[going]).tolist():
                rows = np.flatnonzero(going & (total == end))
                mean[rows], deviation[rows] = extrapolate(checks[:n], loss[rows, :n], end, floor)
                reports[rows] = n
        for verdict in poor_jobs(mean, deviation, reports, observed, going, tuner):
            done[verdict.row], going[verdict.row], mean[verdict.row] = checks[n - 1], False, np.nan
    return done
