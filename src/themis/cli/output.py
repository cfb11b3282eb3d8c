"""Output of all commands: errors and notes on stderr, JSON; two consoles of rich and its tables, loaded where they are used."""

from __future__ import annotations

import json
import math
import os
import sys
from collections.abc import Iterable
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

from themis.errors import InputError

if TYPE_CHECKING:
    from rich.console import Console
    from rich.table import Table


class _Late:
    """A console of rich that is made when it is first used: loading rich takes longer than many commands run."""

    def __init__(self, *, stderr: bool) -> None:
        self._stderr = stderr

    @cached_property
    def _console(self) -> Console:
        from rich.console import Console

        return Console(stderr=self._stderr)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._console, name)

    def __enter__(self) -> Console:
        return self._console.__enter__()

    def __exit__(self, *raised: Any) -> None:
        self._console.__exit__(*raised)


out, err = cast("Console", _Late(stderr=False)), cast("Console", _Late(stderr=True))


def escape(text: str) -> str:
    """The text without meaning as rich's markup."""
    from rich.markup import escape

    return escape(text)


def painted(text: str, code: str, *, to_stdout: bool = False) -> str:
    """The text in an ANSI style, such as ``1;31`` (bold red), where the stream is a terminal that shows it."""
    stream = sys.stdout if to_stdout else sys.stderr
    plain = os.environ.get("NO_COLOR") or os.environ.get("TERM") in (None, "", "dumb") or not stream.isatty()
    return text if plain or not code else f"\x1b[{code}m{text}\x1b[0m"


def say(sentence: str) -> None:
    """A line on stderr."""
    print(sentence, file=sys.stderr, flush=True)


def debugging() -> bool:
    """Whether the user asked for tracebacks."""
    return os.environ.get("THEMIS_DEBUG", "") not in ("", "0")


def say_red(sentence: str) -> None:
    """Print an error on stderr."""
    say(f"{painted('Error:', '1;31')} {painted(sentence, '31')}")


def say_notes(notes: Iterable[str]) -> None:
    """Print notes on stderr, equal ones once."""
    for note in dict.fromkeys(notes):
        say(f"{painted('Note:', '33')} {note}")


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
    import tempfile

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
    from rich.console import Console
    from rich.measure import Measurement

    out = Console()
    width = Measurement.get(out, out.options.update(width=400), table).maximum
    Console(width=max(out.width, width)).print(table)
