"""Curve stopping (Themis §4.3.2): jobs of an app that promise too little to continue, by their learning curves.

Each job's reports are fitted with ``a / (b i + 1) + c``, the form of ``LossCurve``, and extrapolated to its last step.
For a given b the best a >= 0 and c are linear least squares; b itself is tried at fixed values and every value counts
by its likelihood, so that a curve that has not yet bent says little. The forecast's variance is that of the fits plus
that between them.

The rule is HyperDrive's (Rasley et al., Middleware'17) and, before it, Domhan et al.'s (IJCAI'15): a job is poor once
the probability that it will be good enough falls below 5 %. Good enough is to end below the app's k-th best job:

    chance_j = F((mean_k - mean_j) / sqrt(deviation_j^2 + deviation_k^2))

F is Student's t distribution with as many degrees of freedom as the less observed of the two has reports beyond the
curve's three parameters: four reports can lie close to a curve by chance, so they need a wide gap.

Differs from HyperDrive: its user names a target to be reached, here it is what the app's best jobs are forecast to
reach; its curves are a mixture of eleven forms sampled by Markov chains, here one form on a grid; its slots per class of
jobs are the app scheduler's business (``policies.tuning.split``).

Pure functions of the reports; what has been reported is core state.
"""

from __future__ import annotations

import zlib
from dataclasses import dataclass

import numpy as np

from themis.model.units import Bool, Float, Int
from themis.model.workload import App, CurveStopping

SHAPES: Float = np.geomspace(0.1, 1000.0, 64)
"""Values tried for b times the job's last step: from nearly straight to flat after a hundredth of the run."""

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


def forecast(steps: Float, loss: Float, end: float) -> tuple[Float, Float]:
    """Mean and standard deviation of the losses of J jobs at step ``end``, [J] each.

    Parameters
    ----------
    steps : [n], where all of them reported, rising, above 0; n > 3. ``loss`` : [J, n].
    """
    n = len(steps)
    x, last = 1.0 / (SHAPES[:, None] * (steps / end) + 1.0), 1.0 / (SHAPES + 1.0)
    dx, mean_x = x - x.mean(axis=1, keepdims=True), x.mean(axis=1)
    mean_y = loss.mean(axis=1, keepdims=True)
    dy = loss - mean_y
    # einsum, not @: the sums must not depend on which BLAS is installed.
    spread, total = np.einsum("bn,bn->b", dx, dx), np.einsum("jn,jn->j", dy, dy)[:, None]
    cross = np.einsum("jn,bn->jb", dy, dx)
    spread = np.maximum(spread, 1e-30)  # reports too close to each other for any shape to tell them apart
    a = np.maximum(cross / spread, 0.0)
    # Below this residuals are rounding: a perfect fit must not outweigh its neighbours without bound.
    floor = 1e-12 * (total + n * mean_y * mean_y) + 1e-300
    residual = np.maximum(total - 2 * a * cross + a * a * spread, 0.0) + floor
    value = mean_y + a * (last - mean_x)
    variance = residual / (n - PARAMETERS) * (1 / n + (last - mean_x) ** 2 / spread)
    weight = (residual.min(axis=1, keepdims=True) / residual) ** (n / 2)
    weight /= weight.sum(axis=1, keepdims=True)
    mean = (weight * value).sum(axis=1)
    spread_of_fits = (value - mean[:, None]) ** 2
    return mean, np.sqrt((weight * (variance + spread_of_fits)).sum(axis=1))


def poor_jobs(mean: Float, deviation: Float, reports: Int, unfinished: Bool, tuner: CurveStopping) -> list[Verdict]:
    """The jobs that should stop now, in order of row; none while no more than ``keep`` jobs can be compared.

    Parameters
    ----------
    mean, deviation : [J], forecasts of the app's jobs; NaN without one (too few reports, or stopped before). A job that
        is done has its loss and deviation 0.
    reports : [J], how many reports a forecast rests on; ``DONE`` for jobs that are done.
    unfinished : [J], the job has not ended.
    """
    known: Int = np.flatnonzero(~np.isnan(mean))
    if len(known) <= tuner.keep:
        return []
    ranked = known[np.lexsort((known, mean[known]))]
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
    stop = (chance < 1 - tuner.confidence) & unfinished[behind]
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
    mean, deviation, done = np.full(len(total), np.nan), np.zeros(len(total)), total.copy()
    going, reports = np.ones(len(total), dtype=bool), np.zeros(len(total), dtype=np.int64)
    for n in range(1, len(checks) + 1):
        ended = going & (total <= checks[n - 1])
        going &= ~ended
        mean[ended] = (a / (b * total[:, None] + 1.0) + c)[ended, 0]
        deviation[ended], reports[ended] = 0.0, DONE
        if n >= tuner.warmup:
            for end in np.unique(total[going]).tolist():
                rows = np.flatnonzero(going & (total == end))
                mean[rows], deviation[rows] = forecast(checks[:n], loss[rows, :n], end)
                reports[rows] = n
        for verdict in poor_jobs(mean, deviation, reports, going, tuner):
            done[verdict.row], going[verdict.row], mean[verdict.row] = checks[n - 1], False, np.nan
    return done
