"""Intervals that hold as often as they say: learned from past errors, those of forecasts that are still open included.

A forecast is a base in seconds; what it turns out to be is a ratio to it. The interval lies between two quantiles of past ratios
(conformal prediction, Vovk et al. 2005), with three corrections that a running scheduler needs, for its errors are no sample of one
distribution:

- Forecasts that are still open count as longer than they have been so far (Kaplan and Meier 1958). Without them jobs that end
  soon are over-represented.
- A ratio counts less, the more outcomes came after it and the further its base is from the one in question (Barber et al. 2023,
  "Conformal prediction beyond exchangeability", §3: weights fixed beforehand).
- Each outcome moves the level of each end (adaptive conformal inference, Gibbs and Candes 2021, equation 2), but only within
  ``LEVELS``: outcomes come late and many together, and would wind up a level without bounds. An upper end is missed when its time
  passes, not when the job ends at last.

Differs from the papers: a level below 0 stands for an end beyond all past ratios, by ``BEYOND`` on the logarithmic axis, where
theirs is infinite; with ``LEVELS``, their bound on the long-run share of misses does not hold in every case. Ratios are kept by
kind, the last ``WINDOW`` of each. Nothing of the future is used, and there is no clock and no randomness: the same log gives the
same intervals.
"""

from __future__ import annotations

import heapq
import math
from collections.abc import Callable
from dataclasses import dataclass, field
from itertools import islice

import numpy as np

from themis.model.units import Float, Int, Seconds

Interval = tuple[Seconds, Seconds]
UNKNOWN: Interval = (math.nan, math.nan)
LOW, HIGH = 0.1, 0.9
Z = 1.2816
"""Standard deviations from the median to either end of an 80 % interval."""
FEWEST = 10
"""Forecasts that came true before the first interval."""
WINDOW = 300
"""Outcomes of a kind that are kept."""
OPEN = 150
"""Open forecasts of a kind that are looked at, the newest ones."""
HALF_LIFE = 50
"""Outcomes after which a ratio counts half."""
NEAR = 0.5
"""Distance of two bases on the logarithmic axis at which a ratio counts 1/e; never less than ``LEAST_NEAR``."""
LEAST_NEAR = 0.1
STEP = 0.03
"""Step size of a level: gamma of Gibbs and Candes."""
LEVELS = (-0.5, 0.5)
"""A level stays between these: at 0.5 an end is the median."""
BEYOND = 4.0
"""Distance of an end beyond all past ratios, on the logarithmic axis, for each 1 of its level below 0."""
_LATE = 0.5 ** (np.arange(WINDOW, 0.0, -1.0) / HALF_LIFE)
_SAME = 1e-6
LEAST_S = 1.0
"""Seconds below which forecasts are one."""


@dataclass(slots=True)
class _Open:
    """A forecast that has not come true; ``low`` and ``high`` are instants, NaN without an interval."""

    made_at: Seconds
    base: Seconds
    log: float
    kind: str
    low: Seconds
    high: Seconds
    passed: bool = False
    """True if its upper end was missed, or its lower one held: already learned from."""
    begun: bool = False


@dataclass(slots=True)
class _Kind:
    """State of one kind: ratios and the logarithms of their bases, oldest first, open forecasts, both ends' levels."""

    ratios: Float = field(default_factory=lambda: np.zeros(0))
    bases: Float = field(default_factory=lambda: np.zeros(0))
    low: float = LOW
    high: float = 1.0 - HIGH
    open: dict[int, int] = field(default_factory=dict)
    """Column of each open forecast in ``_made``, by its number, oldest first."""
    _made: Float = field(default_factory=lambda: np.zeros((3, 4 * OPEN)))
    """When each forecast was made, its base, and the logarithm of that."""
    _columns: int = 0
    _order: Int | None = None

    def begin(self, number: int, made_at: Seconds, base: Seconds, log: float) -> None:
        """Keep an open forecast."""
        if self._columns == self._made.shape[1]:
            kept = np.fromiter(self.open.values(), np.int64)
            made = np.zeros((3, max(2 * len(kept), 4 * OPEN)))
            made[:, : len(kept)] = self._made[:, kept]
            self._made, self._columns, self.open = made, len(kept), dict(zip(self.open, range(len(kept))))
        self._made[:, self._columns] = made_at, base, log
        self.open[number] = self._columns
        self._columns += 1

    def still(self) -> Float:
        """[3, N], the newest open forecasts, of these the newest first: when made, base, its logarithm."""
        return self._made[:, np.fromiter(islice(reversed(self.open.values()), OPEN), np.int64)]

    def learn(self, ratio: float, log: float) -> None:
        """A forecast came true."""
        self.ratios = np.append(self.ratios, ratio)[-WINDOW:]
        self.bases = np.append(self.bases, log)[-WINDOW:]
        self._order = None

    @property
    def order(self) -> Int:
        """The ratios' order."""
        if self._order is None:
            self._order = np.argsort(self.ratios, kind="stable")
        return self._order


@dataclass(slots=True)
class Calibrated:
    """Calibration from forecasts and outcomes, given in order of time.

    Attributes
    ----------
    held, made : intervals that held, and that came true or were missed, by kind.
    """

    assumed: Callable[[str], float] | None = None
    """Spread of the logarithm of a kind's ratios until ``FEWEST`` are known; infinite or None: no interval before."""
    kinds: dict[str, _Kind] = field(default_factory=dict)
    open: dict[int, _Open] = field(default_factory=dict)
    made: dict[str, int] = field(default_factory=dict)
    held: dict[str, int] = field(default_factory=dict)
    below: dict[str, int] = field(default_factory=dict)
    _due: list[tuple[Seconds, int, bool]] = field(default_factory=list)
    _next: int = 0

    def add(self, now: Seconds, base: Seconds, kind: str) -> int:
        """A forecast is made of something ``base`` seconds ahead; returns its number."""
        self.pass_(now)
        low, high = self.interval(now, base, kind)
        number, self._next = self._next, self._next + 1
        base = max(base, LEAST_S)
        self.open[number] = _Open(now, base, math.log(base), kind, low, high)
        self._kind(kind).begin(number, now, base, math.log(base))
        if not math.isnan(high):
            heapq.heappush(self._due, (low, number, False))
            heapq.heappush(self._due, (high, number, True))
        return number

    def interval(self, now: Seconds, base: Seconds, kind: str) -> Interval:
        """The 80 % interval of the forecast; NaN while too few forecasts have come true and nothing is assumed."""
        low, _, high = self.forecast(now, base, kind)
        return low, high

    def forecast(self, now: Seconds, base: Seconds, kind: str) -> tuple[Seconds, Seconds, Seconds]:
        """The 80 % interval and the median between its ends; NaN as for ``interval``."""
        known, base = self.kinds.get(kind), max(base, LEAST_S)
        if known is None or len(known.ratios) < FEWEST:
            spread = self.assumed(kind) if self.assumed is not None else math.inf
            if math.isinf(spread):
                return math.nan, math.nan, math.nan
            return now + base * math.exp(-Z * spread), now + base, now + base * math.exp(Z * spread)
        made_at, bases, logs = known.still()
        n = len(known.ratios)
        near = _near(np.concatenate([known.bases, logs]), base)
        low, middle, high = quantiles(
            known.ratios,
            (now - made_at) / bases,
            levels=(known.low, 0.5, 1.0 - known.high),
            weights=(_LATE[WINDOW - n :] * near[:n], near[n:]),
            order=known.order,
        )
        return now + base * low, now + base * min(max(middle, low), high), now + base * high

    def known(self, number: int) -> Interval:
        """The interval that a forecast was made with."""
        one = self.open[number]
        return one.low, one.high

    def end(self, number: int, now: Seconds) -> None:
        """A forecast came true."""
        self.pass_(now)
        one = self._close(number)
        if one is None:
            return
        kind = self._kind(one.kind)
        kind.learn((now - one.made_at) / one.base, one.log)
        if math.isnan(one.high):
            return
        early = now < one.low - _SAME
        if not one.begun:
            kind.low = _moved(kind.low, missed=early)
        if not one.passed:
            kind.high = _moved(kind.high, missed=False)
            name = one.kind
            self.made[name] = self.made.get(name, 0) + 1
            self.held[name] = self.held.get(name, 0) + (not early)
            self.below[name] = self.below.get(name, 0) + early

    def drop(self, number: int) -> None:
        """Drop a forecast that can no longer come true: nothing is learned."""
        self._close(number)

    def _close(self, number: int) -> _Open | None:
        one = self.open.pop(number, None)
        if one is not None:
            del self.kinds[one.kind].open[number]
        return one

    def pass_(self, now: Seconds) -> None:
        """Learn from ends whose time has passed."""
        while self._due and self._due[0][0] < now - _SAME:
            _, number, upper = heapq.heappop(self._due)
            one = self.open.get(number)
            if one is None:
                continue
            kind = self._kind(one.kind)
            if upper:
                one.passed = True
                kind.high = _moved(kind.high, missed=True)
                self.made[one.kind] = self.made.get(one.kind, 0) + 1
            else:
                one.begun = True
                kind.low = _moved(kind.low, missed=False)

    def _kind(self, name: str) -> _Kind:
        if (kind := self.kinds.get(name)) is None:
            kind = self.kinds[name] = _Kind()
        return kind


def quantiles(
    ratios: Float,
    still: Float,
    *,
    levels: tuple[float, ...] = (LOW, HIGH),
    weights: tuple[Float, Float] | None = None,
    order: Int | None = None,
) -> tuple[float, ...]:
    """Quantiles of ratios [N] of which those in ``still`` [M] are known to be larger (Kaplan and Meier).

    Parameters
    ----------
    levels : of each, rising. Below 0 one lies under all ratios, above 1 the last one over all, by ``BEYOND`` for each 1.
    weights : [N] and [M], above 0, weight of each; equal by default. ``order`` : of the ratios, where it is known.
    """
    order = np.argsort(ratios, kind="stable") if order is None else order
    later = np.argsort(still, kind="stable")
    at, beyond = ratios[order], still[later]
    n = len(at)
    if weights is None:
        count, each = float(n), np.ones(n)
        open_from = len(beyond) - np.arange(len(beyond) + 1.0)
    else:
        each, of_open = weights[0][order], weights[1][later]
        # Effective sample size: this many ratios of equal weight are as informative (Kish 1965).
        count = float(each.sum() ** 2 / (each @ each))
        open_from = np.append(np.cumsum(of_open[::-1])[::-1], 0.0)
    at_risk = np.cumsum(each[::-1])[::-1] + open_from[np.searchsorted(beyond, at, side="left")]
    survive = np.cumprod(1.0 - each / at_risk)
    # Half a rank more to either side: n ratios make n + 1 gaps.
    gone = (1.0 - survive) * count / (count + 1.0)
    *lower, first = np.searchsorted(gone, levels).tolist()
    low = [float(at[min(i, n - 1)]) * math.exp(BEYOND * min(level, 0.0)) for i, level in zip(lower, levels)]
    high = float(at[first]) if first < n else float(max(at[-1], beyond[-1] if len(beyond) else 0.0))
    high *= math.exp(BEYOND * max(levels[-1] - 1.0, 0.0))
    return *low, max(high, low[0])


def _near(bases: Float, base: Seconds) -> Float:
    """[N], how much forecasts with bases of these logarithms count for one of ``base``."""
    out: Float = np.maximum(np.exp(-np.abs(bases - math.log(base)) / NEAR), LEAST_NEAR)
    return out


def _moved(level: float, *, missed: bool) -> float:
    """The level of an end after one more outcome: down by ``STEP`` times 0.9 if it was missed, else up by a ninth of that."""
    return min(max(level + STEP * (LOW - missed), LEVELS[0]), LEVELS[1])
