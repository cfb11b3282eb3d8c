"""The reproduction's quick form: every experiment runs, and the page has every claim of the paper."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
FIGURES = (
    "fig 9",
    "fig 10",
    "fig 11",
    "fig 12",
    "fig 13",
    "fig 14",
    "fig 15",
    "fig 16",
    "fig 17",
    "fig 18",
    "fig 19",
    "6.2.3",
)


@pytest.mark.slow
def test_the_quick_form_measures_every_claim_and_goes_on_where_it_was(tmp_path: Path) -> None:
    page = tmp_path / "themis.md"
    command = [sys.executable, str(ROOT / "reproduction" / "themis_nsdi20.py"), "--quick", "--apps", "2", "--jobs", "1"]
    done = subprocess.run([*command, "--out", str(page)], cwd=tmp_path, capture_output=True, text=True, timeout=900)
    assert done.returncode == 0, done.stderr
    text = page.read_text()
    lines = text[: text.index("\n## ")].splitlines()
    for figure in FIGURES:
        assert any(f"| 6.{c}" in line and figure in line for c in "234" for line in lines), figure
    assert (tmp_path / "themis-rho.svg").read_text().startswith("<?xml")
    kept = (tmp_path / "out" / "reproduction" / "themis.jsonl").read_text()
    again = subprocess.run([*command, "--out", str(page)], cwd=tmp_path, capture_output=True, text=True, timeout=900)
    assert again.returncode == 0, again.stderr
    assert (tmp_path / "out" / "reproduction" / "themis.jsonl").read_text() == kept, "what is measured is not run again"
