"""The quick form of the Gavel reproduction: every claim has its row, and what is measured is not run again."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
CLAIMS = (
    "fig 9",
    "fig 10",
    "fig 11",
    "fig 12",
    "fig 15b",
    "FIFO",
    "high priority",
    "low priority",
    "makespan",
    "least cost",
)


@pytest.mark.slow
def test_the_quick_form_measures_every_claim_and_goes_on_where_it_was(tmp_path: Path) -> None:
    command = [sys.executable, str(ROOT / "reproduction" / "gavel_osdi20.py"), "--quick", "--out", "page.md"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=900)
    assert done.returncode == 0, done.stderr
    text = (tmp_path / "page.md").read_text()
    for claim in CLAIMS:
        assert any(line.startswith("| 7.") and claim in line for line in text.splitlines()), claim
    assert "{{" not in text
    store = tmp_path / "out" / "reproduction" / "gavel.jsonl"
    kept = store.read_text()
    again = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=900)
    assert again.returncode == 0, again.stderr
    assert store.read_text() == kept
