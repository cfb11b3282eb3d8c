"""Fairness by user: the worst and the median rho of their apps, and how much of the GPU time they got."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from themis.model.units import GpuSeconds, Seconds
from themis.report.columns import HOUR, PER_CENT, cell
from themis.report.result import RunMetrics
from themis.report.rows import AppRow


@dataclass(frozen=True, slots=True, kw_only=True)
class UserRow:
    """One user in one run; NaN where no app completed."""

    user: str = cell(title="user", scale=0)
    apps: int = cell("Apps that the user submitted.", title="apps", scale=0)
    completed: int = cell("Those of them that completed; rho and JCT are over these.", title="completed", scale=0)
    rho_reference_worst: float = cell("The highest rho_reference of the user's apps.", title="worst app, × own share")
    rho_reference_median: float = cell("The median rho_reference of the user's apps.", title="median, × own share")
    rho_paper_worst: float = cell("The highest rho_paper of the user's apps.")
    rho_paper_median: float = cell("The median rho_paper of the user's apps.")
    rho_exact_worst: float = cell("The highest rho_exact of the user's apps.")
    rho_exact_median: float = cell("The median rho_exact of the user's apps.")
    jct_median: Seconds = cell("The median JCT of the user's apps, seconds.", title="median JCT h", scale=HOUR)
    gpu_seconds: GpuSeconds = cell(
        "GPU-seconds leased to the user's apps, restarts included.", title="GPU h", scale=HOUR
    )
    share: float = cell(
        "The user's GPU-seconds divided by those of all users.", title="share of GPU time %", scale=PER_CENT
    )


def by_user(run: RunMetrics) -> tuple[UserRow, ...]:
    """A row for each user, worst rho (reference, then paper) first; users without a completed app come last."""
    apps: dict[str, list[AppRow]] = {}
    for app in run.apps:
        apps.setdefault(app.user, []).append(app)
    total = math.fsum(app.gpu_seconds for app in run.apps)
    rows = [_row(user, theirs, total) for user, theirs in apps.items()]
    return tuple(
        sorted(rows, key=lambda row: (-_or_lowest(row.rho_reference_worst), -_or_lowest(row.rho_paper_worst), row.user))
    )


def _row(user: str, apps: Sequence[AppRow], total: GpuSeconds) -> UserRow:
    done = [app for app in apps if app.outcome == "completed"]
    reference = [app.rho_reference for app in done if not math.isnan(app.rho_reference)]
    paper, exact = [app.rho_paper for app in done], [app.rho_exact for app in done]
    used = math.fsum(app.gpu_seconds for app in apps)
    return UserRow(
        user=user,
        apps=len(apps),
        completed=len(done),
        rho_reference_worst=max(reference, default=math.nan),
        rho_reference_median=_median(reference),
        rho_paper_worst=max(paper, default=math.nan),
        rho_paper_median=_median(paper),
        rho_exact_worst=max(exact, default=math.nan),
        rho_exact_median=_median(exact),
        jct_median=_median([app.jct for app in done]),
        gpu_seconds=used,
        share=used / total if total else math.nan,
    )


def _median(values: Sequence[float]) -> float:
    return float(np.median(values)) if values else math.nan


def _or_lowest(value: float) -> float:
    return -math.inf if math.isnan(value) else value
