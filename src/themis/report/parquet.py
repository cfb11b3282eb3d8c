"""Results as Parquet, for data frames: one table of runs, one of apps, one of jobs, keyed by policy and seed.

Columns are named and defined as in JSON and CSV (``definitions``); NaN is null.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import fields
from pathlib import Path

import polars as pl

from themis.errors import InputError
from themis.report.delivery import Missing
from themis.report.export import WHO
from themis.report.numbers import COUNTS, RHOS, SCALARS
from themis.report.result import RunMetrics, scalar
from themis.report.rows import AppRow, JobTable

FILES = ("results.parquet", "apps.parquet", "jobs.parquet")


def write_parquet(folder: Path, runs: Sequence[RunMetrics]) -> list[Path]:
    """Write the three tables into a folder and return where they are.

    Raises
    ------
    InputError : they cannot be written.
    """
    paths = [folder / name for name in FILES]
    try:
        folder.mkdir(parents=True, exist_ok=True)
        for path, frame in zip(paths, (results_frame(runs), apps_frame(runs), jobs_frame(runs))):
            frame.write_parquet(path)
    except OSError as error:
        raise InputError(f"cannot write Parquet into {folder}: {error.strerror or error}.") from None
    return paths


def results_frame(runs: Sequence[RunMetrics]) -> pl.DataFrame:
    """A row a run."""
    columns: dict[str, list[object]] = {name: [getattr(run, name) for run in runs] for name in WHO}
    columns["apps"] = [len(run.apps) for run in runs]
    for name in (*RHOS, *SCALARS):
        kind = int if name in COUNTS else float
        columns[name] = [kind(scalar(run, name)) for run in runs]
    return _clean(pl.DataFrame(columns))


def apps_frame(runs: Sequence[RunMetrics]) -> pl.DataFrame:
    """A row an app and run."""
    names = [f.name for f in fields(AppRow) if f.name != "missing"]
    causes = [f.name for f in fields(Missing)]
    columns: dict[str, list[object]] = {
        "policy": [run.policy for run in runs for _ in run.apps],
        "seed": [run.seed for run in runs for _ in run.apps],
        **{name: [getattr(app, name) for run in runs for app in run.apps] for name in names},
        **{f"missing_{name}": [getattr(app.missing, name) for run in runs for app in run.apps] for name in causes},
    }
    return _clean(pl.DataFrame(columns))


def jobs_frame(runs: Sequence[RunMetrics]) -> pl.DataFrame:
    """A row a job and run; ``app`` is the app's number in the table of apps."""
    names = [f.name for f in fields(JobTable)]
    frames = [
        pl.DataFrame({name: getattr(run.jobs, name) for name in names}).select(
            pl.lit(run.policy).alias("policy"), pl.lit(run.seed, dtype=pl.Int64).alias("seed"), *names
        )
        for run in runs
    ]
    return _clean(pl.concat(frames)) if frames else pl.DataFrame()


def _clean(frame: pl.DataFrame) -> pl.DataFrame:
    return frame.with_columns(pl.col(pl.Float64).fill_nan(None))
