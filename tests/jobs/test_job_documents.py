"""docs/jobs.md has every key, and its examples are read."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from pydantic import BaseModel

from themis.jobs import parse
from themis.jobs.batch_schedules import DynamicText
from themis.jobs.written import CurveText, HalvingText, HyperbandText, JobText, RungText, SweepText

PAGE = (Path(__file__).parents[2] / "docs" / "jobs.md").read_text(encoding="utf-8")
TABLES = re.findall(r"^\| key \| meaning \(default\) \|\n\|---\|---\|\n((?:\|.*\n)*)", PAGE, flags=re.MULTILINE)
EXAMPLES = re.findall(r"^```yaml\n(.*?)^```", PAGE, flags=re.MULTILINE | re.DOTALL)
MODELS = [JobText, DynamicText, SweepText, HalvingText, RungText, HyperbandText, CurveText]


def rows(model: type[BaseModel]) -> str:
    """A model's table: each key with its meaning."""
    return "".join(
        f"| `{field.alias or name}` | {field.description}{' **(required)**' if field.is_required() else ''} |\n"
        for name, field in model.model_fields.items()
        if name != "kind"
    )


@pytest.mark.parametrize(("model", "table"), list(zip(MODELS, TABLES, strict=True)))
def test_the_table_has_every_key_with_its_meaning(model: type[BaseModel], table: str) -> None:
    assert table == rows(model)


@pytest.mark.parametrize("example", EXAMPLES)
def test_every_example_is_read(example: str) -> None:
    assert parse(example, source="jobs.md", folder="/work").faults == ()
