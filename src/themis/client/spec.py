"""YAML of jobs, arrays and sweeps (``themis.jobs``) -> submissions as they go over the wire."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from themis.client import themis_pb2 as pb
from themis.errors import InputError
from themis.executors.program import Program
from themis.jobs import Built, Submission, build, read_jobs
from themis.model.workload import App, CurveStopping, brackets_of

_NOT_YET: Mapping[str, str] = {
    "after": "an order among apps", "at_once": "a limit of jobs at once", "cpus": "CPUs", "memory": "memory",
}  # fmt: skip


def read_requests(file: Path, user: str, *, folder: Path | None = None) -> list[pb.SubmitRequest]:
    """The submissions of a file, in its order.

    Parameters
    ----------
    folder : that they are submitted from; by default the present one.

    Raises
    ------
    InputError : the file is wrong; names the line. Or it asks for what this service cannot do.
    """
    return [to_request(_possible(spec), build(spec, user=user)) for spec in read_jobs([file], folder=folder)]


def to_request(spec: Submission, built: Built) -> pb.SubmitRequest:
    """A built submission as a message."""
    app = built.app
    request = pb.SubmitRequest(
        name=app.name, user=app.user, weight=app.weight, jobs=_jobs(app, built.programs), retries=spec.retries
    )
    if spec.deadline_s is not None:
        request.deadline_s = spec.deadline_s
    for bracket in brackets_of(app.tuner):
        request.brackets.brackets.add(rungs=[pb.Rung(jobs=r.jobs, steps=r.steps) for r in bracket.rungs])
    if isinstance(app.tuner, CurveStopping):
        t = app.tuner
        request.curve.CopyFrom(
            pb.CurveStopping(check_steps=t.check_steps, keep=t.keep, confidence=t.confidence, warmup=t.warmup)
        )
    if built.profile is not None:
        p = built.profile
        request.profile.CopyFrom(pb.Profile(slowdown=p.slowdown, checkpoint_s=p.checkpoint_s))
        for (gpu_type, _), curve in p.curves.items():
            request.profile.curves.add(gpu_type=gpu_type, gpus=curve.gpus, steps_per_s=curve.rate)
    return request


def _jobs(app: App, programs: tuple[Program, ...]) -> list[pb.Job]:
    return [
        pb.Job(
            name=job.name, model=job.model, regimes=[pb.Regime(steps=r.steps, batch=r.batch) for r in job.regimes],
            gpus_min=job.gpus_min, gpus_max=job.gpus_max, step_scale=job.step_scale, gpu_types=job.gpu_types,
            program=pb.Program(
                argv=p.argv, cwd=p.cwd, env=p.env, launch=p.launch, grace_s=p.grace_s, stop_signal=p.stop_signal,
                checkpoint_dir=p.checkpoint_dir, work_is_time=not p.own_steps,
            ),
        )
        for job, p in zip(app.jobs, programs)
    ]  # fmt: skip


def _possible(spec: Submission) -> Submission:
    """Refuse what would be passed over in silence."""
    for key, what in _NOT_YET.items():
        if getattr(spec, key):
            raise InputError(
                f"{spec.source}: app {spec.name!r} asks for {what} ({key}), which the service cannot do yet."
            )
    return spec
