"""Job files (``themis.jobs``) -> submit requests."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from graphlib import TopologicalSorter
from pathlib import Path
from typing import Any

from themis.client.exported import CONTAINERS, code_of
from themis.client.sending import inside
from themis.data_dir import default_home
from themis.errors import InputError
from themis.jobs import Built, Submission, build, parse, read_jobs
from themis.jobs.build import PRIOR_S
from themis.jobs.file_errors import raise_first
from themis.jobs.runnable import shell_words
from themis.machines.engines.program import Program
from themis.model.dynamic import Dynamic
from themis.model.speed import ASSUMPTION, GUESSED, ProfileBook
from themis.model.units import Seconds
from themis.model.workload import App, CurveStopping, Regime, brackets_of
from themis.schema import messages as schema
from themis.schema.same import same
from themis.schema.wire import told
from themis.traces.profiles.library import every_model

Send = Callable[[str], str]
"""Sends a folder, and returns the SHA-256 of its files."""


def read_requests(
    file: Path,
    user: str = "",
    *,
    folder: Path | None = None,
    unknown_work_s: Seconds = PRIOR_S,
    send: Send | None = None,
) -> list[schema.SubmitRequest]:
    """The submissions of a file, in order, but each after its dependencies in the file.

    Parameters
    ----------
    user : owner of the apps; empty for the caller.
    folder : the folder that relative paths are relative to; by default the current one.
    unknown_work_s : assumed duration of a job without estimates, in seconds on its fewest GPUs (``InfoReply``).
    send : sends a folder and returns the SHA-256 of its files; None where that is not possible.

    Raises
    ------
    InputError : the file is wrong; names the line.
    """
    book = every_model(default_home() / "profiles")
    return with_code(_requests(read_jobs([file], folder=folder, book=book), user, unknown_work_s, book, send))


def text_requests(
    text: str,
    source: str,
    *,
    user: str,
    folder: str,
    unknown_work_s: Seconds,
    profiles: Path,
    send: Send | None = None,
) -> tuple[list[schema.SubmitRequest], list[str]]:
    """The same of a text, and warnings; ``source`` is its name in messages, ``profiles`` the folder of own profiles.

    Raises
    ------
    InputError : the text is wrong; names the line.
    """
    book = every_model(profiles)
    reading = parse(text, source=source, folder=folder, book=book)
    raise_first(reading.faults)
    notes = [note for spec in reading.submissions for note in shell_words(spec)]
    return _requests(reading.submissions, user, unknown_work_s, book, send), notes


def with_variables(request: schema.SubmitRequest, exports: Mapping[str, str], secrets: Sequence[str]) -> None:
    """Add variables of the submitter's shell, and names of secrets, to all jobs that run in no container."""
    for job in request.jobs:
        if not job.program.launcher.startswith(CONTAINERS):
            job.program.exports, job.program.secrets = {**job.program.exports, **exports}, list(secrets)


def with_code(requests: list[schema.SubmitRequest]) -> list[schema.SubmitRequest]:
    """The same, with the digest of each job's script where it runs as it is: not of files that are sent, nor in a container."""
    known: dict[str, str] = {}
    for job in (job for request in requests for job in request.jobs):
        p = job.program
        if not p.bundle and not p.launcher.startswith(CONTAINERS):
            p.exports = p.exports | code_of(p.argv, p.cwd, known)
    return requests


def _requests(
    submissions: Iterable[Submission], user: str, unknown_work_s: Seconds, book: ProfileBook, send: Send | None
) -> list[schema.SubmitRequest]:
    specs = {spec.name: spec for spec in submissions}
    waits = {name: [other.name for other in spec.after if other.name in specs] for name, spec in specs.items()}
    order = TopologicalSorter(waits).static_order()
    return [to_request(specs[name], user, unknown_work_s, book, send) for name in order]


def to_submission(
    written: Mapping[str, Any],
    user: str,
    *,
    source: str,
    folder: Path | None,
    unknown_work_s: Seconds = PRIOR_S,
    send: Send | None = None,
) -> schema.SubmitRequest:
    """One submission from the keys of a job file, as Python values.

    Raises
    ------
    InputError : values are not as expected; names ``source`` and each key.
    """
    book = every_model(default_home() / "profiles")
    try:
        text = json.dumps(dict(written))
    except (TypeError, ValueError) as error:
        raise InputError(f"{source}: a value cannot be written to a job file: {error}.") from None
    reading = parse(text, source=source, folder=str((folder or Path()).absolute()), book=book)
    if reading.faults:
        # The text has one line, so its number would say nothing.
        raise InputError(f"{source}: {' '.join(fault.problem for fault in reading.faults)}")
    (spec,) = reading.submissions
    return with_code([to_request(spec, user, unknown_work_s, book, send)])[0]


def to_request(
    spec: Submission, user: str, unknown_work_s: Seconds, book: ProfileBook, send: Send | None = None
) -> schema.SubmitRequest:
    """A submission as a message; its folder is sent with ``send``.

    Raises
    ------
    InputError : it has a folder to send, and there is no way to send it, or the folder is wrong; what follows from its values, such
        as its steps, is beyond a limit.
    """
    built = build(spec, user=user, prior_s=unknown_work_s, book=book)
    with told(spec.source):
        return _request(spec, built, send)


def _request(spec: Submission, built: Built, send: Send | None) -> schema.SubmitRequest:
    app = built.app
    if spec.send and send is None:
        raise InputError(
            f"{spec.source}: the folder {spec.send!r} cannot be sent from here; submit with `themis submit`."
        )
    bundle = send(spec.send) if spec.send and send is not None else ""
    request = schema.SubmitRequest(
        **same(
            schema.SubmitRequest,
            spec,
            name=app.name,
            user=app.user,
            weight=app.weight,
            jobs=_jobs(spec, app, built.programs, bundle),
            after=[{"app": other.name, "when": str(other.when)} for other in spec.after],
        )
    )
    tell_tuner(request, app)
    if built.profile is not None:
        p = built.profile
        like = GUESSED if p.source.startswith(ASSUMPTION) else ""
        curves = [
            schema.SpeedCurve(gpu_type=gpu_type, gpus=list(curve.gpus), steps_per_s=list(curve.rate), like=like)
            for (gpu_type, _), curve in p.curves.items()
        ]
        request.profile = schema.Profile(slowdown=list(p.slowdown), checkpoint_s=p.checkpoint_s, curves=curves)
    return request


def tell_tuner(request: schema.SubmitRequest, app: App) -> None:
    """Put the app's tuner into its submission."""
    if brackets := brackets_of(app.tuner):
        rungs = [[schema.Rung(jobs=r.jobs, steps=r.steps) for r in bracket.rungs] for bracket in brackets]
        request.brackets = schema.Brackets(brackets=[schema.Bracket(rungs=one) for one in rungs])
    if isinstance(app.tuner, CurveStopping):
        request.curve = schema.CurveStopping(**same(schema.CurveStopping, app.tuner))


def _jobs(spec: Submission, app: App, programs: tuple[Program, ...], bundle: str) -> list[schema.Job]:
    unknown = spec.work is None and spec.walltime_s is None
    return [
        schema.Job(
            **same(
                schema.Job,
                job,
                regimes=regimes_of(job.regimes),
                cpus=spec.cpus,
                memory=spec.memory,
                dynamic=dynamic_message(job.dynamic),
                program=schema.Program(
                    **same(
                        schema.Program,
                        p,
                        cwd=inside(p.cwd, spec.send) if bundle else p.cwd,
                        bundle=bundle,
                        work_is_time=not p.own_steps,
                        work_unknown=unknown,
                    )
                ),
            )
        )
        for job, p in zip(app.jobs, programs)
    ]


def regimes_of(regimes: Iterable[Regime]) -> list[schema.Regime]:
    """Regimes as messages."""
    return [schema.Regime(steps=r.steps, batch=r.batch) for r in regimes]


def dynamic_message(dynamic: Dynamic | None) -> schema.Dynamic | None:
    """A job's declared batch sizes as a message."""
    if dynamic is None:
        return None
    sizes = [schema.BatchSize(batch=batch, steps_per_epoch=steps) for batch, steps in dynamic.epoch_steps]
    return schema.Dynamic.model_validate({"mode": str(dynamic.mode), "sizes": sizes, "regimes": dynamic.regimes})
