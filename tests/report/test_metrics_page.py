"""The list of metrics is generated from the rows of the code: every number is on it, with its unit and definition."""

from __future__ import annotations

import json
import sys
from dataclasses import fields
from pathlib import Path

import pytest
from report_cases import MINI, fold

from themis.report.definitions import DEFINITIONS
from themis.report.export import to_json
from themis.report.numbers import COLUMNS, METRICS, Numbers

WEBSITE = Path(__file__).parents[2] / "website"


@pytest.fixture
def page(monkeypatch: pytest.MonkeyPatch) -> str:
    """The generated page, as Markdown."""
    pytest.importorskip("griffe", reason="the site's tools are not installed")
    monkeypatch.setattr(sys, "path", [str(WEBSITE), *sys.path])
    import pages

    text: str = pages.metrics()
    return text


def test_the_page_defines_each_number_once_in_the_words_of_the_code(page: str) -> None:
    rows = [line.strip("| ").split(" | ") for line in page.splitlines() if line.startswith("| `")]
    assert sorted(text for cells in rows for text in cells if text in DEFINITIONS.values()) == sorted(
        DEFINITIONS.values()
    )
    shown = {cells[0].strip("`"): cells[1] for cells in rows if len(cells) == 5}
    assert [m.name for m in METRICS if shown.get(m.name) != m.unit] == []


def test_every_number_of_a_run_says_what_it_is() -> None:
    """A field of ``Numbers`` without a row would be a number that nobody can look up."""
    described = {m.name for m in METRICS} | {f.name for f in fields(Numbers) if f.name.startswith("rho_")}
    assert described == {f.name for f in fields(Numbers)}
    assert [m.name for m in METRICS if len(m.definition) < 10 or not m.unit] == []
    assert len({column.name for column in COLUMNS}) == len(COLUMNS)


def test_a_number_that_is_declared_is_in_the_files_under_its_name() -> None:
    run = json.loads(to_json([fold(MINI)]))["runs"][0]
    assert [m.name for m in METRICS if m.name not in run] == []
