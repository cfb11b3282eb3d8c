"""95 % confidence intervals over seeds: uncertainty of a mean over few runs.

Seeds are the replications; the apps of one run are not independent of each other. Means, medians, maxima and fractions
get Student's t over the seeds' numbers. A 99th percentile that rests on few apps a run gets a two-stage bootstrap, which
draws seeds and then apps within each: it covers at least as often as it says, and is the narrower one with three seeds.
A maximum gets none, since no resample holds anything above it. ``benchmarks/bench_intervals.py`` measures how often each
interval holds the truth; docs/report.md has the table.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from scipy.special import stdtrit

from themis.model.units import Float

LEVEL = 0.95
REPLICATES = 1000
FEW_APPS = 2000
"""From this many apps on, twenty lie above the 99th percentile, and Student's t serves it as well as any number."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Interval:
    """A mean over seeds with its confidence interval; ``low`` and ``high`` are NaN with fewer than two seeds.

    Attributes
    ----------
    method : t | bootstrap, or empty where there is no interval.
    """

    mean: float
    low: float = math.nan
    high: float = math.nan
    method: str = ""

    @property
    def half(self) -> float:
        """Half the interval's width."""
        return (self.high - self.low) / 2

    @property
    def excludes_zero(self) -> bool:
        """True if the interval, of a difference, lies on one side of 0."""
        return self.low > 0 or self.high < 0


def t_interval(values: Sequence[float]) -> Interval:
    """Mean of the seeds' numbers with its interval by Student's t, n - 1 degrees of freedom; NaN is left out."""
    x = np.array([v for v in values if not math.isnan(v)])
    if not len(x):
        return Interval(mean=math.nan)
    mean = float(x.mean())
    if len(x) < 2:
        return Interval(mean=mean)
    half = float(stdtrit(len(x) - 1, (1 + LEVEL) / 2) * x.std(ddof=1) / math.sqrt(len(x)))
    return Interval(mean=mean, low=mean - half, high=mean + half, method="t")


def ratio_interval(over: Sequence[float], under: Sequence[float]) -> Interval:
    """Geometric mean of paired ratios ``over[i] / under[i]``, with Student's t interval on their logarithms.

    A ratio and its inverse get inverse intervals, and one run that is ten times worse weighs as much as one ten times better.
    Pairs with a number that is not above 0 and finite are left out.

    Raises
    ------
    ValueError : the two differ in length.
    """
    pairs = [(a, b) for a, b in zip(over, under, strict=True) if 0 < a < math.inf and 0 < b < math.inf]
    logs = t_interval([math.log(a / b) for a, b in pairs])
    return Interval(mean=math.exp(logs.mean), low=math.exp(logs.low), high=math.exp(logs.high), method=logs.method)


def p99_interval(samples: Sequence[Float], minus: Sequence[Float] | None = None) -> Interval:
    """Mean over seeds of the 99th percentile over apps, by a two-stage bootstrap (percentile interval, fixed draws).

    Runs of ``FEW_APPS`` and more get Student's t.

    Parameters
    ----------
    samples : for each seed, Float[A], one number an app.
    minus : the baseline's, app by app in the same order; then it is the difference of percentiles, and both sides of
        a replicate draw the same seeds and the same apps.
    """
    kept = [i for i, x in enumerate(samples) if len(x)]
    pairs = [(samples[i], minus[i] if minus is not None else None) for i in kept]
    if not pairs:
        return Interval(mean=math.nan)
    found = [float(_p99(x[None, :], b[None, :] if b is not None else None)[0]) for x, b in pairs]
    if len(pairs) < 2 or min(len(x) for x, _ in pairs) >= FEW_APPS:
        return t_interval(found)
    mean = float(np.mean(found))
    rng = np.random.default_rng(0)
    drawn = rng.integers(len(pairs), size=(REPLICATES, len(pairs)))
    total = np.zeros(REPLICATES)
    for i, (x, b) in enumerate(pairs):
        for column in drawn.T:
            here = np.flatnonzero(column == i)
            at = rng.integers(len(x), size=(len(here), len(x)))
            total[here] += _p99(x[at], b[at] if b is not None else None)
    low, high = np.quantile(total / len(pairs), [(1 - LEVEL) / 2, (1 + LEVEL) / 2])
    return Interval(mean=mean, low=float(low), high=float(high), method="bootstrap")


def _p99(x: Float, minus: Float | None) -> Float:
    """Percentiles of the rows [R, A], less those of the baseline."""
    if not x.size:
        return np.zeros(len(x))
    out: Float = np.percentile(x, 99, axis=1)
    return out if minus is None else out - np.percentile(minus, 99, axis=1)
