"""A workload made larger or smaller: in time, load, GPUs or apps, so that a trace fits the cluster at hand."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, fields, replace

from themis.errors import InputError
from themis.model.workload import App, CurveStopping, Halving, Hyperband, Job, Tuner, Workload
from themis.traces.mix import stream


@dataclass(frozen=True, slots=True, kw_only=True)
class Scale:
    """Changes to a workload's scale.

    Attributes
    ----------
    time : factor on all times: arrivals, work and deadlines; offered load stays.
    load : factor on offered load: the gaps between arrivals shrink by it, work stays.
    gpus : factor on each job's GPUs, rounded, at least 1; its work stays, so with more GPUs it is shorter.
    apps : number of apps; 0 keeps them. Fewer are drawn without repetition. More: each further app is a copy of one
        drawn, arriving at a time drawn evenly from the first arrival to the last. Load changes in proportion.
    seed : of these draws.
    """

    time: float = 1.0
    load: float = 1.0
    gpus: float = 1.0
    apps: int = 0
    seed: int = 0

    def __post_init__(self) -> None:
        for key in ("time", "load", "gpus"):
            value = getattr(self, key)
            if not 0 < value < math.inf:
                raise InputError(f"scale: {key} is {value}, expected a factor above 0.")
        if self.apps < 0 or self.seed < 0:
            raise InputError(f"scale: apps is {self.apps} and seed {self.seed}, expected 0 or more.")


def scale(workload: Workload, by: Scale) -> Workload:
    """Return the scaled workload; weights, users, models and tuners are kept.

    Raises
    ------
    InputError : the workload has no apps.
    """
    if not workload.apps:
        raise InputError(f"workload {workload.name!r} has no apps, expected at least one.")
    chosen = _choose(workload.apps, by.apps, by.seed) if by.apps else workload.apps
    changed = ", ".join(f"{f.name}={getattr(by, f.name):g}" for f in fields(by) if getattr(by, f.name) != f.default)
    apps = tuple(_scaled(app, by) for app in chosen)
    return replace(workload, apps=apps, source=f"{workload.source}; scaled: {changed or 'by nothing'}")


def _choose(apps: Sequence[App], count: int, seed: int) -> list[App]:
    rng = stream(seed, "scale/apps")
    if count <= len(apps):
        return [apps[i] for i in sorted(rng.choice(len(apps), count, replace=False))]
    extra = rng.integers(len(apps), size=count - len(apps))
    arrivals = rng.uniform(apps[0].arrival, apps[-1].arrival, len(extra))
    taken = {app.name for app in apps}
    return [*apps, *(_copy(apps[int(i)], float(at), taken) for i, at in zip(extra, arrivals))]


def _copy(app: App, arrival: float, taken: set[str]) -> App:
    number = 2
    while (name := f"{app.name}~{number}") in taken:
        number += 1
    taken.add(name)
    deadline = None if app.deadline is None else app.deadline - app.arrival + arrival
    return replace(app, name=name, arrival=arrival, deadline=deadline)


def _scaled(app: App, by: Scale) -> App:
    arrival = app.arrival * by.time / by.load
    deadline = None if app.deadline is None else arrival + (app.deadline - app.arrival) * by.time
    return replace(
        app,
        arrival=arrival,
        deadline=deadline,
        tuner=_tuner(app.tuner, by),
        jobs=tuple(_job(job, by) for job in app.jobs),
    )


def _tuner(tuner: Tuner, by: Scale) -> Tuner:
    match tuner:
        case Halving():
            return _halving(tuner, by)
        case Hyperband():
            return Hyperband(brackets=tuple(_halving(bracket, by) for bracket in tuner.brackets))
        case CurveStopping():
            return replace(tuner, check_steps=tuner.check_steps * by.time)
        case _:
            return tuner


def _halving(tuner: Halving, by: Scale) -> Halving:
    return Halving(rungs=tuple(replace(rung, steps=rung.steps * by.time) for rung in tuner.rungs))


def _job(job: Job, by: Scale) -> Job:
    regimes = tuple(replace(regime, steps=regime.steps * by.time) for regime in job.regimes)
    return replace(
        job, regimes=regimes, gpus_min=_whole(job.gpus_min * by.gpus), gpus_max=_whole(job.gpus_max * by.gpus)
    )


def _whole(gpus: float) -> int:
    return max(1, math.floor(gpus + 0.5))
