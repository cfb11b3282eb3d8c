"""A window of rounds as numbers: what a job is worth, and has left, after so many rounds (Shockwave §6, appendix G).

    maximise  sum_j value[j, n_j] - pull * H(n),   H = max(sum_j gpus_j * left[j, n_j] / capacity, max_j left[j, n_j])

over whole rounds n_j in 0..T with sum_j gpus_j * n_j <= capacity * T. The objective depends on how many rounds a job
gets, not on which: appendix H's order of regimes holds by itself, as rounds are spent on the regimes in order.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from themis.model.ahead import Ahead
from themis.model.units import Float, Int, Seconds

RHO_RANGE = (0.2, 5.0)
"""Forecast finish-time fairness is clipped to this before it becomes a weight: no weight outgrows the solver's tolerance."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Window:
    """The planning problem of J jobs over T rounds.

    Attributes
    ----------
    gpus : Int[J], gang sizes, at least 1 and at most ``capacity``.
    value : Float[J, T+1], weighted log of progress after n rounds; never falls in n.
    left : Float[J, T+1], isolated seconds left after n rounds; falls by at most a round's length, never below 0.
    useful : Int[J], rounds after which more change nothing.
    pull : price of a second of H, >= 0.
    capacity : GPUs in each round.
    """

    gpus: Int
    value: Float
    left: Float
    useful: Int
    pull: float
    capacity: int

    @property
    def jobs(self) -> int:
        """J."""
        return len(self.gpus)

    @property
    def rounds(self) -> int:
        """T."""
        return int(self.value.shape[1]) - 1

    def makespan(self, n: Int) -> Seconds:
        """H, the lower bound of the time that all jobs' work takes after these rounds (eq. 10, with gangs)."""
        if not self.jobs:
            return 0.0
        left = self.left[np.arange(self.jobs), n]
        return max(float(self.gpus @ left) / self.capacity, float(left.max()))

    def objective(self, n: Int) -> float:
        """Welfare less the price of H at these counts, [J]."""
        return float(self.value[np.arange(self.jobs), n].sum()) - self.pull * self.makespan(n)


def progress(ahead: Ahead, seconds: Float) -> Float:
    """Share of its epochs that each job has done after so many more seconds alone, [J, n] for seconds [J, n] (eq. 7).

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


def window_of(
    ahead: Ahead, gpus: Int, *, weight: Float, skipped: Float, started: Float, rounds: int, round_s: Seconds,
    pull: float, capacity: int,
) -> Window:  # fmt: skip
    """The problem from forecasts.

    Parameters
    ----------
    weight : [J], factor of each job's log of progress.
    skipped : [J], seconds of a job's first round that its start takes.
    started : [J], seconds that it trains before the window begins.
    """
    granted = np.maximum(np.arange(rounds + 1) * round_s - skipped[:, None], 0.0)
    seconds = np.minimum(started[:, None] + granted, ahead.left_s[:, None])
    left = np.maximum(ahead.left_s[:, None] - seconds, 0.0)
    # A job without progress would be worth -inf: everybody is taken to have done one isolated round.
    done = progress(ahead, seconds) + np.minimum(round_s / ahead.isolated_s, 1.0)[:, None]
    useful = np.minimum((left > 1e-9).sum(axis=1), rounds)
    return Window(
        gpus=gpus, value=weight[:, None] * np.log(done), left=left, useful=useful, pull=pull, capacity=capacity
    )
