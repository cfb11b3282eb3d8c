"""docs/settings.md: its examples are read, and the defaults that it shows are those of the service."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from themis.service.engine.config import SETTINGS, Config
from themis.service.operations.service_settings import keys, load, settings_faults

PAGE = (Path(__file__).parents[2] / "docs" / "settings.md").read_text(encoding="utf-8")
EXAMPLES = re.findall(r"^```yaml\n(.*?)^```", PAGE, flags=re.MULTILINE | re.DOTALL)


@pytest.mark.parametrize("key", keys())
def test_a_default_in_words_is_read_as_the_default(key: str) -> None:
    """Its row ends with these words, unless the default stands for something else."""
    found = SETTINGS[key]
    if not found.shown and found.default is not None and found.default != "":
        assert load(None, {key: found.kind.words(found.default)}, env={}) == Config()


@pytest.mark.parametrize("example", EXAMPLES)
def test_every_example_is_read(example: str) -> None:
    assert settings_faults(example, Path("settings.md")) == []
