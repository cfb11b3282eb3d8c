"""The check of figures finds stale quotes, contradictions and lost sources, and reads the tables that scripts write."""

from __future__ import annotations

import importlib
import subprocess
from pathlib import Path

import pytest
from figures import agree, wrong_figures, wrong_sources

ROOT = Path(__file__).parents[2]
SCRIPT = 'parser.add_argument("--seeds")\n'
TABLE = """# Page

<!-- table mine: python reproduction/mine.py --seeds 0; run of today -->

| trace | policy | mean JCT h | above 1.1 % |
|---|---|---|---|
| Philly | `drf` | 1,408.25 [1.2, 3] | 5.0 |
| Philly | `themis` | 704 | 2.6 |
"""


def found(root: Path, **pages: str) -> list[str]:
    """Findings of pages, by their names."""
    (root / "reproduction").mkdir(exist_ok=True)
    (root / "reproduction" / "mine.py").write_text(SCRIPT)
    paths = [root / f"{name}.md" for name in pages]
    for path, text in zip(paths, pages.values()):
        path.write_text(text)
    return list(wrong_figures(root, paths))


def test_quotes_that_agree_with_their_cells_to_their_digits_are_not_found(tmp_path: Path) -> None:
    text = "1,408 h<!-- = mine[drf; mean JCT h] -->, 50 %<!-- = 100 * mine[Philly; themis; mean JCT h] / mine[drf; mean JCT h] -->."
    assert found(tmp_path, table=TABLE, quotes=text) == []


def test_a_quote_that_differs_from_its_cell_is_found_at_its_line(tmp_path: Path) -> None:
    assert found(tmp_path, table=TABLE, quotes="\nIt is 1,409 h<!-- = mine[drf; mean JCT h] -->.") == [
        "quotes.md:2: 1,409 h is quoted, and mine[drf; mean JCT h] is 1408.25"
    ]


@pytest.mark.parametrize(
    "cells", ["other[drf; mean JCT h]", "mine[fifo; mean JCT h]", "mine[Philly; mean JCT h]", "mine[drf; makespan]"]
)
def test_a_quote_of_a_cell_that_is_not_there_or_not_the_only_one_is_found(tmp_path: Path, cells: str) -> None:
    assert found(tmp_path, table=TABLE, quotes=f"3 h<!-- = {cells} -->") == [
        f"quotes.md:1: {cells} names no table, or not one cell with a number"
    ]


def test_a_quote_is_arithmetic_and_runs_no_code(tmp_path: Path) -> None:
    (wrong,) = found(tmp_path, quotes="3 h<!-- = print(3) -->")
    assert "more than cells, numbers and + - * /" in wrong


def test_a_comment_that_follows_no_figure_is_found(tmp_path: Path) -> None:
    assert len(found(tmp_path, quotes="Few<!-- = 1 + 1 -->")) == 1


def test_two_values_of_one_quantity_on_two_pages_are_found(tmp_path: Path) -> None:
    assert found(tmp_path, one=TABLE, two=TABLE.replace("| 2.6 |", "| 3 |")) == []
    assert found(tmp_path, one=TABLE, two=TABLE.replace("| 2.6 |", "| 4.3 |")) == [
        "two.md:3: mine, Philly, themis: above 1.1 % is 4.3, and 2.6 at one.md:3"
    ]


def test_a_table_whose_script_or_option_is_not_there_is_found(tmp_path: Path) -> None:
    lost = TABLE.replace("--seeds 0", "--sizes 0").replace("Page", "Page\n`python benchmarks/lost.py --x`")
    assert found(tmp_path, table=lost) == [
        "table.md:2: benchmarks/lost.py is not there",
        "table.md:4: reproduction/mine.py has no option --sizes",
    ]


def test_a_commit_that_is_no_ancestor_of_this_one_is_found_where_the_history_is_there(tmp_path: Path) -> None:
    def git(*words: str) -> str:
        name = ["-c", "user.name=x", "-c", "user.email=x@localhost", "-c", "commit.gpgsign=false"]
        return subprocess.run(["git", *name, *words], cwd=tmp_path, check=True, capture_output=True, text=True).stdout

    def commit(text: str) -> str:
        (tmp_path / "page.md").write_text(text)
        git("add", "-A")
        git("commit", "-q", "-m", text)
        return git("rev-parse", "HEAD").strip()

    git("init", "-q", "-b", "main")
    first = commit("first")
    git("checkout", "-q", "-b", "aside")
    lost = commit("aside")
    git("checkout", "-q", "main")
    commit("second")
    page = (
        f"Commits `{first}`, `git show {first}:page.md`, {first}:other.md; {lost}, 0123abcd, abcdef0123456789 is none."
    )
    assert list(wrong_sources(tmp_path, "page.md", page)) == [
        f"page.md:1: this commit and its ancestors have no {x}" for x in (f"{first}:other.md", lost, "0123abcd")
    ]
    shallow = tmp_path / "shallow"
    git("clone", "-q", "--depth", "1", tmp_path.as_uri(), str(shallow))
    assert list(wrong_sources(shallow, "page.md", page)) == []


def test_a_claim_of_a_page_of_claims_quotes_a_table(tmp_path: Path) -> None:
    text = "`5 %` of it: 5 %<!-- = mine[drf; above 1.1 %] --> and 7 %, 2 times\n"
    assert found(tmp_path, table=TABLE, README=text) == [
        "README.md:1: 'and 7 %' quotes no table",
        "README.md:1: '%, 2 times' quotes no table",
    ]


def test_a_comment_above_no_table_is_found(tmp_path: Path) -> None:
    assert found(tmp_path, table=TABLE.partition("|")[0]) == [
        "table.md:3: no table stands below the comment that names mine"
    ]


def test_figures_agree_to_the_digits_that_both_have() -> None:
    assert agree("3.0", 3.04)
    assert not agree("3.0", 3.06)
    assert agree("1,408", "1,408.4")
    assert not agree("1,408.0", "1,408.4")


def test_the_comment_of_a_script_is_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(ROOT / "reproduction"))
    grid = importlib.import_module("grid")
    written = grid.marker("mine", "python reproduction/mine.py") + grid.table(["policy", "s"], [["drf", "5"]])
    assert found(tmp_path, page=f"{written}\n\n5 s<!-- = mine[drf; s] -->") == []
