"""Copies of checkpoints and outputs that the service keeps, for their owners."""

from __future__ import annotations

import threading
from collections.abc import Iterator

from themis.errors import UnknownName
from themis.schema import messages as schema
from themis.service.api.methods import Api

PIECE = 1 << 20
MAY = "fetch its files"


def copies(api: Api, request: schema.AppRef) -> schema.CopiesReply:
    """The archives of the newest copy of each job of an app, and the ended jobs whose last archives are on their way."""
    app, jobs, ended = api.jobs_of(request.app, MAY)
    # What comes is read first: a copy that arrives in between is in the list, and asked for once more.
    kept = api.arbiter.copies
    coming = kept.coming(app) & ended if kept is not None else set()
    found = kept.of_app(app) if kept is not None else []
    position = {job: i for i, job in enumerate(jobs)}
    return schema.CopiesReply(
        coming=sorted(position[job] for job in coming),
        copies=[
            schema.KeptCopy(
                job=position[c.job],
                machine=c.machine,
                attempt=c.attempt,
                sha256=c.sha256,
                bytes=c.bytes,
                time=c.time,
            )
            for c in found
            if c.job in position and c.sha256
        ],
    )


def archive(api: Api, request: schema.JobRef, gone: threading.Event) -> Iterator[bytes]:
    """The newest copy of a job, in pieces; a newer one that arrives during the call does not change it."""
    _, jobs, _ = api.jobs_of(request.app, MAY)
    number, kept = request.job, api.arbiter.copies
    parts = kept.newest(jobs[number]) if kept is not None and number < len(jobs) else []
    copy = next((part for part in parts if part.machine == request.machine and part.sha256), None)
    if kept is None or copy is None:
        raise UnknownName("copy of job", str(number), (), hint="GET .../copies lists the existing ones.")
    with open(kept.store.path(copy.sha256), "rb") as file:
        while not gone.is_set() and (data := file.read(PIECE)):
            yield data
