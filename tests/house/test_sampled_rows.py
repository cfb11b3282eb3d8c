"""A sample of the rows of the pages on the papers, measured again: 20 CPU seconds. A row that differs is stale."""

from __future__ import annotations

import importlib
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from figures import agree, tables_of, text_of
from lint import documents

ROOT = Path(__file__).parents[2]
TABLES = tables_of(ROOT, documents(ROOT))
pytestmark = [pytest.mark.slow, pytest.mark.long]


def script(name: str) -> Any:
    """A script of reproduction/, if the recorded traces are there."""
    sys.path.insert(0, str(ROOT / "reproduction"))
    module = importlib.import_module(name)
    data = importlib.import_module("grid").SHARED
    if not data.exists():
        pytest.skip(f"{data} is not there; set THEMIS_DATA")
    return module


def same(found: str, cell: str) -> None:
    """A figure is the page's, to the digits of the page."""
    shown = text_of(cell, TABLES)
    assert agree(shown, float(found.replace(",", ""))), f"{cell} is {shown} on the page and {found} now"


@pytest.mark.parametrize(
    ("table", "policy"),
    [
        ("shockwave-recorded", "shockwave"),
        ("shockwave-market", "shockwave:plan=market"),
        ("shockwave-recorded", "themis"),
        ("shockwave-recorded", "max_min_fairness:round_s=120"),
        ("shockwave-recorded", "allox:round_s=120"),
    ],
)
def test_shockwaves_recorded_trace_has_the_figures_of_its_page(table: str, policy: str) -> None:
    shockwave = script("shockwave_nsdi23")
    world = shockwave.recorded()
    jct, starts, _ = shockwave.simulate(world, policy)
    makespan, mean, worst, *_ = shockwave.figures(world, jct)
    for found, column in (
        (makespan, "makespan s"),
        (mean, "mean JCT s"),
        (worst, "worst rho_static"),
        (str(starts), "starts"),
    ):
        same(found, f"{table}[{policy}; {column}]")


def test_a_planned_trace_of_figure_4_has_the_figures_of_its_page() -> None:
    shockwave = script("shockwave_nsdi23")
    world = shockwave.example_4()
    jct, _, _ = shockwave.simulate(world, "ossp")
    same(f"{np.max(shockwave.rhos(world, jct)[0]):.0f}", "shockwave-examples[4; ossp; makespan s]")


@pytest.mark.parametrize("policy", ["makespan", "max_min_fairness"])
def test_gavels_static_trace_has_the_figures_of_its_page(policy: str) -> None:
    gavel = script("gavel_osdi20")
    (row,) = (row for row in gavel.RECORDED if row[:2] == (gavel.STATIC, policy))
    table = gavel.recorded(importlib.import_module("gavel_runs").simulate, [row])
    ours = table.splitlines()[-1].split(" | ")[3]
    same(ours.removesuffix(" h"), f"gavel-recorded[static, makespan; {policy}; ours]")


def test_shockwaves_trace_under_srsf_has_the_figures_of_the_grounds() -> None:
    script("shockwave_nsdi23")
    found = importlib.import_module("fair_finish").run("shockwave", "srsf", 0)
    same(f"{found['jct']:.0f}", "grounds-shockwave[srsf; mean JCT s]")
    same(f"{found['makespan']:.0f}", "grounds-shockwave[srsf; makespan s]")
