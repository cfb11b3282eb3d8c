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
    assert len(named) >= 8
    assert len(PAGE.read_text().split()) <= 1200
    for script in named:
        assert (ROOT / "benchmarks" / script).is_file(), script


def test_whole_policies_run_in_their_quick_form(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "argv", ["bench_whole.py", "--quick"])
    importlib.import_module("bench_whole").main()
    rows = importlib.import_module("write_tables").tables(capsys.readouterr().out)
    assert sorted(map(len, rows.values())) == [1, 2, 11]


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


SCRIPTS = sorted(path.stem for path in (ROOT / "benchmarks").glob("*.py"))


@pytest.mark.slow
@pytest.mark.parametrize("script", SCRIPTS)
def test_every_script_of_benchmarks_imports_and_has_a_main_part(script: str) -> None:
    module = importlib.import_module(script)
    assert module.__doc__
    assert script in ("heap_kernel", "write_tables") or callable(getattr(module, "main", None))


QUICK = {
    "bench_elastic": (["--jobs", "40"], 3),
    "bench_growth": (["--quick"], 2),
    "bench_history": (["--quick"], 2),
    "bench_intervals": (["--quick"], 24),
    "bench_optimize": (["--repeats", "1"], 5),
    "bench_shockwave": (["--quick"], 3),
    "bench_transaction": (["--quick"], 1),
    "bench_core": (["--kind", "rigid", "--sizes", "200", "--policies", "themis,drf"], 3),
}
"""Arguments of quick forms, and the least number of rows that each prints: 20 CPU s in all."""


@pytest.mark.slow
@pytest.mark.parametrize("script", QUICK)
def test_scripts_print_their_tables_in_their_quick_form(
    script: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    arguments, least = QUICK[script]
    monkeypatch.setattr(sys, "argv", [f"{script}.py", *arguments])
    importlib.import_module(script).main()
    rows = importlib.import_module("write_tables").tables(capsys.readouterr().out)
    assert sum(map(len, rows.values())) >= least


@pytest.mark.slow
def test_small_and_large_auctions_run_in_their_quick_form(capsys: pytest.CaptureFixture[str]) -> None:
    auction = importlib.import_module("bench_auction")
    auction.stream(True)
    auction.huge(True)
    printed = capsys.readouterr().out
    assert printed.count("any") == 3
    assert printed.count("5,219") + printed.count("5219") >= 1


def test_a_peer_that_is_not_there_is_not_run(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    published = importlib.import_module("bench_gavel")._published
    monkeypatch.delenv("THEMIS_PEERS", raising=False)
    assert published() == "THEMIS_PEERS names no folder with gavel/"
    monkeypatch.setenv("THEMIS_PEERS", str(tmp_path))
    assert published() == "THEMIS_PEERS names no folder with gavel/"


def test_a_peer_without_cvxpy_says_what_to_install(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    gavel = importlib.import_module("bench_gavel")
    (tmp_path / "gavel").mkdir()
    monkeypatch.setenv("THEMIS_PEERS", str(tmp_path))
    monkeypatch.setattr(gavel, "find_spec", lambda name: None)
    assert gavel._published() == "it needs cvxpy, which is not installed: pip install 'cvxpy>=1.5'"
