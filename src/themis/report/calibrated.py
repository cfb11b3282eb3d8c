"""Intervals that hold as often as they say: learned from past errors, those of forecasts that are still open included.

A forecast is a base in seconds; what it turns out to be is a ratio to it. The interval is from the 10th to the 90th percentile
of past ratios (conformal prediction, Vovk et al. 2005) with two corrections that a running scheduler needs:

- Forecasts that are still open count as longer than they have been so far (Kaplan and Meier 1958). Without them jobs that end
  soon are over-represented.
- Each end is moved by how often it was missed lately (adaptive conformal inference, Gibbs and Candès 2021, on a logarithmic scale),
  so that load may change. An upper end is missed when its time passes, not when the job ends at last.

Ratios are kept by kind and horizon, the last ``WINDOW`` of each; a horizon with few borrows those of its whole kind. Nothing of the
future is used, and there is no clock and no randomness: the same log gives the same intervals.
"""

from __future__ import annotations

import heapq
import math
from collections import deque
from dataclasses import dataclass, field
from itertools import islice

import numpy as np

from themis.model.units import Float, Seconds

Interval = tuple[Seconds, Seconds]
UNKNOWN: Interval = (math.nan, math.nan)
LOW, HIGH = 0.1, 0.9
FEWEST = 10
"""Forecasts that came true before the first interval."""
OF_HORIZON = 30
"""Forecasts of a horizon that came true before it stands for itself."""
WINDOW = 150
RATE = 0.12
"""Step of an end on the logarithmic axis when it was missed; a hit moves it back by a ninth of it."""
_SAME = 1e-6
_ANY = -1
LEAST_S = 1.0
"""Seconds below which forecasts are one."""


@dataclass(slots=True)
class _Open:
    """A forecast that has not come true; ``low`` and ``high`` are instants, NaN without an interval."""

    made_at: Seconds
    base: Seconds
    bin: tuple[str, int]
    low: Seconds
    high: Seconds
    passed: bool = False
    """Whether its upper end was missed, or its lower one held: already learned from."""
    begun: bool = False


@dataclass(slots=True)
class _Kind:
    """What is known of one kind: its ratios by horizon, and how far its ends were moved."""

    ratios: dict[int, deque[float]] = field(default_factory=dict)
    every: deque[float] = field(default_factory=lambda: deque(maxlen=2 * WINDOW))
    low: float = 0.0
    high: float = 0.0


@dataclass(slots=True)
class Calibrated:
    """Takes forecasts and outcomes in order of time.

    Attributes
    ----------
    held, made : intervals that held, and that came true or were missed, by kind.
    """

    kinds: dict[str, _Kind] = field(default_factory=dict)
    open: dict[int, _Open] = field(default_factory=dict)
    made: dict[str, int] = field(default_factory=dict)
    held: dict[str, int] = field(default_factory=dict)
    below: dict[str, int] = field(default_factory=dict)
    _groups: dict[tuple[str, int], dict[int, _Open]] = field(default_factory=dict)
    """Open forecasts of each kind and horizon, in order; with horizon -1, of each kind."""
    _due: list[tuple[Seconds, int, bool]] = field(default_factory=list)
    _next: int = 0

    def add(self, now: Seconds, base: Seconds, kind: str) -> int:
        """A forecast is made of something ``base`` seconds ahead; returns its number."""
        self.pass_(now)
        low, high = self.interval(now, base, kind)
        number, self._next = self._next, self._next + 1
        self.open[number] = one = _Open(now, max(base, LEAST_S), (kind, _horizon(base)), low, high)
        for group in (one.bin, (kind, _ANY)):
            self._groups.setdefault(group, {})[number] = one
        if not math.isnan(high):
            heapq.heappush(self._due, (low, number, False))
            heapq.heappush(self._due, (high, number, True))
        return number

    def interval(self, now: Seconds, base: Seconds, kind: str) -> Interval:
        """Instants between which it comes true four times of five; NaN while too little has come true."""
        known = self.kinds.get(kind)
        if known is None or len(known.every) < FEWEST:
            return UNKNOWN
        base, horizon = max(base, LEAST_S), _horizon(base)
        own = known.ratios.get(horizon, ())
        alone = len(own) >= OF_HORIZON
        last = islice(reversed(self._groups.get((kind, horizon if alone else _ANY), {}).values()), WINDOW)
        still = [(now - one.made_at) / one.base for one in last]
        low, high = quantiles(np.array(own if alone else known.every), np.array(still))
        return now + base * low * math.exp(-known.low), now + base * high * math.exp(known.high)

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
        kind = self.kinds.setdefault(one.bin[0], _Kind())
        ratio = (now - one.made_at) / one.base
        kind.ratios.setdefault(one.bin[1], deque(maxlen=WINDOW)).append(ratio)
        kind.every.append(ratio)
        if math.isnan(one.high):
            return
        early = now < one.low - _SAME
        if not one.begun:
            _move_low(kind, missed=early)
        if not one.passed:
            _move_high(kind, missed=False)
            name = one.bin[0]
            self.made[name] = self.made.get(name, 0) + 1
            self.held[name] = self.held.get(name, 0) + (not early)
            self.below[name] = self.below.get(name, 0) + early

    def drop(self, number: int) -> None:
        """It will never come true: nothing is learned."""
        self._close(number)

    def _close(self, number: int) -> _Open | None:
        one = self.open.pop(number, None)
        if one is not None:
            for group in (one.bin, (one.bin[0], _ANY)):
                del self._groups[group][number]
        return one

    def pass_(self, now: Seconds) -> None:
        """Learn from ends whose time has passed."""
        while self._due and self._due[0][0] < now - _SAME:
            _, number, upper = heapq.heappop(self._due)
            one = self.open.get(number)
            if one is None:
                continue
            kind = self.kinds.setdefault(one.bin[0], _Kind())
            if upper:
                one.passed = True
                _move_high(kind, missed=True)
                self.made[one.bin[0]] = self.made.get(one.bin[0], 0) + 1
            else:
                one.begun = True
                _move_low(kind, missed=False)


def quantiles(ratios: Float, still: Float) -> tuple[float, float]:
    """The ``LOW`` and ``HIGH`` quantile of ratios of which those in ``still`` are known to be larger (Kaplan and Meier)."""
    order = np.argsort(ratios, kind="stable")
    at = ratios[order]
    beyond = np.sort(still)
    n = len(at)
    at_risk = (n - np.arange(n)) + (len(beyond) - np.searchsorted(beyond, at, side="left"))
    survive = np.cumprod(1.0 - 1.0 / at_risk)
    # Half a rank more to either side: n ratios make n + 1 gaps.
    gone = (1.0 - survive) * n / (n + 1.0)
    low = float(at[min(int(np.searchsorted(gone, LOW)), n - 1)])
    first = int(np.searchsorted(gone, HIGH))
    high = float(at[first]) if first < n else float(max(at[-1], beyond[-1] if len(beyond) else 0.0))
    return low, max(high, low)


def _move_low(kind: _Kind, *, missed: bool) -> None:
    kind.low += RATE * (1.0 - LOW) if missed else -RATE * LOW


def _move_high(kind: _Kind, *, missed: bool) -> None:
    kind.high += RATE * HIGH if missed else -RATE * (1.0 - HIGH)


def _horizon(base: Seconds) -> int:
    """Forecasts within a factor of four are one horizon."""
    return int(math.log2(max(base, LEAST_S)) // 2)
