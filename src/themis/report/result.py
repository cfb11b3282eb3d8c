"""Result of one run: frozen numbers to be compared, drawn, or written out. Their meanings: ``numbers``, ``rows``."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from themis.model.events import AssumedSpeed
from themis.model.units import GpuSeconds, Seconds
from themis.report.gangs import Piece
from themis.report.numbers import RHO_FORMS, Numbers
from themis.report.outlook import Coverage
from themis.report.plans import PlanTable
from themis.report.rows import AppRow, JobTable
from themis.report.series import Gantt, Series


@dataclass(frozen=True, slots=True, kw_only=True)
class Inputs:
    """Fingerprints of a run's inputs, so that runs with different inputs are not compared as equals.

    Attributes
    ----------
    apps, machines, profiles : equal text, equal input; ``apps`` may differ between seeds.
    outages : (time, machine) of each failure, in order, as far as the run lasted.
    speeds : how many speeds the apps depend on: of a model at a batch size, of a gang on a GPU type. ``assumed`` : those of
        them that were not measured; None where the log does not say.
    """

    apps: str
    machines: str
    profiles: str
    outages: tuple[tuple[Seconds, int], ...]
    speeds: int = 0
    assumed: tuple[AssumedSpeed, ...] | None = None


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class RunMetrics(Numbers):
    """A report on one run: its conditions, its metrics (``Numbers``), its apps, jobs and series. In seconds."""

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
    """Forecasts of each job, where the policy plans; otherwise empty."""
    coverage: Coverage = field(default_factory=Coverage)
    """Coverage of 80 % intervals of apps' starts and finishes."""
    gangs: tuple[Piece, ...] = ()
    """What gangs of elastic jobs did, in order of their ends."""

    def __repr__(self) -> str:
        return (
            f"<RunMetrics of {self.policy}, seed {self.seed}: {len(self.apps)} apps of {self.workload} on {self.cluster}, "
            f"makespan {self.makespan:.0f} s, worst rho_reference {self.rho_reference.max:.2f}>"
        )

    @property
    def completed(self) -> tuple[AppRow, ...]:
        """The apps that statistics are over."""
        return tuple(app for app in self.apps if app.outcome == "completed")


def scalar(run: RunMetrics, name: str) -> float:
    """A run's number by name; ``rho_paper_max`` and its like reach into the distribution."""
    for form in RHO_FORMS:
        if name.startswith(f"{form}_"):
            return float(getattr(getattr(run, form), name.removeprefix(f"{form}_")))
    return float(getattr(run, name))
