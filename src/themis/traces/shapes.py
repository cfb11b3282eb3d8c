"""The shapes of generated apps, a bag, a sweep under curve stopping and a halving one, from an app's total work.

Work is given in GPU-seconds on reference GPUs with the best placement and turned into steps by the model's speed.
How it splits over jobs, and the loss curves, are assumptions that the paper leaves open; each function states its own.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields, replace

import numpy as np

from themis.model.units import Float, GpuSeconds, Seconds
from themis.model.workload import App, CurveStopping, Halving, Job, Regime, Rung
from themis.policies.tuning.curves import dry_run
from themis.traces.profiles.models import loss_curve

DIFFICULTY = (1.0, 2.0)
"""Range of the factor on a loss curve's floor between the configurations of one app."""

PACE = 0.3
"""Deviation of the logarithm of the factor on how fast a configuration's loss falls."""

CHECKS = 20
"""Reports of a job that is not stopped, the last one at its end, under curve stopping."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AppDraw:
    """Values drawn for an app before its jobs.

    Attributes
    ----------
    work : GPU-seconds of all its jobs, above 0.
    steps_per_gpu_s : steps per second of its model on one reference GPU.
    """

    name: str
    user: str
    arrival: Seconds
    jobs: int
    work: GpuSeconds
    model: str
    steps_per_gpu_s: float


def bag_app(draw: AppDraw, *, gpus: Sequence[tuple[int, int]], skew: float, rng: np.random.Generator) -> App:
    """A bag of jobs that all run to the end of the steps drawn for them.

    Parameters
    ----------
    gpus : minimum and maximum GPUs of each job.
    skew : the jobs' lengths are lognormal, their logarithm deviating by this; 0 makes them equal. The longest job has
        the best loss curve, and so on down, as when curve stopping had ended the others early.
    """
    share = rng.lognormal(0.0, skew, draw.jobs)
    steps = draw.work * share / share.sum() * draw.steps_per_gpu_s
    difficulty = np.empty(draw.jobs)
    difficulty[np.argsort(-steps, kind="stable")] = np.sort(rng.uniform(*DIFFICULTY, draw.jobs))
    jobs = tuple(
        Job(
            name=f"{draw.name}/{j:02d}",
            model=draw.model,
            regimes=(Regime(steps=float(steps[j])),),
            gpus_min=least,
            gpus_max=most,
            loss=loss_curve(draw.model, float(steps.max()), difficulty=float(difficulty[j])),
        )
        for j, (least, most) in enumerate(gpus)
    )
    return App(name=draw.name, user=draw.user, arrival=draw.arrival, jobs=jobs)


def curve_app(
    draw: AppDraw, *, gpus: Sequence[tuple[int, int]], tuner: CurveStopping, jitter: float, rng: np.random.Generator
) -> App:
    """A sweep of equally many steps a job, poor jobs being stopped by their learning curves.

    The steps are such that the app does its work when jobs are stopped as in ``policies.tuning.curves.dry_run``; what is
    realised depends on the order in which they run.

    Parameters
    ----------
    gpus : minimum and maximum GPUs of each job.
    tuner : its ``check_steps`` is the share of a job's steps between reports, in (0, 1].
    jitter : the jobs' seconds per step differ by a lognormal factor, its logarithm deviating by this (Themis
        footnote 4).
    """
    scale = _jitter(draw.jobs, jitter, rng)
    difficulty, pace = rng.uniform(*DIFFICULTY, draw.jobs), rng.lognormal(0.0, PACE, draw.jobs)

    def of(steps: float) -> App:
        jobs = tuple(
            Job(
                name=f"{draw.name}/{j:02d}",
                model=draw.model,
                regimes=(Regime(steps=steps),),
                gpus_min=least,
                gpus_max=most,
                step_scale=float(scale[j]),
                loss=loss_curve(draw.model, steps, difficulty=float(difficulty[j]), speed=float(pace[j])),
            )
            for j, (least, most) in enumerate(gpus)
        )
        checks = replace(tuner, check_steps=tuner.check_steps * steps)
        return App(name=draw.name, user=draw.user, arrival=draw.arrival, jobs=jobs, tuner=checks)

    # Curves and checks scale with the steps, so which jobs are stopped, and at which share of them, does not.
    return of(draw.work * draw.steps_per_gpu_s / float(dry_run(of(1.0)) @ scale))


def halving_app(draw: AppDraw, *, gpus: tuple[int, int], jitter: float, rng: np.random.Generator) -> App:
    """A sweep whose rungs of J, J/2, ..., 1 jobs share its work evenly.

    Parameters
    ----------
    gpus : minimum and maximum GPUs of every job.
    jitter : the jobs' seconds per step differ by a lognormal factor, its logarithm deviating by this (Themis
        footnote 4). Work is exact for jobs of average pace; what is realised depends on which jobs survive.
    """
    scale = _jitter(draw.jobs, jitter, rng)
    difficulty = rng.uniform(*DIFFICULTY, draw.jobs)
    pace = rng.lognormal(0.0, PACE, draw.jobs)
    sizes = halving_sizes(draw.jobs)
    per_rung = draw.work / len(sizes) * draw.steps_per_gpu_s / float(scale.mean())
    rungs = tuple(Rung(jobs=size, steps=per_rung / size) for size in sizes)
    steps = sum(rung.steps for rung in rungs)
    jobs = tuple(
        Job(
            name=f"{draw.name}/{j:02d}",
            model=draw.model,
            regimes=(Regime(steps=steps),),
            gpus_min=gpus[0],
            gpus_max=gpus[1],
            step_scale=float(scale[j]),
            loss=loss_curve(draw.model, steps, difficulty=float(difficulty[j]), speed=float(pace[j])),
        )
        for j in range(draw.jobs)
    )
    return App(name=draw.name, user=draw.user, arrival=draw.arrival, jobs=jobs, tuner=Halving(rungs=rungs))


def _jitter(jobs: int, jitter: float, rng: np.random.Generator) -> Float:
    out: Float = np.exp(np.clip(rng.normal(0.0, jitter, jobs), -3 * jitter, 3 * jitter))
    return out


def halving_sizes(jobs: int) -> tuple[int, ...]:
    """Jobs in each rung: J, J/2, J/4, ... rounded down, to 1."""
    sizes = [jobs]
    while sizes[-1] > 1:
        sizes.append(sizes[-1] // 2)
    return tuple(sizes)


def describe_parameters(name: str, parameters: object, seed: int) -> str:
    """Source of a generated workload, in one line from which it can be drawn again."""
    shown = []
    for field in fields(parameters):  # type: ignore[arg-type]
        value = getattr(parameters, field.name)
        brief = f"{len(value)} given" if isinstance(value, tuple) and value else repr(value)
        shown.append(f"{field.name}={brief}")
    return f"generated: {name}({', '.join(shown)}), seed {seed}"
