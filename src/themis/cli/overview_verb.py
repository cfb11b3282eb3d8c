"""``themis --help``: all verbs by heading, each with the first sentence of its help, as typer prints it, without rich."""

from __future__ import annotations

import inspect
import re
from collections.abc import Iterator, Sequence

from themis.cli.output import painted
from themis.cli.table import GROUPS, VERBS, help_of, verb_of
from themis.cli.terminal_table import size, width_of_terminal, wrapped

ABOUT = """Share GPUs fairly between the users of a cluster.

Try it: [bold]themis demo[/bold]

Run it with eight virtual GPUs: [bold]themis up --gpus 8[/bold], then in another terminal
[bold]themis run --gpus 2 -- python train.py[/bold]

Compare policies on a workload: [bold]themis simulate --workload demo --policy fair_finish,themis --out out/demo[/bold]
"""
"""The command's help."""
OPTIONS = (
    ("-V, --version", "Print the version and exit."),
    ("-h, --help", "Show this message and exit; themis VERB --help shows the options of a verb."),
    ("--install-completion", "Install completion for the current shell."),
    ("--show-completion", "Show completion for the current shell, to copy it or customize the installation."),
)
_MARKUP = re.compile(r"\[/?[a-z ]*\]")


def lines() -> Iterator[str]:
    """The lines of the help."""
    yield from head("[OPTIONS] COMMAND [ARGS]...", ABOUT)
    yield from panel("Options", OPTIONS)
    panels: dict[str, list[tuple[str, str]]] = {}
    groups: dict[str, list[tuple[str, str]]] = {}
    for name, (_, _, title) in VERBS.items():
        first, _, rest = name.partition(" ")
        if not rest:
            panels.setdefault(title, []).append((name, first_sentence(help_of(verb_of(name)))))
        elif (row := (first, GROUPS[first])) not in groups.setdefault(title, []):
            groups[title].append(row)
    for title, rows in panels.items():
        yield from panel(title, [*rows, *groups.get(title, [])])


def head(usage: str, text: str) -> Iterator[str]:
    """The usage, and the meaning in paragraphs."""
    width = _width()
    yield ""
    yield f" {_bold('Usage:')} themis {usage}"
    yield ""
    for paragraph in _MARKUP.sub("", inspect.cleandoc(text)).split("\n\n"):
        yield from (f" {line}" for line in wrapped(" ".join(paragraph.split()), width - 2))
        yield ""


def _width() -> int:
    return min(width_of_terminal() or 80, 120)


def first_sentence(text: str) -> str:
    """The first paragraph of a help, without markup."""
    return " ".join(_MARKUP.sub("", text.split("\n\n")[0]).split())


def panel(title: str, rows: Sequence[tuple[str, str]]) -> Iterator[str]:
    """Rows of (name, meaning) in a frame."""
    width = _width()
    room = min(max(len(name) for name, _ in rows), width // 2)
    yield _dim(f"╭─ {title} {'─' * (width - size(title) - 5)}╮")
    for name, about in rows:
        names, abouts = wrapped(name, room), wrapped(about, width - room - 6)
        for n in range(max(len(names), len(abouts))):
            first = (names[n] if n < len(names) else "").ljust(room)
            line = abouts[n] if n < len(abouts) else ""
            yield f"{_dim('│')} {painted(first, '1;36', to_stdout=True)}  {line.ljust(width - room - 6)} {_dim('│')}"
    yield _dim(f"╰{'─' * (width - 2)}╯")


def _bold(text: str) -> str:
    return painted(text, "1;33", to_stdout=True)


def _dim(text: str) -> str:
    return painted(text, "2", to_stdout=True)
