"""A command as callers write it: its words, and a default name for its app."""

from __future__ import annotations

import re
import shlex
from collections.abc import Sequence
from pathlib import Path

from themis.errors import InputError


def words_of(command: Sequence[str] | str) -> list[str]:
    """The words of a command; a line is split as a shell would.

    Raises
    ------
    InputError : it is not a command.
    """
    expected = "expected a program and its arguments, such as ['python', 'train.py'] or 'python train.py'"
    try:
        words = shlex.split(command) if isinstance(command, str) else list(command)
    except (ValueError, TypeError) as error:
        raise InputError(f"the command is {command!r:.100}, {expected}: {error}.") from None
    if not words or not all(isinstance(word, str) for word in words) or not words[0].strip():
        raise InputError(f"the command is {command!r:.100}, {expected}.")
    return words


def name_of(command: Sequence[str]) -> str:
    """The default name of an app: its script's, or its program's."""
    words = [word for word in command if not word.startswith("-")]
    script = next((word for word in words if word.endswith((".py", ".sh"))), words[0] if words else "")
    return re.sub(r"[^A-Za-z0-9._-]+", "-", Path(script).stem).strip("-._")[:60] or "app"
