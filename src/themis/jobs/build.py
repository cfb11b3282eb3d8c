"""Submission -> an ``App`` with an estimate of its work, and a ``Program`` for each job.

The work of a job, by the given keys:

- work in steps or epochs, and ``speed`` or ``model``: those steps at that speed.
- work in GPU time: that time on the reference GPU; converted to steps with ``speed`` or ``model``.
- steps or epochs without a speed: the speed at which the job's fewest GPUs need the whole walltime, or ``prior_s`` without
  a walltime.
- only a speed, or no key: the steps that the fewest GPUs do in the walltime, or in ``prior_s``.

The walltime is an upper bound on any allowed number of GPUs. Finish-time fairness is a ratio of two times that both grow
with the work, so a common factor hardly changes it. ``prior_s`` is an assumption: the median task's duration in Themis
Figure 4.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from themis.jobs.placeholders import parameter_env, place
from themis.jobs.readers import LONGEST_NAME
from themis.jobs.spec import Submission, Trial
from themis.machines.engines.program import Program, Programs
from themis.model.speed import DEFAULT_SLOWDOWN, Curve, Profile, ProfileBook, linear
from themis.model.units import Float, Seconds
from themis.model.workload import App, Job, Regime
from themis.schema.same import same
from themis.sizes import UNKNOWN_WORK_S
from themis.traces.profiles.models import DEFAULT_BOOK, GENERIC

PRIOR_S = UNKNOWN_WORK_S
"""Assumed duration of a job without estimates, in seconds on its fewest GPUs (the median task of Themis Figure 4)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Built:
    """A submission as the core and the executor take it.

    Attributes
    ----------
    programs : one for each job of the app.
    profile : the app's own speed, given or estimated, which must be added to the book before submission; or None.
    in_own_steps : work is counted in the steps that the script reports; else in steps of the estimate.
    estimated : the work is an estimate (walltime or prior), not given by the submitter.
    """

    spec: Submission
    app: App
    programs: tuple[Program, ...]
    profile: Profile | None
    in_own_steps: bool
    estimated: bool


def build(
    spec: Submission,
    *,
    user: str,
    arrival: Seconds = 0.0,
    name: str = "",
    system_user: str = "",
    prior_s: Seconds = PRIOR_S,
    book: ProfileBook = DEFAULT_BOOK,
) -> Built:
    """Build an app and its programs.

    Parameters
    ----------
    arrival : seconds on the service's clock. ``name`` : unique name of the app; the submission's if empty.
    system_user : user of the processes, for agents that run as root.
    prior_s : see the module. ``book`` : profiles, for ``model``.
    """
    name = name or spec.name
    profile = _profile(spec, f"{user}/{name}", prior_s)
    estimate = _estimate(spec, profile or (book.get(spec.hints.model) if spec.hints.model else None), prior_s)
    several = spec.kind != "job"
    jobs = tuple(
        Job(
            name=_job_name(name, trial) if several else name,
            model=estimate.model,
            gpu_types=spec.gpu_types,
            regimes=spec.regimes or (Regime(steps=estimate.steps, batch=spec.hints.batch),),
            dynamic=spec.dynamic,
            gpus_min=spec.gpus_min,
            gpus_max=spec.gpus_max,
            one_machine=spec.launch == "once",
        )
        for trial in spec.trials
    )
    deadline = None if spec.deadline_s is None else arrival + spec.deadline_s
    return Built(
        spec=spec,
        profile=profile,
        in_own_steps=estimate.own,
        estimated=estimate.guessed,
        app=App(name=name, user=user, arrival=arrival, jobs=jobs, tuner=spec.tuner, deadline=deadline),
        programs=tuple(_program(spec, trial, system_user, estimate.own) for trial in spec.trials),
    )


def _job_name(name: str, trial: Trial) -> str:
    """The app's name, truncated if it is long, and the job's number."""
    number = f"-{trial.index}"
    return name[: LONGEST_NAME - len(number)] + number


def programs_of(built: dict[str, Built]) -> Programs:
    """The executor's view of apps, by their names; ``built`` may grow."""
    return lambda app, index: built[app.name].programs[index]


@dataclass(frozen=True, slots=True, kw_only=True)
class _Estimate:
    model: str
    steps: float
    own: bool
    guessed: bool


def _estimate(spec: Submission, profile: Profile | None, prior_s: Seconds) -> _Estimate:
    time, work = spec.walltime_s or prior_s, spec.work
    model = profile.name if profile else GENERIC
    curve = _reference(profile, spec) if profile else Curve(gpus=(1,), rate=(1.0,))
    if work is None:
        steps = time * float(curve.at(_count(spec.gpus_min)))
        return _Estimate(model=model, steps=steps, own=False, guessed=True)
    if work.unit == "gpu-second":
        return _Estimate(model=model, steps=work.amount * float(curve.at(_count(1))), own=False, guessed=False)
    steps = work.steps(spec.steps_per_epoch)
    return _Estimate(model=model, steps=steps, own=True, guessed=not (spec.hints.speed or spec.hints.model))


def _count(gpus: int) -> Float:
    return np.array(float(gpus))


def _reference(profile: Profile, spec: Submission) -> Curve:
    """The speed that converts GPU time to steps: of the first of the job's GPU types in the profile."""
    named = [kind for kind, _ in profile.curves]
    for kind in (*spec.gpu_types, *named):
        curve = profile.curve(kind, spec.hints.batch)
        if curve is not None:
            return curve
    return next(iter(profile.curves.values()))


def _profile(spec: Submission, name: str, prior_s: Seconds) -> Profile | None:
    hints, work = spec.hints, spec.work
    if not hints.speed:
        if hints.model or work is None or work.unit == "gpu-second":
            return None
        # A separate profile: measurements of this app must not change the speed of another.
        serial_s = (spec.walltime_s or prior_s) * spec.gpus_min / work.steps(spec.steps_per_epoch)
        return linear(name, serial_s, source="assumption: the job needs its whole walltime on its fewest GPUs")
    curves = {(kind, 0): Curve(gpus=tuple(by), rate=tuple(by.values())) for kind, by in hints.speed.items()}
    return Profile(
        name=name,
        curves=curves,
        slowdown=hints.slowdown or DEFAULT_SLOWDOWN,
        checkpoint_s=7.5 if hints.checkpoint_s is None else hints.checkpoint_s,
        source="given by its submitter",
    )


def _program(spec: Submission, trial: Trial, system_user: str, own_steps: bool) -> Program:
    """The job's program; fills placeholders of an array or a sweep."""

    def fill(text: str) -> str:
        return text if spec.kind == "job" else place(text, spec.name, trial)

    return Program(
        **same(
            Program,
            spec,
            argv=tuple(map(fill, spec.command)),
            cwd=spec.workdir,
            user=system_user,
            env={key: fill(value) for key, value in spec.env.items()} | parameter_env(spec, trial),
            checkpoint_dir=fill(spec.checkpoint_dir),
            checkpoint_url=fill(spec.checkpoint_url),
            outputs=tuple(map(fill, spec.outputs)),
            own_steps=own_steps,
        )
    )
