"""An app of many like jobs, as adapters submit them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from themis.client.calls import made
from themis.client.command import run_request
from themis.errors import InputError
from themis.schema import messages as schema

MOST_JOBS = 1000


def request(
    what: str,
    commands: Mapping[str, Sequence[str]],
    *,
    name: str,
    env: Mapping[str, str],
    gpus: int | tuple[int, int],
    hours: float | None,
    cwd: Path | None = None,
    **more: Any,
) -> schema.SubmitRequest:
    """Jobs by name, each a command; ``more`` : fields of ``SubmitRequest`` and of ``Program``. ``hours`` None: unknown work.

    Raises
    ------
    InputError : no jobs, or too many, which it calls ``what``; hours that are not above 0; a field that a message cannot carry.
    """
    if not 1 <= len(commands) <= MOST_JOBS:
        raise InputError(f"{what} is {len(commands)}, expected 1 to {MOST_JOBS}.")
    pair = (gpus, gpus) if isinstance(gpus, int) else gpus
    apps = [
        run_request(argv, gpus=pair, name=name, hours=hours, model="", env=env, cwd=cwd, **more)
        for argv in commands.values()
    ]
    jobs = [{**app["jobs"][0], "name": job} for job, app in zip(commands, apps)]
    return made(schema.SubmitRequest, **{**apps[0], "jobs": jobs})
