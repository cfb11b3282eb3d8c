"""The ``themis`` command for typer: help of wrong lines, completion, the reference; of all verbs or of one."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Annotated

import typer

from themis.cli.overview_verb import ABOUT
from themis.cli.table import GROUPS, VERBS, help_of, name_of, verb_of
from themis.cli.typed import Verbs


def themis(
    version: Annotated[
        bool, typer.Option("--version", "-V", help="Print the version and exit.", is_eager=True)
    ] = False,
) -> None:
    """Print the version, if it is asked for."""
    if version:
        from themis.version import sentence

        print(sentence())
        raise typer.Exit


def made(names: Iterable[str]) -> Verbs:
    """The command with these verbs."""
    app = Verbs(
        name="themis",
        no_args_is_help=True,
        pretty_exceptions_enable=False,
        rich_markup_mode="rich",
        context_settings={"help_option_names": ["-h", "--help"]},
    )
    app.callback(invoke_without_command=True, help=ABOUT)(themis)
    groups: dict[str, Verbs] = {}
    for name in names:
        first, _, rest = name.partition(" ")
        verb, panel = verb_of(name), VERBS[name][2]
        if not rest:
            app.command(name, help=help_of(verb), rich_help_panel=panel)(verb)
            continue
        if first not in groups:
            groups[first] = Verbs(no_args_is_help=True, help=GROUPS[first])
            groups[first].callback()(_group)
            app.add_typer(groups[first], name=first, rich_help_panel=panel, help=GROUPS[first])
        groups[first].command(rest, help=help_of(verb))(verb)
    return app


def _group() -> None:
    """Keep a group with one verb a group."""


def run(words: Sequence[str]) -> None:
    """Run the command by typer: with the line's verb alone, where it names one."""
    name = name_of(words)
    made([name] if name else VERBS)(args=list(words), prog_name="themis")


def __getattr__(name: str) -> Verbs:
    """``app``: the command with all verbs."""
    if name != "app":
        raise AttributeError(name)
    return made(VERBS)
