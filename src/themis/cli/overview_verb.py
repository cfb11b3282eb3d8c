"""``themis --help``: all verbs by heading, each with the first sentence of its help, as typer prints it, without rich."""

from __future__ import annotations

import inspect
import re
from collections.abc import Iterator, Sequence

import typer

from themis.cli.output import painted
from themis.cli.terminal_table import size, width_of_terminal, wrapped

OPTIONS = (
    ("-V, --version", "Print the version and exit."),
    ("-h, --help", "Show this message and exit; themis VERB --help shows the options of a verb."),
    ("--install-completion", "Install completion for the current shell."),
    ("--show-completion", "Show completion for the current shell, to copy it or customize the installation."),
)
_MARKUP = re.compile(r"\[/?[a-z ]*\]")


def lines(app: typer.Typer) -> Iterator[str]:
    """The lines of the help."""
    width = min(width_of_terminal() or 80, 120)
    text = inspect.getdoc(app.registered_callback.callback) if app.registered_callback else ""
    yield ""
    yield f" {_bold('Usage:')} themis [OPTIONS] COMMAND [ARGS]..."
    yield ""
    for paragraph in _MARKUP.sub("", text or "").split("\n\n"):
        yield from (f" {line}" for line in wrapped(" ".join(paragraph.split()), width - 2))
        yield ""
    yield from _panel("Options", OPTIONS, width)
    panels: dict[str, list[tuple[str, str]]] = {}
    for command in app.registered_commands:
        name = command.name or str(getattr(command.callback, "__name__", "")).replace("_", "-")
        about = command.help or inspect.getdoc(command.callback) or ""
        panels.setdefault(str(command.rich_help_panel), []).append((name, first_sentence(about)))
    for group in app.registered_groups:
        help_ = group.typer_instance.info.help if group.typer_instance else ""
        panels.setdefault(str(group.rich_help_panel), []).append((str(group.name), first_sentence(str(help_))))
    for title, rows in panels.items():
        yield from _panel(title, rows, width)


def first_sentence(text: str) -> str:
    """The first paragraph of a help, without markup."""
    return " ".join(_MARKUP.sub("", text.split("\n\n")[0]).split())


def _panel(title: str, rows: Sequence[tuple[str, str]], width: int) -> Iterator[str]:
    room = max(len(name) for name, _ in rows)
    yield _dim(f"╭─ {title} {'─' * (width - size(title) - 5)}╮")
    for name, about in rows:
        for n, line in enumerate(wrapped(about, width - room - 6)):
            first = name.ljust(room) if n == 0 else " " * room
            yield f"{_dim('│')} {painted(first, '1;36', to_stdout=True)}  {line.ljust(width - room - 6)} {_dim('│')}"
    yield _dim(f"╰{'─' * (width - 2)}╯")


def _bold(text: str) -> str:
    return painted(text, "1;33", to_stdout=True)


def _dim(text: str) -> str:
    return painted(text, "2", to_stdout=True)
