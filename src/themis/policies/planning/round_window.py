"""Value of a job, and its work left, after a number of rounds of a window (Shockwave §6, appendix G).

Forecasts become the arrays of ``themis.optimize.rounds.window``. The objective depends on how many rounds a job gets,
not on which: appendix H's order of regimes holds by itself, as rounds are spent on the regimes in order.
"""

from __future__ import annotations

import numpy as np

from themis.model.forecast import Ahead
from themis.model.units import Float, Int, Seconds
from themis.optimize.rounds.window import Window

RHO_RANGE = (0.2, 5.0)
"""Forecast finish-time fairness is clipped to this before it becomes a weight: no weight outgrows the solver's tolerance."""


def progress(ahead: Ahead, seconds: Float) -> Float:
    """Share of its epochs that each job has done after this many more seconds alone, [J, n] for seconds [J, n] (eq. 7).

    Rounds are spent on the forecast regimes in order; past the last, nothing is gained.
    """
    if not len(ahead.progress):
        return np.zeros(seconds.shape)
    # All jobs end to end on one axis of time, so that one interpolation serves all.
    time = np.concatenate([[0.0], np.cumsum(ahead.seconds)])
    share = np.concatenate([[0.0], np.cumsum(ahead.share)])
    begin, end = time[ahead.ptr[:-1]], time[ahead.ptr[1:]]
    at = np.minimum(begin[:, None] + seconds, end[:, None])
    gained = np.interp(at, time, share) - share[ahead.ptr[:-1]][:, None]
    out: Float = np.minimum(ahead.progress[:, None] + gained, 1.0)
    return out


def forecast_rho(ahead: Ahead, elapsed: Float) -> Float:
    """Finish-time fairness as forecast, rho = (L + W + R N) / (P N), [J]; L + W is the time since arrival (eq. 9)."""
    fair = ahead.isolated_s * ahead.contention
    out: Float = (elapsed + ahead.left_s * ahead.contention) / fair
    return out


def budgets(rho: Float, power: float, weight: Float) -> Float:
    """Budgets in the market: rho clipped, to this power, times the job's weight, over their mean, [J] (eq. 11; §2.2)."""
    raised = weight * np.clip(rho, *RHO_RANGE) ** power
    out: Float = raised / raised.mean() if len(raised) else raised
    return out


def needed(ahead: Ahead, skipped: Float, started: Float, round_s: Seconds) -> Int:
    """Rounds that each job needs to its end, [J], its start included."""
    after = ahead.left_s - started
    rounds: Int = np.where(after > 1e-9, np.ceil((after + skipped) / round_s - 1e-9), 0.0).astype(np.int64)
    return rounds


def columns(rounds: int, fine: int = 20, growth: float = 0.1) -> Int:
    """Rounds in each column of a window: one in each of the first ``fine`` columns, then a tenth of all rounds before."""
    out, total = [1] * min(rounds, fine), min(rounds, fine)
    while total < rounds:
        out.append(max(1, round(growth * total)))
        total += out[-1]
    return np.array(out, dtype=np.int64)


def all_work(rounds: Int, gpus: Int, capacity: int) -> int:
    """T of a window that holds all work: the rounds that it fills, and the longest job's after them (Graham's bound)."""
    return max(-(-int(gpus @ rounds) // max(capacity, 1)) + int(rounds.max(initial=0)), 1)


def window_of(
    ahead: Ahead,
    gpus: Int,
    *,
    weight: Float,
    skipped: Float,
    started: Float,
    lengths: Int,
    round_s: Seconds,
    pull: float,
    capacity: int,
) -> Window:
    """The problem from forecasts.

    Parameters
    ----------
    weight : [J], factor of each job's log of progress.
    skipped : [J], seconds of a job's first round that its start takes.
    started : [J], seconds that it trains before the window begins. ``lengths`` : [C], rounds in each column.
    """
    ends = np.concatenate([[0], np.cumsum(lengths)])
    spent = np.minimum(ends, needed(ahead, skipped, started, round_s)[:, None])
    granted = np.maximum(spent * round_s - skipped[:, None], 0.0)
    seconds = np.minimum(started[:, None] + granted, ahead.left_s[:, None])
    remains = np.maximum(ahead.left_s[:, None] - seconds, 0.0)
    # A job may outlast its mean forecast: the makespan's bound covers that risk, whatever rounds the job got.
    left = np.where(ahead.left_s > 0, ahead.risk_s, 0.0)[:, None] - seconds
    # A job without progress would be worth -inf: every job is taken to have done one isolated round.
    done = progress(ahead, seconds) + np.minimum(round_s / ahead.isolated_s, 1.0)[:, None]
    useful = np.minimum((remains > 1e-9).sum(axis=1), len(lengths))
    return Window(
        gpus=gpus,
        lengths=lengths,
        spent=spent,
        value=weight[:, None] * np.log(done),
        left=left,
        useful=useful,
        pull=pull,
        capacity=capacity,
    )
