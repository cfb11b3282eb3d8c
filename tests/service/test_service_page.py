"""docs/service.md names what the command has, and every verb of the service has the field's options."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import typer

from themis.cli.root import app

PAGE = (Path(__file__).parents[2] / "docs" / "service.md").read_text(encoding="utf-8")
VERBS = typer.main.get_command(app).commands  # type: ignore[attr-defined]
LISTS = ("queue", "history", "nodes", "share", "usage", "events")


def options(verb: str) -> set[str]:
    return {name for parameter in VERBS[verb].params for name in parameter.opts}


def test_the_page_names_no_verb_that_there_is_not() -> None:
    told = {
        word for row in re.findall(r"^\| `themis (.*?)` \|", PAGE, flags=re.MULTILINE) for word in re.split(r"\W+", row)
    }
    assert {
        "run",
        "submit",
        "queue",
        "show",
        "why",
        "share",
        "logs",
        "cancel",
        "hold",
        "resume",
        "nodes",
        "drain",
        "undrain",
        "usage",
        "history",
        "events",
    } <= told & set(VERBS)
    for row in re.findall(r"^\| `themis (\w+)", PAGE, flags=re.MULTILINE):
        assert row in VERBS


@pytest.mark.parametrize("verb", LISTS)
def test_every_list_takes_output_watch_and_user(verb: str) -> None:
    assert {"--output", "-o", "--watch", "-w", "--user", "-u"} <= options(verb)


@pytest.mark.parametrize("verb", sorted(VERBS))
def test_every_verb_has_help_with_an_example(verb: str) -> None:
    commands = getattr(VERBS[verb], "commands", {verb: VERBS[verb]})
    for name, command in commands.items():
        assert "xample" in (command.help or ""), f"themis {verb} {name}"
