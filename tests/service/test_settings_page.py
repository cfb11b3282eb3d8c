"""docs/settings.md has every key, and its examples are read."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from pydantic import BaseModel

from themis.service.engine.config import Config
from themis.service.operations.service_settings import (
    GroupText,
    OthersText,
    ServiceText,
    UserText,
    load,
    settings_faults,
)

PAGE = (Path(__file__).parents[2] / "docs" / "settings.md").read_text(encoding="utf-8")
TABLES = re.findall(r"^\| key \| meaning \(default\) \|\n\|---\|---\|\n((?:\|.*\n)*)", PAGE, flags=re.MULTILINE)
EXAMPLES = re.findall(r"^```yaml\n(.*?)^```", PAGE, flags=re.MULTILINE | re.DOTALL)


def rows(model: type[BaseModel]) -> str:
    """A model's table: each key with its meaning."""
    return "".join(f"| `{name}` | {field.description} |\n" for name, field in model.model_fields.items())


@pytest.mark.parametrize(("model", "table"), list(zip((ServiceText, UserText, OthersText), TABLES, strict=True)))
def test_the_table_has_every_key_with_its_meaning(model: type[BaseModel], table: str) -> None:
    assert table == rows(model)


def test_the_defaults_that_are_told_are_those() -> None:
    """Where the meaning ends with a value, in parentheses, writing that value changes nothing."""
    told = {}
    for name, field in ServiceText.model_fields.items():
        value = (field.description or "").rpartition("(")[2].removesuffix(")")
        if " " not in value.removesuffix(" MiB") and value != "none":
            told[name] = value
    assert {
        "lease": "10m",
        "node_lease": "30s",
        "node_renew": "10s",
        "grace": "60s",
        "host": "127.0.0.1",
    }.items() <= told.items()
    assert len(told) > 35
    for name, value in told.items():
        assert load(None, {name: value}, env={}) == Config(), (name, value)


def test_users_have_what_groups_have_and_a_group() -> None:
    assert set(UserText.model_fields) == {*GroupText.model_fields, "group"}


@pytest.mark.parametrize("example", EXAMPLES)
def test_every_example_is_read(example: str) -> None:
    assert settings_faults(example, Path("settings.md")) == []
