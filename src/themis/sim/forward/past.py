"""Errors of such simulations in the past of the same log, and intervals that are corrected by them.

From earlier states of the log the policy that was in force then is simulated forward, with what was known then; when the apps
ended is known now. Each end of the 80 % interval is moved by a factor on the time ahead, so that it would have held as often as
it says: conformalised quantile regression (Romano, Patterson and Candès 2019) for each end apart, on a logarithmic scale. Apps
that are still in the system count as longer than they have been so far, as in ``report.calibrated``.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from multiprocessing import TimeoutError
from time import monotonic

import numpy as np

from themis.model.units import Float, Seconds
from themis.report.calibrated import FEWEST, HIGH, LOW, quantiles
from themis.sim.dump import Dump
from themis.sim.forward.arrivals import Arrival
from themis.sim.forward.present_state import Ended, Present
from themis.sim.forward.question import MOST_HORIZON_S, Question
from themis.sim.forward.what_if_run import pool, simulate

SEEDS = 7
"""Simulations from each earlier state."""
MOST_FACTOR = 20.0
AHEAD = 1.5
"""Horizon of simulations from past states, as a multiple of the time that has passed since."""
LEAST_S = 1.0
"""Times ahead shorter than this count as this long."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Correction:
    """Factors on the time ahead of an interval's low end, the median and the high end; 1 where nothing was learned.

    Attributes
    ----------
    ended, still : past forecasts that came true, and of apps that are still in the system. ``held`` : how many intervals of
        those that came true held before any correction.
    """

    low: float = 1.0
    middle: float = 1.0
    high: float = 1.0
    ended: int = 0
    still: int = 0
    held: int = 0

    @property
    def learned(self) -> bool:
        """True if there was enough to learn from."""
        return self.ended >= FEWEST


@dataclass(frozen=True, slots=True)
class Forecast:
    """Seconds ahead of an app's end as forecast, and as it turned out: to the end, or so far where it has not ended."""

    low: Seconds
    middle: Seconds
    high: Seconds
    actual: Seconds
    ended: bool


def spread(ends: Float) -> Float:
    """[3, ...], the 10th percentile, the median and the 90th of simulated ends [S, ...], infinity included; NaN of NaN."""
    count = len(ends)
    ordered = np.sort(ends, axis=0)
    rank = [int(LOW * (count + 1)) - 1, (count - 1) // 2, int(np.ceil(HIGH * (count + 1))) - 1]
    out: Float = ordered[np.clip(rank, 0, count - 1)]
    return out


def learn(present: Present, allowed_s: Seconds, processes: int = 1) -> Correction:
    """Simulate forward from the past states, some in parallel; from as many as there is time for, those in the middle first."""
    now, end = present.now or present.core().state.now, monotonic() + allowed_s
    work = [
        _Past(present.past[i], now, present.history, present.began, present.ended)
        for i in _spread_out(len(present.past))
    ]
    found = list[Forecast]()
    if processes == 1 or len(work) < 2:
        for one in work:
            if (left := end - monotonic()) > 0:
                found += one.forecasts(left)
        return correction(found)
    with pool(min(processes, len(work))) as processes_of_its_own:
        jobs = [(one, allowed_s) for one in work]
        results = processes_of_its_own.imap(_in_process, jobs)
        with suppress(TimeoutError):
            for _ in work:
                found += results.next(max(end - monotonic(), 0.0))
    return correction(found)


@dataclass(frozen=True, slots=True)
class _Past:
    """A past state, and what is known now."""

    state: Dump
    now: Seconds
    history: Sequence[Arrival]
    began: Seconds
    ended: Mapping[int, Ended]

    def forecasts(self, allowed_s: Seconds) -> list[Forecast]:
        """The forecasts that were possible then; none if there is no time for them."""
        state = Present(dump=self.state).core().state
        then, held = state.now, state.apps.held
        if then >= self.now:
            return []
        known = Present(dump=self.state, history=[one for one in self.history if one.time <= then], began=self.began)
        # What would end later than this counts as ending there.
        horizon = max(AHEAD * (self.now - then), LEAST_S)
        asked = Question(seeds=range(1, SEEDS + 1), horizon_s=min(horizon, MOST_HORIZON_S))
        ends = simulate(known, asked, allowed_s)
        if ends.problems or len(ends.ends) < SEEDS:
            return []
        found = list[Forecast]()
        for a, *ahead in zip(ends.apps, *(np.minimum(spread(ends.ends[:, 0, :]) - then, horizon))):
            over = self.ended.get(a)
            came = over is not None and over.time <= self.now
            if held[a] or (came and over is not None and over.outcome != "completed"):
                continue
            actual = (over.time if over is not None and came else self.now) - then
            low, middle, high = (max(float(seconds), LEAST_S) for seconds in ahead)
            found.append(Forecast(low, middle, high, max(actual, LEAST_S), came))
        return found


def _in_process(job: tuple[_Past, Seconds]) -> list[Forecast]:
    past, allowed_s = job
    return past.forecasts(allowed_s)


def correction(forecasts: Sequence[Forecast]) -> Correction:
    """Correction from past forecasts; none if fewer than ``FEWEST`` came true."""
    ended, still = [f for f in forecasts if f.ended], [f for f in forecasts if not f.ended]
    counts = {"ended": len(ended), "still": len(still), "held": sum(f.low <= f.actual <= f.high for f in ended)}
    if len(ended) < FEWEST:
        return Correction(**counts)

    def ratios(name: str) -> tuple[Float, Float]:
        return tuple(np.array([f.actual / getattr(f, name) for f in group]) for group in (ended, still))  # type: ignore[return-value]

    low, _ = quantiles(*ratios("low"))
    _, high = quantiles(*ratios("high"))
    middle = _median(*ratios("middle"))
    low, middle, high = (float(np.clip(x, 1 / MOST_FACTOR, MOST_FACTOR)) for x in (low, middle, high))
    return Correction(low=low, middle=middle, high=high, **counts)


def corrected(ahead: Float, by: Correction) -> Float:
    """[3, ...], times ahead as ``spread`` gives them, corrected; in order."""
    out = np.array([ahead[0] * by.low, ahead[1] * by.middle, ahead[2] * by.high])
    out[0] = np.minimum(out[0], out[1])
    out[2] = np.maximum(out[2], out[1])
    return out


def _median(ratios: Float, still: Float) -> float:
    """The median of ratios of which those in ``still`` are known to be larger (Kaplan and Meier 1958)."""
    at = np.sort(ratios)
    at_risk = (len(at) - np.arange(len(at))) + (still[None, :] >= at[:, None]).sum(axis=1)
    gone = 1.0 - np.cumprod(1.0 - 1.0 / at_risk)
    return float(at[min(int(np.searchsorted(gone, 0.5)), len(at) - 1)])


def _spread_out(count: int) -> list[int]:
    """Positions in an order in which any first few lie apart: the one in the middle, then the quarters, and so on."""
    return sorted(range(count), key=lambda i: -((i + 1) & -(i + 1)))
