"""The jobs of a sweep as callers see them: parameters, reported losses, and which ended early, when and why."""

from __future__ import annotations

import math
import sqlite3
from collections.abc import Iterator, Sequence
from contextlib import closing
from pathlib import Path
from typing import Any

import orjson

from themis.core.tables import OUTCOMES
from themis.model.units import Seconds
from themis.schema import messages as schema
from themis.service.api import views
from themis.service.engine.arbiter import Arbiter
from themis.service.engine.journal import first_record

KINDS = ("LossReported", "MetricsReported", "JobReached", "CurveStopped", "JobEnded", "JobGivenUp")


def of_app(arbiter: Arbiter, ref: str) -> schema.TrialsReply:
    """The jobs of an app as they are now; in the arbiter's thread.

    Raises
    ------
    UnknownName : there is no such app.
    """
    s, a = views.state_now(arbiter), views.find_app(arbiter, ref)
    entry = arbiter.journal.apps("app = ?", a)[0]
    jobs, t = s.app_jobs(a), s.jobs
    seconds = views.ran_s(arbiter, s, jobs).tolist()
    out = []
    for i, j in enumerate(jobs.tolist()):
        steps, total = views.steps_of(s, j, entry.programs[i])
        out.append(
            schema.Trial(
                job=i,
                name=s.job_specs[j].name,
                state=views.job_state(arbiter, s, j),
                outcome=OUTCOMES[int(t.outcome[j])],
                parameters=entry.programs[i].env.get("THEMIS_PARAMS", "{}"),
                steps=steps,
                total=total,
                checkpoint=entry.programs[i].checkpoint_dir or entry.programs[i].checkpoint_url,
                elapsed_s=seconds[i],
                gpu_hours=float(t.attained[j] + t.gpus[j] * max(s.now - t.since[j], 0.0)) / 3600,
            )
        )
    return schema.TrialsReply(app=views.app_row(arbiter, s, entry), trials=out)


def add_reports(found: schema.TrialsReply, first: int, journal: Path, epoch: Seconds) -> None:
    """Add the values that the jobs reported, and the endings of jobs that stopped early; callable from any thread.

    Parameters
    ----------
    first : number of the app's first job in the journal.
    epoch : start of the journal, in seconds since 1970.
    """
    trials = {first + trial.job: trial for trial in found.trials}
    alone = {j for j, trial in trials.items() if trial.total is None}
    for t, kind, record in _records(journal, found.app.submitted - epoch, KINDS):
        trial = trials.get(record["job"])
        if trial is not None:
            if kind == "MetricsReported":
                _count(trial, record, alone)
            _take_in(trial, kind, record, epoch + t)


def add_own_counts(found: schema.ShowReply, first: int, journal: Path, epoch: Seconds) -> None:
    """Add the metrics of an app's jobs, and the steps of programs that alone know them, as ``add_reports`` does."""
    jobs = {first + job.id: job for job in found.jobs}
    alone = {j for j, job in jobs.items() if job.total is None}
    for _, _, record in _records(journal, found.app.submitted - epoch, ("MetricsReported",)):
        job = jobs.get(record["job"])
        if job is not None:
            _count(job, record, alone)


def _records(journal: Path, since: Seconds, kinds: Sequence[str]) -> Iterator[tuple[Seconds, str, dict[str, Any]]]:
    """Time, kind and fields of the records of these kinds."""
    with closing(sqlite3.connect(f"{journal.absolute().as_uri()}?mode=ro", uri=True)) as db:
        rows = db.execute(
            f"SELECT t, kind, line FROM records WHERE number >= ? AND kind IN ({','.join('?' * len(kinds))}) ORDER BY number",
            (first_record(db, since - 1e-3), *kinds),
        )
        for t, kind, line in rows:
            yield t, kind, orjson.loads(line)


def _count(job: schema.JobInfo | schema.Trial, record: dict[str, Any], alone: set[int]) -> None:
    """Take a program's own count in: its metrics, and its steps, where it ``alone`` knows them."""
    if record["job"] in alone:
        job.steps, job.total = record["steps"], record["total"] or None
    job.metrics |= {name: number(value) for name, value in record["values"]}


def number(value: Any) -> float:
    """A number of a record, in which NaN and infinity are objects; NaN for what is none."""
    if isinstance(value, dict):
        return float(value.get("~", "nan"))
    return float(value) if isinstance(value, int | float) else math.nan


def _take_in(trial: schema.Trial, kind: str, record: dict[str, Any], at: Seconds) -> None:
    loss = None
    if kind == "MetricsReported":
        loss = dict(record["values"]).get("loss")
    elif kind in ("LossReported", "JobReached"):
        loss = record["loss"]
        # A job that names no loss reaches its target with infinity.
        if kind == "JobReached" and math.isinf(number(loss)):
            loss = None
    if loss is not None:
        loss = number(loss)
        trial.last_loss = loss
        if math.isfinite(loss) and (trial.best_loss is None or loss < trial.best_loss):
            trial.best_loss, trial.best_steps = loss, record["steps"]
    if kind == "CurveStopped":
        trial.why_stopped = (
            f"curve stopping: its loss is forecast to end at {record['forecast']:.4g} (+- {record['deviation']:.2g}), and has "
            f"{record['chance']:.1%} chance to be below {record['standard']:.4g}"
        )
    elif kind == "JobGivenUp":
        trial.why_stopped = f"given up: {record['cause']}"
    elif kind == "JobEnded" and record["outcome"] != "completed":
        trial.stopped = at
        if record["outcome"] == "stopped" and not trial.why_stopped:
            trial.why_stopped = f"not among the best of its rung at {record['steps']:.0f} steps"
