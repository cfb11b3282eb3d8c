"""What all verbs share: the two consoles, errors in red, JSON, tables at their own width."""

from __future__ import annotations

import json
import math
import os
from typing import TYPE_CHECKING

from rich.console import Console
from rich.markup import escape

if TYPE_CHECKING:
    from rich.table import Table

out, err = Console(), Console(stderr=True)


def debugging() -> bool:
    """Whether the user asked for tracebacks."""
    return os.environ.get("THEMIS_DEBUG", "") not in ("", "0")


def say_red(sentence: str) -> None:
    """An error, on stderr."""
    err.print(f"[bold red]Error:[/bold red] [red]{escape(sentence)}[/red]", soft_wrap=True, highlight=False)


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
