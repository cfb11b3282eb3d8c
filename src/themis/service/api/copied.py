"""Copies of checkpoints and outputs that the service keeps, for their owners."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from typing import Any

from themis.errors import UnknownName
from themis.service.api.json_messages import Schema
from themis.service.api.methods import Api
from themis.service.api.page import Parameter, Values

PIECE = 1 << 20
MAY = "fetch its files"
JOB = Parameter(name="job", text="Position of the job in the app, from 0.", pattern="[0-9]{1,9}", example="0")
COPIES: Schema = {
    "type": "array",
    "items": {
        "type": "object",
        "properties": {
            "job": {"type": "integer", "description": "Position in the app, from 0."},
            "attempt": {"type": "integer"},
            "sha256": {"type": "string"},
            "bytes": {"type": "integer"},
            "time": {"type": "number", "description": "Seconds since 1970."},
        },
        "required": ["job", "attempt", "sha256", "bytes", "time"],
    },
}


def copies(api: Api, values: Values) -> list[dict[str, Any]]:
    """The newest copy of each job of an app; an app without any has an empty list."""
    app, jobs = api.jobs_of(values["app"], MAY)
    found = api.arbiter.copies.of_app(app) if api.arbiter.copies is not None else []
    position = {job: i for i, job in enumerate(jobs)}
    return [
        {"job": position[c.job], "attempt": c.attempt, "sha256": c.sha256, "bytes": c.bytes, "time": c.time}
        for c in found
        if c.job in position
    ]


def archive(api: Api, values: Values, gone: threading.Event) -> Iterator[bytes]:
    """The newest copy of a job, in pieces; a newer one that arrives during the call does not change it."""
    _, jobs = api.jobs_of(values["app"], MAY)
    number, kept = int(values["job"]), api.arbiter.copies
    copy = kept.newest(jobs[number]) if kept is not None and number < len(jobs) else None
    if kept is None or copy is None:
        raise UnknownName("copy of job", values["job"], (), hint="GET .../copies lists the existing ones.")
    with open(kept.store.path(copy.sha256), "rb") as file:
        while not gone.is_set() and (data := file.read(PIECE)):
            yield data
