"""A command as callers write it: its words, and a default name for its app."""

from __future__ import annotations

import re
import shlex
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, TypedDict

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
    name = re.sub(r"[^A-Za-z0-9._-]+", "-", Path(script).stem).strip("-._")[:60] or "app"
    return f"app-{name}" if name.isdecimal() else name


class ProgramOptions(TypedDict, total=False):
    """Options of ``run`` that are fields of ``Program``."""

    launch: str
    grace_s: float
    stop_signal: str
    checkpoint_dir: str
    checkpoint_url: str
    outputs: Sequence[str]
    packages: str
    modules: Sequence[str]
    launcher: str
    bundle: str
    exports: Mapping[str, str]
    secrets: Sequence[str]


class RunOptions(ProgramOptions, total=False):
    """Further options of ``run``: fields of ``SubmitRequest``, and those of ``Program``."""

    user: str
    weight: float
    retries: int
    deadline_s: float
    walltime_s: float
    key: str


def run_request(
    command: Sequence[str] | str,
    *,
    gpus: tuple[int, int],
    name: str,
    hours: float | None,
    model: str,
    env: Mapping[str, str],
    cwd: Path | None = None,
    **more: Any,
) -> dict[str, Any]:
    """A ``SubmitRequest`` of one app with one job, a command, as JSON has it; the parameters are those of ``Client.run``.

    Raises
    ------
    InputError : it is not a command, or ``hours``, ``gpus`` or ``env`` is wrong.
    """
    if hours is not None and not hours > 0:
        raise InputError(f"hours is {hours}, expected a number above 0: the run time on one GPU.")
    if not 1 <= gpus[0] <= gpus[1]:
        raise InputError(f"gpus is {gpus}, expected a number of at least 1, or a range such as (1, 4).")
    for key, value in env.items():
        if not isinstance(value, str):
            raise InputError(f"env has {value!r} for {key!r}, expected text, such as {str(value)!r}.")
    words = words_of(command)
    program: dict[str, Any] = {"argv": words, "cwd": str(cwd or Path.cwd()), "env": dict(env), "work_is_time": True}
    program |= {"work_unknown": True} if hours is None else {}
    program |= {key: value for key, value in more.items() if key in ProgramOptions.__annotations__}
    job: dict[str, Any] = {
        "name": "job",
        "regimes": [] if hours is None else [{"steps": hours * 3600}],
        "gpus_min": gpus[0],
        "gpus_max": gpus[1],
        "program": program,
    }
    job |= {"model": model} if model else {}
    rest = {key: value for key, value in more.items() if key not in ProgramOptions.__annotations__}
    return {"name": name or name_of(words), "jobs": [job], **rest}
