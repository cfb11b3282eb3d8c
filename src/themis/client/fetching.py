"""Get what the service keeps of an app's checkpoints and outputs: ``GET /v1/apps/{app}/copies``."""

from __future__ import annotations

import json
import shutil
import tempfile
import time
import warnings
from collections.abc import Callable, Sequence
from contextlib import closing
from http.client import HTTPException, HTTPResponse
from pathlib import Path
from typing import Any
from urllib.parse import quote

from themis.client.home import read_endpoint, read_token
from themis.client.web import connection_to
from themis.errors import InputError
from themis.machines.agent.prepare import Damaged, Failed, move, unpack

TIMEOUT_S = 60.0
"""Timeout in seconds for a piece."""
PIECE = 1 << 20
COMING_S, LOOK_S = 60.0, 0.5
"""How long to wait in seconds for the last archives of a job that ended, and between two looks for them."""


def fetch(
    home: Path, app: str, to: Path, jobs: Sequence[int] = (), tell: Callable[[str], object] = warnings.warn
) -> list[Path]:
    """Write the newest copies of an app's jobs into a folder; returns the folder of each job.

    A job that has just ended is waited for until its machines have sent what it wrote last, for ``COMING_S`` at most. Files of the
    same names are replaced, others stay. An app of one job has ``checkpoints`` and ``outputs`` in the folder itself,
    others in ``job0``, ``job1`` and so on.

    Parameters
    ----------
    home : data directory, of the service or of a login.
    jobs : positions in the app; none: all that have a copy.
    tell : takes a sentence where a machine did not send what a job wrote last.

    Raises
    ------
    InputError : nothing is kept, the app is another user's, or the folder cannot be written.
    """
    address, page = read_endpoint(home).http, f"/v1/apps/{quote(app, safe='')}"
    last = time.monotonic() + COMING_S
    while coming := set((found := _json(home, address, f"{page}/copies"))["coming"]) & set(jobs or found["coming"]):
        if time.monotonic() > last:
            tell(
                f"The machine of job {min(coming)} has not sent what the job wrote last, for {COMING_S:g} s; here is"
                " what came before. `themis nodes` shows whether the machine is there."
            )
            break
        time.sleep(LOOK_S)
    there = found["copies"]
    missing = sorted(set(jobs) - {copy["job"] for copy in there})
    if missing:
        raise InputError(f"the service keeps nothing of job {missing[0]} of app {app!r}.{_has(there)}")
    if not there:
        raise InputError(
            f"the service keeps no files of app {app!r}: it copied none so far, or its checkpoints are in a folder, or at a URL. "
            "Name what it should keep with `outputs` in its job file."
        )
    several = len(_json(home, address, page)["jobs"]) > 1
    made = []
    for job in sorted({copy["job"] for copy in there} & set(jobs or (copy["job"] for copy in there))):
        target = to / f"job{job}" if several else to
        parts = sorted((copy["machine"], copy["sha256"]) for copy in there if copy["job"] == job)
        _bring(home, address, f"{page}/copies/{job}", target, parts)
        made.append(target)
    return made


def _has(there: Sequence[dict[str, Any]]) -> str:
    known = ", ".join(str(copy["job"]) for copy in there[:20])
    return f" There are copies of: {known}." if there else ""


def _bring(home: Path, address: str, page: str, target: Path, parts: Sequence[tuple[int, str]]) -> None:
    """Download a copy, which has an archive with this SHA-256 of each machine, and move its files into place once it is whole."""
    target.mkdir(parents=True, exist_ok=True)
    draft = Path(tempfile.mkdtemp(prefix=".themis-fetch-", dir=target))
    try:
        (draft / "files").mkdir()
        for machine, sha256 in reversed(parts):
            _unpacked(home, address, f"{page}?machine={machine}", draft, sha256)
        move(str(draft / "files"), str(target))
    finally:
        shutil.rmtree(draft, ignore_errors=True)


def _unpacked(home: Path, address: str, page: str, draft: Path, sha256: str) -> None:
    with open(draft / "archive", "w+b") as file:
        with closing(connection_to(home, address, TIMEOUT_S)) as connection:
            try:
                shutil.copyfileobj(_asked(home, connection, page), file, PIECE)
            except (OSError, HTTPException) as error:
                raise InputError(f"the files did not arrive: {error}. Try again.") from None
        file.flush()
        try:
            unpack(file.fileno(), str(draft / "files"), sha256, over=True)
        except Damaged:
            raise InputError(
                "the files are not those that the service announced: a newer copy came meanwhile, or the service's copy is "
                "damaged. Try again, and if that does not help tell an administrator."
            ) from None
        except Failed as error:
            raise InputError(f"the files cannot be unpacked: {error}.") from None


def _json(home: Path, address: str, page: str) -> Any:
    with closing(connection_to(home, address, TIMEOUT_S)) as connection:
        try:
            return json.loads(_asked(home, connection, page).read())
        except (OSError, HTTPException, ValueError) as error:
            raise InputError(f"the service at {address} cannot be asked: {error}.") from None


def _asked(home: Path, connection: Any, page: str) -> HTTPResponse:
    """The reply, if it is not a refusal."""
    connection.request("GET", page, headers={"Authorization": f"Bearer {read_token(home)}", "Connection": "close"})
    reply: HTTPResponse = connection.getresponse()
    if reply.status != 200:
        found = json.loads(reply.read() or b"{}")
        raise InputError(str(found.get("error", "")) or f"the service answers {reply.status} to {page}.")
    return reply
