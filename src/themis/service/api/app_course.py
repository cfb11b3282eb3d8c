"""The course of one app: its leases, and its jobs' reports over time. Read outside the arbiter's thread."""

from __future__ import annotations

import math
import sqlite3
from contextlib import closing
from dataclasses import dataclass

import orjson

from themis.model.units import Seconds
from themis.service.engine.arbiter import Arbiter
from themis.service.engine.journal import first_record

MOST_LEASES, MOST_JOBS, MOST_POINTS = 2000, 60, 300
"""Leases, the last ones; jobs with a curve, those of the lowest loss; points of a curve, thinned evenly."""


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
    """Losses that a job reported, by steps."""

    job: int
    steps: tuple[float, ...]
    losses: tuple[float, ...]


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
            "SELECT line FROM records WHERE number >= ? AND kind IN ('LossReported', 'JobReached') AND t <= ? ORDER BY number",
            (first_record(db, submitted - 1e-3), math.inf if over is None else over + 60.0),
        )
        points: dict[int, dict[float, float]] = {}
        for (line,) in records:
            record = orjson.loads(line)
            job, loss = record["job"] - first, record["loss"]
            if 0 <= job < count and isinstance(loss, int | float) and math.isfinite(loss):
                points.setdefault(job, {})[float(record["steps"])] = float(loss)
    best = sorted(points, key=lambda job: (min(points[job].values()), job))[:MOST_JOBS]
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
        curves=tuple(_curve(job, points[job]) for job in sorted(best)),
        left_out=len(points) - len(best),
    )


def _curve(job: int, points: dict[float, float]) -> Curve:
    steps = sorted(points)
    if len(steps) > MOST_POINTS:
        steps = [steps[round(i * (len(steps) - 1) / (MOST_POINTS - 1))] for i in range(MOST_POINTS)]
    return Curve(job=job, steps=tuple(steps), losses=tuple(points[step] for step in steps))
