"""The jobs of a sweep as callers see them: parameters, reported losses, and which ended early, when and why."""

from __future__ import annotations

import math
import sqlite3
from contextlib import closing
from pathlib import Path
from typing import Any

import orjson

from themis.core.tables import OUTCOMES
from themis.model.units import Seconds
from themis.schema import messages as schema
from themis.service.api import views
from themis.service.engine.arbiter import Arbiter

KINDS = ("LossReported", "JobReached", "CurveStopped", "JobEnded", "JobGivenUp")


def of_app(arbiter: Arbiter, ref: str) -> schema.TrialsReply:
    """The jobs of an app as they are now; in the arbiter's thread.

    Raises
    ------
    UnknownName : there is no such app.
    """
    s, a = views.state_now(arbiter), views.find_app(arbiter, ref)
    entry = arbiter.journal.apps("app = ?", a)[0]
    jobs, t = s.app_jobs(a), s.jobs
    steps, seconds = s.steps_now(jobs).tolist(), views.ran_s(arbiter, s, jobs).tolist()
    out = []
    for i, j in enumerate(jobs.tolist()):
        out.append(
            schema.Trial(
                job=j,
                name=s.job_specs[j].name,
                state=views.job_state(arbiter, s, j),
                outcome=OUTCOMES[int(t.outcome[j])],
                parameters=entry.programs[i].env.get("THEMIS_PARAMS", "{}"),
                steps=steps[i],
                elapsed_s=seconds[i],
                gpu_hours=float(t.attained[j] + t.gpus[j] * max(s.now - t.since[j], 0.0)) / 3600,
            )
        )
    return schema.TrialsReply(app=views.app_row(arbiter, s, entry, {}), trials=out)


def add_reports(found: schema.TrialsReply, journal: Path, epoch: Seconds) -> None:
    """Add the values that the jobs reported, and the endings of jobs that stopped early; callable from any thread.

    ``epoch`` : start of the journal, in seconds since 1970.
    """
    trials = {trial.job: trial for trial in found.trials}
    with closing(sqlite3.connect(f"{journal.absolute().as_uri()}?mode=ro", uri=True)) as db:
        rows = db.execute(
            f"SELECT t, kind, line FROM records WHERE t >= ? AND kind IN ({','.join('?' * len(KINDS))}) ORDER BY number",
            (found.app.submitted - epoch - 1e-3, *KINDS),
        )
        for t, kind, line in rows:
            record = orjson.loads(line)
            trial = trials.get(record["job"])
            if trial is not None:
                _take_in(trial, kind, record, epoch + t)


def _take_in(trial: schema.Trial, kind: str, record: dict[str, Any], at: Seconds) -> None:
    if kind in ("LossReported", "JobReached"):
        loss = record["loss"]
        if isinstance(loss, int | float) and math.isfinite(loss):
            trial.last_loss = loss
            if trial.best_loss is None or loss < trial.best_loss:
                trial.best_loss, trial.best_steps = loss, record["steps"]
    elif kind == "CurveStopped":
        trial.why_stopped = (
            f"curve stopping: its loss is forecast to end at {record['forecast']:.4g} (+- {record['deviation']:.2g}), and has "
            f"{record['chance']:.1%} chance to be below {record['standard']:.4g}"
        )
    elif kind == "JobGivenUp":
        trial.why_stopped = f"given up: {record['cause']}"
    elif record["outcome"] != "completed":
        trial.stopped = at
        if record["outcome"] == "stopped" and not trial.why_stopped:
            trial.why_stopped = f"not among the best of its rung at {record['steps']:.0f} steps"
