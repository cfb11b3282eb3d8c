"""Output of all commands: two consoles, errors and notes on stderr, JSON, tables."""

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
    """Print an error on stderr."""
    err.print(f"[bold red]Error:[/bold red] [red]{escape(sentence)}[/red]", soft_wrap=True, highlight=False)


def say_notes(notes: Iterable[str]) -> None:
    """Print notes on stderr, equal ones once."""
    for note in dict.fromkeys(notes):
        err.print(f"[yellow]Note:[/yellow] {escape(note)}", soft_wrap=True, highlight=False)


def named_path(text: str | Path) -> Path:
    """A folder or file of the command line (also a default, which is a path already). Refuses an empty name, which would
    silently mean the current folder.
    """
    if not str(text).strip():
        raise InputError(
            "an option for a file or folder has an empty value; give a path (. is the current folder) or omit the option."
        )
    return Path(text)


def ready_folder(folder: Path) -> None:
    """Create a folder and check that it can be written to, before a long run.

    Raises
    ------
    InputError : the folder cannot be created or written to.
    """
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=folder):
            pass
    except OSError as error:
        raise InputError(f"cannot write to the folder {folder}: {error.strerror}. Choose another folder.") from None


def ready_file(path: Path) -> None:
    """Check that a file can be written, as ``ready_folder``."""
    if path.is_dir():
        raise InputError(f"{path} is a folder, expected a file to write, such as {path / 'report.html'}.")
    ready_folder(path.parent)


def print_json(value: object) -> None:
    """Plain data as JSON."""
    print(json.dumps(_finite(value), indent=2, ensure_ascii=False))


def _finite(value: object) -> object:
    """The value with infinite and undefined numbers as text, for JSON has neither."""
    if isinstance(value, dict):
        return {key: _finite(v) for key, v in value.items()}
    if isinstance(value, list | tuple):
        return [_finite(v) for v in value]
    return str(value) if isinstance(value, float) and not math.isfinite(value) else value


def print_whole(table: Table) -> None:
    """Print a table at its full width: in a narrow terminal, wrapped lines are better than truncated numbers."""
    from rich.measure import Measurement

    width = Measurement.get(out, out.options.update(width=400), table).maximum
    Console(width=max(out.width, width)).print(table)


def print_fitting(table: Table) -> None:
    """Print a table at the console's width, or at the sum of its columns' ``min_width`` where that is more.

    Columns that may wrap do so; the others must have their widest cell as ``min_width``, and are never truncated.
    """
    least = sum(column.min_width or 0 for column in table.columns) + 2 * (len(table.columns) - 1)
    Console(width=max(out.width, least)).print(table)
