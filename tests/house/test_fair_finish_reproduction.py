"""The quick form of the measurement of fair_finish: every policy has its row, and what is stored is not run again."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


@pytest.mark.slow
def test_the_quick_form_prints_a_row_for_every_policy_and_goes_on_from_its_store(tmp_path: Path) -> None:
    store = tmp_path / "store.jsonl"

    def run() -> str:
        done = subprocess.run(
            [sys.executable, "reproduction/fair_finish.py", "--quick", "--store", str(store)],
            cwd=ROOT,
            capture_output=True,
            text=True,
            check=True,
            env={**os.environ, "OMP_NUM_THREADS": "1"},
        )
        return done.stdout

    text = run()
    assert "24 of 24" in text
    for policy in ("fair_finish", "srsf", "gandiva_fair", "shockwave", "shockwave:plan=market", "themis"):
        assert text.count(f"| {policy} |") == 2
    assert " of 24" not in run()
