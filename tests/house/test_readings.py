"""Readings of Themis' baselines: measured in the quick form, resumed from the store, and written into the page once."""

from __future__ import annotations

import importlib
import json
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
SCRIPT = str(ROOT / "reproduction" / "themis_nsdi20.py")


def run(folder: Path, *more: str) -> str:
    """The script's quick form for readings, in a folder; what it said."""
    command = [
        sys.executable,
        SCRIPT,
        "--only",
        "readings",
        "--quick",
        "--apps",
        "2",
        "--jobs",
        "1",
        "--out",
        "page.md",
    ]
    done = subprocess.run(
        [*command, "--store", "runs.jsonl", *more], cwd=folder, capture_output=True, text=True, timeout=900
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.slow
def test_readings_are_resumed_and_their_section_is_replaced(tmp_path: Path) -> None:
    page, store = tmp_path / "page.md", tmp_path / "runs.jsonl"
    page.write_text("# A page\n\nBefore.\n\n## After\n\nText.\n")
    run(tmp_path, "--seeds", "0-1")
    lines = store.read_text().splitlines()
    assert len(lines) == 2 * 3, "Themis and both readings of a baseline, two seeds"
    policies = [json.loads(json.loads(line)["cell"])["policy"] for line in lines]
    assert policies == 2 * ["themis", "tiresias", "tiresias:clients=jobs,placement=blind"]
    first = page.read_text()
    assert [line for line in first.splitlines() if line.startswith("#")] == [
        "# A page",
        "## Readings of the baselines",
        "## After",
    ]
    assert "(`sim-64`, 2 paired seeds)" in first
    # A third seed of which one run is there is not on the page; nothing is run again, and nothing by --measured.
    extra = json.loads(lines[0])
    cell = json.loads(extra["cell"]) | {"seed": 2}
    store.write_text("\n".join([*lines, json.dumps(extra | {"cell": json.dumps(cell, sort_keys=True)})]) + "\n")
    kept = store.read_text()
    run(tmp_path, "--seeds", "0-2", "--measured")
    assert store.read_text() == kept
    assert page.read_text().replace("--seeds 0-2", "--seeds 0-1") == first
    run(tmp_path, "--seeds", "0-1")
    assert store.read_text() == kept
    assert page.read_text() == first


def test_the_verdict_needs_every_interval_on_one_side(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(ROOT / "reproduction"))
    readings = importlib.import_module("readings")
    interval = importlib.import_module("themis.report.intervals").Interval
    above, over, below = (interval(mean=mean, low=mean - 0.2, high=mean + 0.2, method="t") for mean in (2.0, 1.1, 0.7))
    said = [readings._verdict("1x", "apps", "max", found)[-1] for found in ([above], [above, over], [above, below])]
    assert said[0] == "yes"
    assert said[1].startswith("not decided: 1 of 2 are above by their intervals")
    assert said[2].startswith("**no**: 1 of 2 are below")
