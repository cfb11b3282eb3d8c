"""Statistics of finish-time fairness over the completed apps, or jobs, of a run: one field a statistic."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np

from themis.report.columns import PER_CENT, statistic, statistics_of

FAIR = 1.0 + 1e-9
"""Above this, an app was worse off than on its own 1/N; rounding is no unfairness."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RhoStats:
    """Distribution of finish-time fairness over completed apps, or jobs; NaN when there are none."""

    max: float = statistic("The worst app's (or job's) rho.", title="max ρ", of=lambda x: float(x.max()))
    mean: float = statistic("Mean rho.", title="mean ρ", of=lambda x: float(x.mean()))
    median: float = statistic("Median rho.", title="med ρ", of=lambda x: float(np.median(x)))
    p99: float = statistic(
        "99th percentile of rho, interpolated between ranks.", title="p99 ρ", of=lambda x: float(np.percentile(x, 99))
    )
    above_1: float = statistic(
        "Fraction of apps with rho above 1: those that would have been better off on their own 1/N.",
        title="ρ > 1",
        scale=PER_CENT,
        of=lambda x: float((x > FAIR).mean()),
    )
    above_1_05: float = statistic(
        "Fraction with rho above 1.05.", title="ρ > 1.05", scale=PER_CENT, of=lambda x: float((x > 0.05 + FAIR).mean())
    )
    above_1_1: float = statistic(
        "Fraction with rho above 1.1.", title="ρ > 1.1", scale=PER_CENT, of=lambda x: float((x > 0.1 + FAIR).mean())
    )
    jain: float = statistic(
        "Jain's index over rho, (sum rho)^2 / (n x sum rho^2), from 1/n to 1: 1 when all apps have the same "
        "rho. It says how even, not how good, the rhos are.",
        title="Jain",
        better="high",
        of=lambda x: float(x.sum()) ** 2 / (len(x) * square) if (square := float((x**2).sum())) > 0 else 1.0,
    )


STATISTICS = statistics_of(RhoStats)


def rho_stats(rho: Iterable[float]) -> RhoStats:
    """Statistics of these values of finish-time fairness."""
    x = np.fromiter(rho, dtype=np.float64)
    return RhoStats(**{s.name: s.of(x) if len(x) else math.nan for s in STATISTICS})
