"""Fairness by user: the worst and the median rho of their apps, and how much of the GPU time they got."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from themis.model.units import GpuSeconds, Seconds
from themis.report.result import AppRow, RunMetrics


@dataclass(frozen=True, slots=True, kw_only=True)
class UserRow:
    """One user in one run; every field but the name is defined in ``USER_DEFINITIONS``. NaN: no app completed."""

    user: str
    apps: int
    completed: int
    rho_paper_worst: float
    rho_paper_median: float
    rho_exact_worst: float
    rho_exact_median: float
    jct_median: Seconds
    gpu_seconds: GpuSeconds
    share: float


def by_user(run: RunMetrics) -> tuple[UserRow, ...]:
    """A row for each user, worst rho (paper) first; users of whom no app completed come last."""
    apps: dict[str, list[AppRow]] = {}
    for app in run.apps:
        apps.setdefault(app.user, []).append(app)
    total = math.fsum(app.gpu_seconds for app in run.apps)
    rows = [_row(user, theirs, total) for user, theirs in apps.items()]
    return tuple(sorted(rows, key=lambda row: (-_or_lowest(row.rho_paper_worst), row.user)))


def _row(user: str, apps: Sequence[AppRow], total: GpuSeconds) -> UserRow:
    done = [app for app in apps if app.outcome == "completed"]
    paper, exact = [app.rho_paper for app in done], [app.rho_exact for app in done]
    used = math.fsum(app.gpu_seconds for app in apps)
    return UserRow(
        user=user, apps=len(apps), completed=len(done), rho_paper_worst=max(paper, default=math.nan),
        rho_paper_median=_median(paper), rho_exact_worst=max(exact, default=math.nan), rho_exact_median=_median(exact),
        jct_median=_median([app.jct for app in done]), gpu_seconds=used, share=used / total if total else math.nan,
    )  # fmt: skip


def _median(values: Sequence[float]) -> float:
    return float(np.median(values)) if values else math.nan


def _or_lowest(value: float) -> float:
    return -math.inf if math.isnan(value) else value
