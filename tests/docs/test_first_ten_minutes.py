"""docs/first-ten-minutes.md is what its script types; the verbs are those of the command."""

from __future__ import annotations

import runpy
import shlex
from pathlib import Path

import typer

from themis.cli.root import app

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "first-ten-minutes.md").read_text(encoding="utf-8")


def test_the_page_is_what_the_script_types() -> None:
    """Written again after each change of the script: ``python website/first_ten_minutes.py``."""
    sections = runpy.run_path(str(ROOT / "website" / "first_ten_minutes.py"))["SECTIONS"]
    verbs = typer.main.get_command(app).commands  # type: ignore[attr-defined]
    for number, section in enumerate(sections, 1):
        assert f"\n## {number}. {section.title}\n\n{section.text}\n" in PAGE
        for user, line in section.steps:
            if "WHEEL" not in line and "\n" not in line:
                assert f"\n{user}$ {line}" in PAGE
            words = shlex.split(line) if "\n" not in line else []
            if words[:1] == ["themis"] and not words[1].startswith("-"):
                assert words[1] in verbs


def test_no_step_of_the_page_ends_in_a_traceback_of_ours() -> None:
    assert "This is a bug" not in PAGE
    assert "site-packages/themis" not in PAGE
