"""The measurement of fair_finish: every policy has its row, and what is stored is not run again."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


@pytest.mark.slow
def test_the_measurement_prints_a_row_for_every_policy_and_goes_on_from_its_store(tmp_path: Path) -> None:
    store = tmp_path / "store.jsonl"

    def run(*words: str) -> str:
        done = subprocess.run(
            [sys.executable, "reproduction/fair_finish.py", "--store", str(store), "--grounds", "demo", *words],
            cwd=ROOT,
            capture_output=True,
            text=True,
            check=True,
            env={**os.environ, "OMP_NUM_THREADS": "1"},
        )
        return done.stdout

    text = run("--policies", "fair_finish,srsf", "--seeds", "0-1")
    assert "<!-- table grounds-demo: python reproduction/fair_finish.py " in text
    assert [text.count(f"| `{policy}` |") for policy in ("fair_finish", "srsf")] == [1, 1]
    measured = store.read_text()
    assert measured.count("\n") == 4
    assert "| demo | 2 |" in run("--over", "srsf", "--seeds", "0-1")
    assert store.read_text() == measured
