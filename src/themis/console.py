"""What all verbs share: the two consoles, errors in red, JSON, tables at their own width."""

from __future__ import annotations

import json
import math
import os
import tempfile
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING

from rich.console import Console
from rich.markup import escape

from themis.errors import InputError

if TYPE_CHECKING:
    from rich.table import Table

out, err = Console(), Console(stderr=True)


def debugging() -> bool:
    """Whether the user asked for tracebacks."""
    return os.environ.get("THEMIS_DEBUG", "") not in ("", "0")


def say_red(sentence: str) -> None:
    """An error, on stderr."""
    err.print(f"[bold red]Error:[/bold red] [red]{escape(sentence)}[/red]", soft_wrap=True, highlight=False)


def say_notes(notes: Iterable[str]) -> None:
    """What a user should know, on stderr, each once."""
    for note in dict.fromkeys(notes):
        err.print(f"[yellow]Note:[/yellow] {escape(note)}", soft_wrap=True, highlight=False)


def named_path(text: str | Path) -> Path:
    """A folder or file as given on the command line; an empty name would quietly be the folder that one stands in.

    An option's default, a path already, passes here too.
    """
    if not str(text).strip():
        raise InputError(
            "an option for a folder or a file was given an empty name; name one (. is this folder) or leave it out."
        )
    return Path(text)


def ready_folder(folder: Path) -> None:
    """Create a folder and see that it can be written to, before anything that takes long.

    Raises
    ------
    InputError : it cannot be made, or no file can be made in it.
    """
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=folder):
            pass
    except OSError as error:
        raise InputError(f"cannot write into the folder {folder}: {error.strerror}. Name another.") from None


def ready_file(path: Path) -> None:
    """See that a file can be written, as ``ready_folder``."""
    if path.is_dir():
        raise InputError(f"{path} is a folder, expected the name of a file to write, such as {path / 'report.html'}.")
    ready_folder(path.parent)


def print_json(value: object) -> None:
    """Plain data as JSON."""
    print(json.dumps(_finite(value), indent=2, ensure_ascii=False))


def _finite(value: object) -> object:
    """JSON has no infinity: such numbers become text."""
    if isinstance(value, dict):
        return {key: _finite(v) for key, v in value.items()}
    if isinstance(value, list | tuple):
        return [_finite(v) for v in value]
    return str(value) if isinstance(value, float) and not math.isfinite(value) else value


def print_whole(table: Table) -> None:
    """Print at the table's own width: a narrow terminal wraps its lines, which beats numbers cut short."""
    from rich.measure import Measurement

    width = Measurement.get(out, out.options.update(width=400), table).maximum
    Console(width=max(out.width, width)).print(table)
