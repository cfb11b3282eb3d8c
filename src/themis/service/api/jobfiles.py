"""Job files over the API: read where the service runs, so that a command need not load what reads them."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable

from themis.client.submit_requests import text_requests, with_code, with_variables
from themis.errors import InputError
from themis.limits import LONGEST_JOB_FILE
from themis.schema import messages as schema
from themis.service.engine.arbiter import Arbiter


def read(arbiter: Arbiter, file: schema.JobFile) -> tuple[list[schema.SubmitRequest], list[str]]:
    """The submissions of a job file, each after its dependencies in the file, and warnings.

    Raises
    ------
    InputError : the file is wrong (names the line), or too long.
    """
    if len(file.text) > LONGEST_JOB_FILE:
        raise InputError(
            f"the job file has {len(file.text)} characters, expected at most {LONGEST_JOB_FILE}; submit it in parts."
        )
    requests, notes = text_requests(
        file.text,
        file.source or "the job file",
        user=file.user,
        folder=file.folder,
        unknown_work_s=arbiter.config.unknown_work_s,
        profiles=arbiter.journal.path.parent / "profiles",
    )
    for number, request in enumerate(requests):
        request.key = f"{file.key}/{number}" if file.key else ""
        with_variables(request, file.exports, file.secrets)
    if arbiter.config.engine == "local" and (os.geteuid() or arbiter.config.single_trust):
        # A service of root could read other users' files for the caller, unless jobs run as root too: then it reads what they can.
        with_code(requests)
    return requests, notes


def submit_all(
    requests: Iterable[schema.SubmitRequest], submit: Callable[[schema.SubmitRequest], schema.SubmitReply]
) -> list[schema.SubmitReply]:
    """Submit in order; dependencies by name refer to the apps of this call first."""
    made: dict[str, schema.SubmitReply] = {}
    for request in requests:
        for other in request.after:
            # The service may have added a number to the name.
            other.app = str(made[other.app].app) if other.app in made else other.app
        made[request.name] = submit(request)
    return list(made.values())
