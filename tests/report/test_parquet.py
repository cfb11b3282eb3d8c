"""Parquet says what JSON and CSV say, and how apps and jobs belong together."""

from __future__ import annotations

from dataclasses import fields
from pathlib import Path

import polars as pl
import pytest
from report_cases import MINI, fold, runs

from themis.errors import InputError
from themis.report.delivery import Missing
from themis.report.export import to_dict
from themis.report.numbers import SCALARS
from themis.report.parquet import write_parquet
from themis.report.rows import AppRow


def test_three_tables_hold_every_number(tmp_path: Path) -> None:
    made = runs(("themis", "drf"), seeds=2)
    results, apps, jobs = map(pl.read_parquet, write_parquet(tmp_path, made))
    assert results.select("policy", "seed").rows() == [("themis", 0), ("themis", 1), ("drf", 0), ("drf", 1)]
    assert results["apps"].to_list() == [2] * 4
    run = to_dict(made[0])
    for name in SCALARS:
        assert results[name][0] == pytest.approx(run[name]), name
    assert results["rho_exact_max"][0] == 2.5
    causes = {f"missing_{f.name}" for f in fields(Missing)}
    assert set(apps.columns) == {"policy", "seed", *(f.name for f in fields(AppRow) if f.name != "missing")} | causes
    assert apps["missing_restarts"][0] == made[0].apps[0].missing.restarts
    assert (len(apps), len(jobs)) == (4 * 2, 4 * 3)
    joined = jobs.group_by("policy", "seed", "app").agg(pl.col("gpu_seconds").sum())
    both = apps.join(joined, on=["policy", "seed", "app"], suffix="_jobs")
    assert both["gpu_seconds"].to_list() == pytest.approx(both["gpu_seconds_jobs"].to_list())


def test_what_is_not_a_number_is_null_and_counts_are_whole(tmp_path: Path) -> None:
    results, apps, jobs = map(pl.read_parquet, write_parquet(tmp_path, [fold(MINI[:9])]))
    assert results["jct_mean"][0] is None
    assert apps["rho_paper"].to_list() == [None, None]
    assert jobs["finish"].null_count() == 3
    for name in ("restarts", "apps_max", "auctions"):
        assert results[name].dtype == pl.Int64, name


def test_equal_runs_give_equal_bytes(tmp_path: Path) -> None:
    for a, b in zip(write_parquet(tmp_path / "a", runs()), write_parquet(tmp_path / "b", runs())):
        assert a.read_bytes() == b.read_bytes()


def test_a_folder_that_is_a_file_is_refused(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("", encoding="utf-8")
    with pytest.raises(InputError, match="cannot write Parquet into"):
        write_parquet(tmp_path / "file", runs())
