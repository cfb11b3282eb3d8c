"""An app of many like jobs, as adapters submit them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from themis.client.calls import made
from themis.errors import InputError
from themis.schema import messages as schema

MOST_JOBS = 1000


def request(
    what: str,
    commands: Mapping[str, Sequence[str]],
    *,
    key: str,
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
    InputError : no jobs, too many, or hours that are not above 0; calls them ``what``. A field that a message cannot carry.
    """
    if not 1 <= len(commands) <= MOST_JOBS:
        raise InputError(f"{what} is {len(commands)}, expected 1 to {MOST_JOBS}.")
    low, high = (gpus, gpus) if isinstance(gpus, int) else gpus
    if hours is not None and not hours > 0:
        raise InputError(f"hours is {hours}, expected more than 0: the time that each needs on one GPU.")
    fields = set(schema.Program.model_fields)
    program = {key: value for key, value in more.items() if key in fields}
    rest = {key: value for key, value in more.items() if key not in fields}
    unknown = sorted(rest.keys() - set(schema.SubmitRequest.model_fields))
    if unknown:
        raise InputError(
            f"unknown field {unknown[0]!r}: neither a submission nor a program has it; see themis.schema.messages."
        )
    jobs = [
        made(
            schema.Job,
            name=job,
            regimes=[] if hours is None else [made(schema.Regime, steps=hours * 3600)],
            gpus_min=low,
            gpus_max=high,
            program=made(
                schema.Program,
                argv=list(argv),
                cwd=str(cwd or Path.cwd()),
                env=dict(env),
                work_is_time=True,
                work_unknown=hours is None,
                **program,
            ),
        )
        for job, argv in commands.items()
    ]
    return made(schema.SubmitRequest, key=key, name=name, jobs=jobs, **rest)
