"""Benchmarks run in a quick form, and what they print reaches the page of benchmarks."""

from __future__ import annotations

import importlib
import re
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs" / "benchmarks.md"
PAGED = """# Page

<!-- bench: bench_a.py --quick -->
`python benchmarks/bench_a.py --quick`, recorded in `old`, 2020-01-01.

| policy | s |
|---|---|
| old | 9 |
| older | 10 |

Text.

<!-- bench: bench_b.py -->
`python benchmarks/bench_b.py`, recorded in `old`, 2020-01-01.

| policy | s |
|---|---|
| other | 1 |
"""


@pytest.fixture(autouse=True)
def _importable(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(ROOT / "benchmarks"))


def test_a_table_is_written_below_the_comment_of_its_command() -> None:
    written = importlib.import_module("write_tables").written
    output = "Note\n\n| policy | s |\n|---|---|\n| new | 2 |\n\n| unknown | s |\n|---|---|\n| x | 1 |\n"
    page = written(PAGED, "bench_a.py --quick", output, "`new`, 2026-11-23")
    assert "| new | 2 |" in page
    assert "| old | 9 |" not in page
    assert "| other | 1 |" in page
    assert page.count("recorded in `new`, 2026-11-23.") == 1
    assert "unknown" not in page
    assert "\n\nText.\n" in page


def test_nothing_printed_changes_nothing() -> None:
    written = importlib.import_module("write_tables").written
    assert written(PAGED, "bench_a.py --quick", "| policy | s |\n|---|---|\n", "`new`, 2026-11-23") == PAGED
    assert written(PAGED, "bench_c.py", "| policy | s |\n|---|---|\n| new | 2 |\n", "`new`, 2026-11-23") == PAGED


def test_every_table_of_the_page_names_a_benchmark() -> None:
    named = re.findall(r"<!-- bench: (\S+)", PAGE.read_text())
    assert len(named) >= 20
    for script in named:
        assert (ROOT / "benchmarks" / script).is_file(), script


def test_whole_policies_run_in_their_quick_form(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "argv", ["bench_whole.py", "--quick"])
    importlib.import_module("bench_whole").main()
    rows = importlib.import_module("write_tables").tables(capsys.readouterr().out)
    assert sorted(map(len, rows.values())) == [1, 11]


def test_gavels_tables_run_in_their_quick_form(capsys: pytest.CaptureFixture[str]) -> None:
    gavel = importlib.import_module("bench_gavel")
    gavel.filling([32])
    gavel.large(160)
    gavel.crowds([20])
    rows = importlib.import_module("write_tables").tables(capsys.readouterr().out)
    assert sorted(map(len, rows.values())) == [1, 2, 8]


@pytest.mark.slow
def test_starts_are_measured_in_their_quick_form(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "argv", ["bench_start.py", "--quick"])
    importlib.import_module("bench_start").main()
    rows = importlib.import_module("write_tables").tables(capsys.readouterr().out)
    assert [*map(len, rows.values())] == [4]
