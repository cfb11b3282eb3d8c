"""The course of one app: its leases, and its jobs' reports over time. Read outside the arbiter's thread."""

from __future__ import annotations

import math
import sqlite3
from contextlib import closing
from dataclasses import dataclass

import orjson

from themis.model.units import Seconds
from themis.service.api.trials import number
from themis.service.engine.arbiter import Arbiter
from themis.service.engine.journal import first_record

MOST_LEASES, MOST_JOBS, MOST_POINTS, MOST_METRICS = 2000, 60, 300, 8
"""Leases, the last ones; jobs with a curve, those of the lowest values; points of a curve, thinned evenly; metrics."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LeaseRow:
    """A job's attempt on its GPUs; times in seconds since 1970. ``job`` : position in the app. ``ended`` : None while held."""

    job: int
    attempt: int
    gpus: int
    gpu_type: str
    since: Seconds
    started: Seconds | None
    ended: Seconds | None
    cause: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Curve:
    """Values of a metric that a job reported, by steps; None is a value that is no number."""

    metric: str
    job: int
    steps: tuple[float, ...]
    values: tuple[float | None, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Course:
    """Leases and curves; ``left_out`` : jobs with a curve that are not among ``curves``."""

    leases: tuple[LeaseRow, ...]
    curves: tuple[Curve, ...]
    left_out: int


def course(arbiter: Arbiter, app: int) -> Course:
    """The course of the app with this number, which must exist."""
    epoch, first = arbiter.epoch, int(arbiter.state.apps.first_job[app])
    with closing(sqlite3.connect(f"{arbiter.journal.path.absolute().as_uri()}?mode=ro", uri=True)) as db:
        leases = db.execute(
            "SELECT job, attempt, gpus, gpu_type, since, started, ended, cause FROM leases WHERE app = ? "
            "ORDER BY since DESC, job LIMIT ?",
            (app, MOST_LEASES),
        ).fetchall()
        submitted, over, count = db.execute(
            "SELECT submitted, ended, json_array_length(programs) FROM apps WHERE app = ?", (app,)
        ).fetchone()
        records = db.execute(
            "SELECT line FROM records WHERE number >= ? AND kind IN ('LossReported', 'JobReached', 'MetricsReported') AND t <= ? "
            "ORDER BY number",
            (first_record(db, submitted - 1e-3), math.inf if over is None else over + 60.0),
        )
        points: dict[str, dict[int, dict[float, float | None]]] = {}
        for (line,) in records:
            record = orjson.loads(line)
            job = record["job"] - first
            for name, value in record.get("values", [("loss", record.get("loss"))]) if 0 <= job < count else ():
                value = number(value)
                # A job that names no loss reaches its target with infinity: of estimated work, after steps that it never made.
                if record["kind"] == "JobReached" and math.isinf(value):
                    continue
                if name in points or (len(points) < MOST_METRICS and not math.isinf(value)):
                    of_job = points.setdefault(name, {}).setdefault(job, {})
                    of_job[float(record["steps"])] = value if math.isfinite(value) else None
    curves = [
        curve for name, jobs in sorted(points.items(), key=lambda one: one[0] != "loss") for curve in _best(name, jobs)
    ]
    return Course(
        leases=tuple(
            LeaseRow(
                job=job - first,
                attempt=attempt,
                gpus=gpus,
                gpu_type=gpu_type,
                since=epoch + since,
                started=None if started is None else epoch + started,
                ended=None if ended is None else epoch + ended,
                cause=cause,
            )
            for job, attempt, gpus, gpu_type, since, started, ended, cause in reversed(leases)
        ),
        curves=tuple(curves),
        left_out=max((len(jobs) - MOST_JOBS for jobs in points.values() if len(jobs) > MOST_JOBS), default=0),
    )


def _best(metric: str, jobs: dict[int, dict[float, float | None]]) -> list[Curve]:
    """The curves of a metric: of the jobs with its lowest values, in order of the jobs."""

    def lowest(job: int) -> tuple[float, int]:
        return min((value for value in jobs[job].values() if value is not None), default=math.inf), job

    return [_curve(metric, job, jobs[job]) for job in sorted(sorted(jobs, key=lowest)[:MOST_JOBS])]


def _curve(metric: str, job: int, points: dict[float, float | None]) -> Curve:
    steps = sorted(points)
    if len(steps) > MOST_POINTS:
        steps = [steps[round(i * (len(steps) - 1) / (MOST_POINTS - 1))] for i in range(MOST_POINTS)]
    return Curve(metric=metric, job=job, steps=tuple(steps), values=tuple(points[step] for step in steps))
