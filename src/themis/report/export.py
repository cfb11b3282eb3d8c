"""Metrics as JSON and CSV, for other programs. What is not a number (NaN) is null in JSON and empty in CSV."""

from __future__ import annotations

import csv
import io
import math
from collections.abc import Sequence
from dataclasses import asdict, fields
from typing import Any

import orjson

from themis.report.definitions import DEFINITIONS
from themis.report.delivery import Missing
from themis.report.gangs import Piece
from themis.report.numbers import RHO_FORMS, RHOS, SCALARS
from themis.report.result import RunMetrics, scalar
from themis.report.rows import AppRow
from themis.report.users import by_user

WHO = ("policy", "seed", "workload", "cluster", "gpus", "simulated", "version")


def to_dict(run: RunMetrics) -> dict[str, Any]:
    """One run as plain data: conditions, numbers, and a row for each user and app; no series."""
    return {
        **{name: getattr(run, name) for name in WHO},
        "machines": run.machines,
        "speeds": run.inputs.speeds,
        "speeds_assumed": None if run.inputs.assumed is None else [speed._asdict() for speed in run.inputs.assumed],
        "source": run.source,
        "params": dict(run.params),
        "settings": dict(run.settings),
        **{form: asdict(getattr(run, form)) for form in RHO_FORMS},
        **{name: getattr(run, name) for name in SCALARS},
        "coverage": {
            **asdict(run.coverage),
            "of_finishes": run.coverage.of_finishes,
            "of_starts": run.coverage.of_starts,
        },
        "users": [asdict(user) for user in by_user(run)],
        "apps": [asdict(app) for app in run.apps],
    }


def to_json(runs: Sequence[RunMetrics]) -> str:
    """All runs with the definitions of their numbers."""
    out = {"runs": [to_dict(run) for run in runs], "definitions": dict(DEFINITIONS)}
    return orjson.dumps(out, option=orjson.OPT_INDENT_2 | orjson.OPT_SERIALIZE_NUMPY).decode()


def to_csv(runs: Sequence[RunMetrics]) -> str:
    """One row a run."""
    numbers = (*RHOS, *SCALARS)
    rows = [
        [*(getattr(run, name) for name in WHO), len(run.apps), *(scalar(run, name) for name in numbers)] for run in runs
    ]
    return _csv((*WHO, "apps", *numbers), rows)


def apps_to_csv(runs: Sequence[RunMetrics]) -> str:
    """One row an app and run."""
    names = [f.name for f in fields(AppRow) if f.name != "missing"]
    causes = [f.name for f in fields(Missing)]
    rows = [
        [run.policy, run.seed, *(getattr(app, n) for n in names), *(getattr(app.missing, n) for n in causes)]
        for run in runs
        for app in run.apps
    ]
    return _csv(("policy", "seed", *names, *(f"missing_{cause}" for cause in causes)), rows)


def gangs_to_csv(runs: Sequence[RunMetrics]) -> str:
    """One row a piece of an elastic job's training and run; empty without such jobs."""
    rows = [
        [run.policy, run.seed, run.apps[run.jobs.app[piece.job]].name, run.jobs.name[piece.job], *piece]
        for run in runs
        for piece in run.gangs
    ]
    return _csv(("policy", "seed", "app", "name", *Piece._fields), rows) if rows else ""


def _csv(header: Sequence[str], rows: Sequence[Sequence[object]]) -> str:
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n")
    writer.writerow(header)
    writer.writerows([["" if isinstance(v, float) and math.isnan(v) else _plain(v) for v in row] for row in rows])
    return out.getvalue()


def _plain(value: object) -> object:
    """Counts without a decimal point."""
    return int(value) if isinstance(value, float) and value.is_integer() else value
