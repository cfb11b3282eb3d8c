"""Policies side by side: means, intervals, the best, and a table that fits the terminal."""

from __future__ import annotations

import io
from dataclasses import replace

import pytest
from report_cases import MINI, fold, runs
from rich.console import Console

from themis.report.columns import ComparisonColumn
from themis.report.compare import caption, compare, labels
from themis.report.definitions import DEFINITIONS
from themis.report.numbers import COLUMNS
from themis.report.table import summary_table

SPAN = [ComparisonColumn(name="makespan", title="h", scale=1.0, digits=0)]


def text(table: object, width: int = 120) -> str:
    out = io.StringIO()
    Console(file=out, width=width, force_terminal=False).print(table)
    return out.getvalue()


def test_several_seeds_give_mean_and_confidence_interval() -> None:
    row = compare(runs(("themis",), seeds=3), SPAN)[0]
    assert [r.makespan for r in row.runs] == [300.0, 600.0, 900.0]
    assert row.cells[0].mean == 600.0
    # Student's t with 2 degrees of freedom: 4.3027 x 300 / sqrt(3).
    assert row.cells[0].half == pytest.approx(745.24, abs=0.01)


def test_one_seed_has_no_interval() -> None:
    assert compare(runs(("themis",)), SPAN)[0].cells[0].half != 0.0
    assert "±" not in text(summary_table(runs()))


def test_the_best_is_what_reads_best_and_a_draw_of_all_has_none() -> None:
    rows = compare(runs(("a", "b", "c")))
    best = {c.name: [row.label for row in rows if row.best[i]] for i, c in enumerate(COLUMNS)}
    assert best["makespan"] == ["a"]
    assert best["utilisation"] == []


def test_differing_conditions_join_the_label() -> None:
    run = fold(MINI)
    short = replace(run, settings={**run.settings, "lease_s": 300.0})
    assert labels([run, short]) == ["themis, lease_s=600.0", "themis, lease_s=300.0"]
    assert labels([run, replace(run, cluster="big")]) == ["themis, 4+2", "themis, big"]
    assert labels([run, replace(run, seed=7)]) == ["themis", "themis"]


def test_every_column_is_defined() -> None:
    assert all(c.definition for c in COLUMNS)
    assert DEFINITIONS["rho_exact"] in next(c for c in COLUMNS if c.name == "rho_exact_max").definition


@pytest.mark.parametrize("seeds", [1, 5])
def test_the_table_fits_120_columns_and_says_what_it_shows(seeds: int) -> None:
    shown = text(summary_table(runs(("themis", "themis:f=0.7,payment=floor", "gandiva"), seeds), wide=True))
    assert max(len(line) for line in shown.splitlines()) <= 120
    assert "…" not in shown
    for word in ("Simulated", "workload mini", "4+2 (6 GPUs)", "2 apps", "paper", "exact", "gandiva"):
        assert word in shown
    assert ("seeds 0 to 4" if seeds == 5 else "seed 0") in shown
    assert ("95 %" in shown) == (seeds > 1)


@pytest.mark.parametrize("seeds", [1, 5])
def test_the_tables_chosen_numbers_fit_80_columns(seeds: int) -> None:
    shown = text(summary_table(runs(("themis", "themis:f=0.7,payment=floor", "gandiva"), seeds)), 80)
    assert max(len(line.rstrip()) for line in shown.splitlines()) <= 80
    assert "…" not in shown
    assert "× own share" in shown
    assert "ρ" not in shown.partition("Simulated")[0], "symbols are of the wide table"


def test_measured_runs_are_not_called_simulated() -> None:
    run = fold(MINI)
    assert caption([replace(run, simulated=False)]).startswith("Measured")
    assert caption([run, replace(run, simulated=False, seed=3)]).startswith("Simulated and measured")
    assert "seeds 0, 3" in caption([run, replace(run, seed=3)])
