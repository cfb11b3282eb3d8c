"""From a ``Cell`` to its simulation: the paper's workloads, agents that err, and one that lies (Themis §6.1, §6.3)."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np

from grid import Cell
from themis.model.settings import Settings
from themis.model.speed import Curve, Profile
from themis.model.units import Locality
from themis.model.workload import App, Job, Regime, Workload
from themis.policies.api import make_policy
from themis.sim.runner import Simulation
from themis.traces.formats import load_workload
from themis.traces.mix import stream
from themis.traces.profiles.models import DEFAULT_BOOK
from themis.traces.profiles.presets import load_cluster

ALIKE = "alike"
"""Workload of the truth-telling experiment: eight identical apps that all want the one large machine."""
LIAR = "VGG16 (liar)"


def build(cell: Cell) -> Simulation:
    """The simulation of a cell."""
    book, believed = DEFAULT_BOOK, None
    if cell.workload == ALIKE:
        book = book.with_profiles([replace(book.get("VGG16"), name=LIAR)])
        workload = _alike(cell.seed, lying=cell.lie is not None)
        if cell.lie:
            believed = book.with_profiles([_overstated(book.get(LIAR), cell.lie)])
    else:
        options: dict[str, Any] = {"apps": cell.apps, "load": cell.load, "gpus": cell.gpus, "scale": cell.scale}
        if cell.network is not None:
            options["network_intensive"] = cell.network
        workload = load_workload(cell.workload, seed=cell.seed, **options)
        if cell.error:
            workload, truth, wrong = _misjudged(workload, cell)
            book, believed = DEFAULT_BOOK.with_profiles(truth), DEFAULT_BOOK.with_profiles(wrong)
    return Simulation(
        workload=workload,
        cluster=load_cluster(cell.cluster),
        book=book,
        estimated=believed,
        policy_name=cell.policy,
        policy=make_policy(cell.policy),
        settings=Settings(seed=cell.seed, lease_s=cell.lease_s),
    )


def _alike(seed: int, lying: bool) -> Workload:
    """Eight apps of four VGG16 jobs of 1 to 8 GPUs; the figures are ours, the paper gives none (§6.3).

    Steps differ a little from job to job, by the seed and equally in all apps, so that seeds are different worlds.
    """
    serial = 1.0 / DEFAULT_BOOK.rate("VGG16", 0, "gpu", 1, Locality.SLOT)
    hours = 12.0 * stream(seed, "alike").lognormal(0.0, 0.2, size=4)

    def app(i: int) -> App:
        model = LIAR if lying and i == 0 else "VGG16"
        jobs = (
            Job(name=f"j{k}", model=model, regimes=(Regime(steps=h * 3600 / serial),), gpus_min=1, gpus_max=8)
            for k, h in enumerate(hours.tolist())
        )
        return App(name=f"a{i}", user=f"u{i}", arrival=0.0, jobs=tuple(jobs))

    return Workload(name=ALIKE, apps=tuple(app(i) for i in range(8)), source="eight identical apps")


def _overstated(profile: Profile, lie: float) -> Profile:
    """What a liar reports: gangs that leave the machine suffer by ``lie`` more than they do."""
    slot, machine, rack, cross = profile.slowdown
    return replace(profile, slowdown=(slot, machine, rack * (1 + lie), cross * (1 + lie)))


def work_error(cell: Cell, app: str) -> float:
    """Relative error in an app's estimate of its work, uniform within the bound."""
    return float(_errors(cell, app)[0])


def _errors(cell: Cell, app: str) -> np.ndarray[Any, np.dtype[np.float64]]:
    return stream(cell.seed, f"error/{app}").uniform(-1.0, 1.0, size=2) * cell.error


def _misjudged(workload: Workload, cell: Cell) -> tuple[Workload, list[Profile], list[Profile]]:
    """The workload with a model of its own for each app, the true profiles of these models, and the believed ones.

    An error in the number of iterations and one in the time of an iteration are the same error in the work that is
    left, so both are put into the seconds per step; the other error is that of the slowdown S.
    """
    apps, truth, wrong = [], [], []
    for app in workload.apps:
        work, slow = _errors(cell, app.name).tolist()
        for model in dict.fromkeys(job.model for job in app.jobs):
            profile = replace(DEFAULT_BOOK.get(model), name=f"{model} of {app.name}")
            levels = np.maximum.accumulate(np.maximum(np.array(profile.slowdown) * [1, 1, 1 + slow, 1 + slow], 1.0))
            truth.append(profile)
            a, b, c, d = levels.tolist()
            wrong.append(replace(profile, slowdown=(a, b, c, d), curves=_slower(profile, 1 + work)))
        jobs = tuple(replace(job, model=f"{job.model} of {app.name}") for job in app.jobs)
        apps.append(replace(app, jobs=jobs))
    return replace(workload, apps=tuple(apps)), truth, wrong


def _slower(profile: Profile, factor: float) -> dict[tuple[str, int], Curve]:
    return {
        key: replace(curve, rate=tuple(rate / factor for rate in curve.rate)) for key, curve in profile.curves.items()
    }
