"""Job files: YAML documents, one per app, to ``Submission``; finds all faults of a file.

The content of a file never raises: ``parse`` returns submissions and faults. ``read_jobs`` raises the first fault;
``check`` lists them all.
"""

from __future__ import annotations

import posixpath
from collections.abc import Collection, Iterable
from dataclasses import dataclass
from pathlib import Path

from themis.errors import UnknownName
from themis.jobs.after import unmet
from themis.jobs.batch_schedules import DynamicText, declared
from themis.jobs.file_errors import Fault, Findings, raise_first
from themis.jobs.placeholders import check_places, place
from themis.jobs.runnable import check_shell, check_texts
from themis.jobs.spec import Hints, Submission, Trial
from themis.jobs.tuners import sweep, tuner_text
from themis.jobs.written import JobText, SweepText
from themis.limits import MOST_JOB_VALUES, read_text
from themis.machines.engines.program import URL
from themis.model.speed import ProfileBook
from themis.model.workload import Bag, Tuner
from themis.schema.same import same
from themis.traces.profiles.models import DEFAULT_BOOK
from themis.yaml_text import BadYaml, Document, documents


@dataclass(frozen=True, slots=True, kw_only=True)
class Reading:
    """The submissions and the faults of a text. If there are faults, submissions are missing."""

    submissions: tuple[Submission, ...] = ()
    faults: tuple[Fault, ...] = ()


def parse(
    text: str, *, source: str, folder: str = "", known: Collection[str] | None = None, book: ProfileBook = DEFAULT_BOOK
) -> Reading:
    """Read the documents of a text.

    Parameters
    ----------
    source : the name of the file, for messages.
    folder : absolute path that ``workdir`` and ``checkpoint_dir`` are relative to; empty: they must be absolute.
    known : names of existing apps, for ``after``; None: not checked.
    book : profiles, for ``model``.
    """
    found: list[Submission] = []
    notes: list[Findings] = []
    faults: list[Fault] = []
    try:
        for document in documents(text, MOST_JOB_VALUES):
            findings = Findings(source, document)
            notes.append(findings)
            submission = _submission(findings, folder, book)
            if submission:
                found.append(submission)
    except BadYaml as error:
        faults.append(Fault(source, error.line, f"{error.problem}."))
    if not notes and not faults:
        faults.append(Fault(source, 0, "the file is empty, expected a job with at least the keys name and command."))
    _names_differ(notes)
    # Names of faulty documents count, so that one mistake is reported once.
    written = {name: findings for findings in notes if (name := _name(findings))}
    for submission, problem in unmet(found, written, known):
        written[submission.name].add(("after",), problem)
    faults += [fault for findings in notes for fault in findings.faults]
    return Reading(submissions=tuple(found), faults=tuple(sorted(faults, key=lambda fault: fault.line)))


def read_jobs(
    paths: Iterable[Path],
    *,
    folder: Path | None = None,
    known: Collection[str] | None = None,
    book: ProfileBook = DEFAULT_BOOK,
) -> tuple[Submission, ...]:
    """The submissions of files, in order; raises InputError for the first fault.

    Parameters
    ----------
    folder : the folder that ``workdir`` is relative to; the current one if None.
    """
    out: list[Submission] = []
    base = str((folder or Path()).absolute())
    for path in paths:
        reading = parse(read_text(path), source=str(path), folder=base, known=known, book=book)
        raise_first(reading.faults)
        out += reading.submissions
    return tuple(out)


def _submission(findings: Findings, folder: str, book: ProfileBook) -> Submission | None:
    document = findings.document
    _as_written(document)
    _for_shell(document, findings)
    _not_adaptive(document, findings)
    job = findings.valid(JobText, document.data)
    # Also find faults inside the sweep if the rest is faulty.
    written = document.data.get("sweep") if isinstance(document.data, dict) else None
    search = findings.valid(SweepText, written, ("sweep",)) if written is not None else None
    if isinstance(written, dict):
        tuner_text(written.get("tuner"), findings)
    if job is None:
        return None
    _together(job, search, findings)
    changes = findings.valid(DynamicText, job.dynamic, ("dynamic",)) if job.dynamic is not None else None
    dynamic, regimes = (
        declared(changes, job.batch, job.work, job.steps_per_epoch or 0.0, findings) if changes else (None, ())
    )
    _model(job, book, findings)
    trials, tuner = _trials(job, search, findings)
    send = _absolute(job.send, folder, "send", findings) if job.send else ""
    workdir = _absolute(job.workdir or ".", folder, "workdir", findings)
    if send and not _within(workdir, send):
        if job.workdir is not None:
            findings.expected(("workdir",), job.workdir, f"a folder in {send!r}, which is sent")
        workdir = send
    if job.outputs and not send:
        findings.expected(
            ("outputs",),
            list(job.outputs),
            "outputs only with send; without it the job runs in its workdir, and they stay there",
        )
    url = job.checkpoint_dir if job.checkpoint_dir and URL.match(job.checkpoint_dir) else ""
    saves = _absolute(job.checkpoint_dir, folder, "checkpoint_dir", findings) if job.checkpoint_dir and not url else ""
    several = job.array is not None or job.sweep is not None
    if several and (search is not None or job.sweep is None):
        places = list(search.parameters) if search else []
        check_places(job.command, job.env, saves, places, findings)
    check_texts(job.command, job.env, findings)
    check_shell(document.data.get("command"), job.command, findings)
    if findings.faults:
        return None
    if several and saves and len({place(saves, job.name, trial) for trial in trials}) < len(trials):
        saves = posixpath.join(saves, "{index}")
    return Submission(
        **same(
            Submission,
            job,
            gpus_min=job.gpus[0],
            gpus_max=job.gpus[1],
            trials=trials,
            tuner=tuner,
            hints=Hints(**same(Hints, job)),
            kind="sweep" if search else "array" if job.array else "job",
            workdir=workdir,
            checkpoint_dir=saves,
            checkpoint_url=url,
            send=send,
            at_once=job.array.at_once if job.array else 0,
            work=search.budget if search else job.work,
            dynamic=dynamic,
            regimes=regimes,
            source=f"{findings.source}, line {document.line(())}",
        )
    )


def _trials(job: JobText, search: SweepText | None, findings: Findings) -> tuple[tuple[Trial, ...], Tuner]:
    if search is not None:
        return sweep(search, job.steps_per_epoch or 1.0, findings) or ((), Bag())
    indices = job.array.indices if job.array else (0,)
    return tuple(Trial(index=index, parameters={}) for index in indices), Bag()


def _as_written(document: Document) -> None:
    """Keep words of a command and values of variables as they were written: ``1.10`` is not 1.1."""
    data = document.data
    if not isinstance(data, dict):
        return
    command, env = data.get("command"), data.get("env")
    if isinstance(command, list):
        data["command"] = [document.texts.get(("command", i), word) for i, word in enumerate(command)]
    if isinstance(env, dict):
        data["env"] = {key: document.texts.get(("env", key), value) for key, value in env.items()}


def _for_shell(document: Document, findings: Findings) -> None:
    """Command line for a shell, which ``shell: true`` asks for."""
    data = document.data
    if not isinstance(data, dict) or data.get("shell") is not True:
        return
    command = data.get("command")
    if isinstance(command, str) and command.strip():
        data["command"] = ["sh", "-c", command]
    elif "command" in data:
        findings.expected(("command",), command, "one line for the shell, because of shell: true")
        data["command"] = ["sh"]


def _not_adaptive(document: Document, findings: Findings) -> None:
    """Refuse ``adaptive`` in words: no live job can be told its batch size yet, so it would have none of what it asks for."""
    if isinstance(document.data, dict) and "adaptive" in document.data:
        findings.expected(
            ("adaptive",),
            document.data.pop("adaptive"),
            "no such key: only simulations choose batch sizes so far; remove it, and write gpus: 1..8 for a number of GPUs that "
            "changes at a fixed global batch size, or dynamic for a batch size that the script changes",
        )


def _together(job: JobText, search: SweepText | None, findings: Findings) -> None:
    """Check keys that exclude or require each other."""
    if job.sweep is not None and job.array is not None:
        findings.add(("array",), "keys 'array' and 'sweep' exclude each other; remove one.")
    if job.sweep is not None and job.dynamic is not None:
        findings.add(("dynamic",), "keys 'dynamic' and 'sweep' exclude each other: jobs of a sweep cannot be dynamic.")
    if job.sweep is not None and job.work is not None:
        findings.add(
            ("work",), "keys 'work' and 'sweep' exclude each other; write the work of a trial as 'budget' in sweep."
        )
    if job.model and job.speed:
        findings.add(("speed",), "keys 'model' and 'speed' exclude each other; remove one.")
    for key, given in (("slowdown", job.slowdown), ("checkpoint_time", job.checkpoint_s)):
        if given is not None and not job.speed:
            findings.add((key,), f"key {key!r} requires the key 'speed'.")
    if job.speed and job.gpu_types and "*" not in job.speed and not set(job.speed) & set(job.gpu_types):
        findings.add(
            ("speed",),
            f"key 'speed' has {', '.join(job.speed)}, expected at least one of the gpu_types "
            f"{', '.join(job.gpu_types)}.",
        )
    works = {("work",): job.work} | ({("sweep", "budget"): search.budget} if search else {})
    for path, work in works.items():
        if work and work.unit == "epoch" and not job.steps_per_epoch:
            findings.add(path, "work in epochs requires the key 'steps_per_epoch'; add it, or give the work in steps.")


def _model(job: JobText, book: ProfileBook, findings: Findings) -> None:
    try:
        if job.model:
            book.get(job.model)
    except UnknownName as error:
        findings.add(("model",), f"{error} Use 'speed' for your own model.")


def _absolute(path: str, folder: str, key: str, findings: Findings) -> str:
    whole = posixpath.normpath(posixpath.join(folder, path))
    if not whole.startswith("/"):
        findings.expected((key,), path, "an absolute path, because the submission has no folder")
    return whole


def _within(path: str, folder: str) -> bool:
    return path == folder or path.startswith(f"{folder.rstrip('/')}/")


def _names_differ(notes: list[Findings]) -> None:
    first: dict[str, int] = {}
    for findings in notes:
        name = _name(findings)
        if name in first:
            findings.add(
                ("name",), f"key 'name': duplicate name {name!r}, also in line {first[name]}; names must be unique."
            )
        if name:
            first.setdefault(name, findings.document.line(("name",)))


def _name(findings: Findings) -> str:
    data = findings.document.data
    name = data.get("name") if isinstance(data, dict) else None
    return name if isinstance(name, str) else ""
