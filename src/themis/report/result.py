"""What one run comes to: frozen numbers, ready to be compared, drawn, or written out. Definitions: ``definitions``."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from themis.model.events import AssumedSpeed
from themis.model.units import Float, GpuSeconds, Int, Seconds
from themis.report.delivery import Missing
from themis.report.outlook import Coverage
from themis.report.plans import PlanTable
from themis.report.series import Gantt, Series

FAIR = 1.0 + 1e-9
"""Above this, an app was worse off than on its own 1/N; rounding is no unfairness."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AppRow:
    """One app; NaN where it did not get so far. ``gpu_seconds`` counts each lease from grant to revocation."""

    app: int
    name: str
    user: str
    jobs: int
    weight: float
    arrival: Seconds
    finish: Seconds
    jct: Seconds
    wait: Seconds
    rho_paper: float
    rho_exact: float
    t_id_paper: Seconds
    t_id_exact: Seconds
    contention: float
    gpu_seconds: GpuSeconds
    lost_seconds: GpuSeconds
    restarts: int
    placement: float
    outcome: str
    entitled: GpuSeconds
    received: GpuSeconds
    missing: Missing


@dataclass(frozen=True, slots=True, kw_only=True)
class JobTable:
    """Jobs as columns of length J: there may be hundreds of thousands. NaN where a job did not get so far.

    Attributes
    ----------
    app : Int[J], the job's app. ``gpus_min``, ``gpus_max``, ``restarts`` : Int[J].
    first_grant, finish : Float[J], seconds. ``gpu_seconds``, ``lost_seconds`` : Float[J], as an app's.
    outcome : completed | stopped | cancelled | failed | active.
    isolated_s, rho_static, rho_contention : Float[J], of those that completed, as ``definitions`` says.
    """

    app: Int
    name: tuple[str, ...]
    model: tuple[str, ...]
    gpus_min: Int
    gpus_max: Int
    first_grant: Float
    finish: Float
    gpu_seconds: Float
    lost_seconds: Float
    restarts: Int
    outcome: tuple[str, ...]
    isolated_s: Float
    rho_static: Float
    rho_contention: Float


@dataclass(frozen=True, slots=True, kw_only=True)
class Inputs:
    """Fingerprints of what a run was given, so that unlike runs are not taken for alike.

    Attributes
    ----------
    apps, machines, profiles : equal text, equal input; ``apps`` may differ between seeds.
    outages : (time, machine) of each failure, in order, as far as the run lasted.
    speeds : how many speeds the apps depend on: of a model at a batch size, of a gang on a GPU type. ``assumed`` : those of
        them that nobody measured; None where the log does not say.
    """

    apps: str
    machines: str
    profiles: str
    outages: tuple[tuple[Seconds, int], ...]
    speeds: int = 0
    assumed: tuple[AssumedSpeed, ...] | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class RhoStats:
    """Distribution of finish-time fairness over completed apps, or jobs; NaN when there are none."""

    max: float
    mean: float
    median: float
    p99: float
    above_1: float
    above_1_05: float
    above_1_1: float
    jain: float


@dataclass(frozen=True, slots=True, kw_only=True)
class RunMetrics:
    """Everything a report says about one run. Times are seconds; every field is defined in ``DEFINITIONS``."""

    policy: str
    params: Mapping[str, Any]
    seed: int
    workload: str
    source: str
    cluster: str
    version: str
    simulated: bool
    settings: Mapping[str, Any]
    gpus: int
    machines: int
    inputs: Inputs

    apps: tuple[AppRow, ...]
    jobs: JobTable
    rho_paper: RhoStats
    rho_exact: RhoStats
    rho_static: RhoStats
    rho_contention: RhoStats
    makespan: Seconds
    jct_mean: Seconds
    jct_median: Seconds
    jct_p99: Seconds
    wait_mean: Seconds
    wait_median: Seconds
    wait_p99: Seconds
    wait_max: Seconds

    contention: float
    contention_max: float
    apps_mean: float
    apps_max: int

    gpu_seconds: GpuSeconds
    utilisation: float
    useful: float
    placement: float
    restarts: int
    restart_seconds: GpuSeconds
    crash_seconds: GpuSeconds
    lost_seconds: GpuSeconds
    failures: int
    delivered_worst: float
    delivered_mean: float

    decisions: int
    auctions: int
    bidders: float
    offered: float
    payment: float
    leftover: float
    gap: float

    gpus_in_use: Series
    gpus_in_service: Series
    gpus_starting: Series
    gpus_wanted: Series
    active_apps: Series
    placements: tuple[tuple[float, GpuSeconds], ...]
    """Leased GPU-seconds by placement score, lowest score first."""
    localities: tuple[GpuSeconds, ...]
    """Leased GPU-seconds by locality: slot, machine, rack, cross-rack."""
    gantt: Gantt
    plans: PlanTable
    """What was forecast of each job, where the policy plans; else empty."""
    coverage: Coverage = field(default_factory=Coverage)
    """How often 80 % intervals of apps' starts and finishes held."""

    @property
    def completed(self) -> tuple[AppRow, ...]:
        """The apps that statistics are over."""
        return tuple(app for app in self.apps if app.outcome == "completed")


SCALARS = (
    "makespan", "jct_mean", "jct_median", "jct_p99", "wait_mean", "wait_median", "wait_p99", "wait_max", "contention",
    "contention_max", "apps_mean", "apps_max", "gpu_seconds", "utilisation", "useful", "placement", "restarts",
    "restart_seconds", "crash_seconds", "lost_seconds", "failures", "delivered_worst",
    "delivered_mean", "decisions", "auctions", "bidders", "offered",
    "payment", "leftover", "gap",
)  # fmt: skip
"""Fields of ``RunMetrics`` that are one number."""
RHO_FORMS = ("rho_paper", "rho_exact", "rho_static", "rho_contention")
"""The first two are of apps, the others of jobs."""
RHO_STATS = ("max", "mean", "median", "p99", "above_1", "above_1_05", "above_1_1", "jain")


def scalar(run: RunMetrics, name: str) -> float:
    """A run's number by name; ``rho_paper_max`` and its like reach into the distribution."""
    for form in RHO_FORMS:
        if name.startswith(f"{form}_"):
            return float(getattr(getattr(run, form), name.removeprefix(f"{form}_")))
    return float(getattr(run, name))


def rho_stats(rho: Iterable[float]) -> RhoStats:
    """Statistics of finish-time fairness; Jain's index is (sum rho)^2 / (n sum rho^2)."""
    x = np.fromiter(rho, dtype=np.float64)
    if not len(x):
        return RhoStats(**dict.fromkeys(RHO_STATS, math.nan))
    square = float((x**2).sum())
    return RhoStats(
        max=float(x.max()), mean=float(x.mean()), median=float(np.median(x)), p99=float(np.percentile(x, 99)),
        above_1=float((x > FAIR).mean()), above_1_05=float((x > 0.05 + FAIR).mean()),
        above_1_1=float((x > 0.1 + FAIR).mean()), jain=float(x.sum()) ** 2 / (len(x) * square) if square > 0 else 1.0,
    )  # fmt: skip
