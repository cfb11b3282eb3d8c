"""Who did what from where: sign-ins and changes, one JSON object a line, in files of a bounded size. The journal has what followed.

Anybody can fail to sign in, so these lines are not the journal's: the oldest are dropped.
"""

from __future__ import annotations

import json
import logging
import os
import threading
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path

from themis.service.api.access import Caller

MOST_BYTES, FILES = 4 << 20, 4
"""Bytes of a file, and how many files are kept: ``audit.jsonl``, ``audit.1.jsonl``, ..."""
MOST_TEXT = 300
"""Characters of a text."""
MOST_ENTRIES = 1000

log = logging.getLogger("themis.service")


@dataclass(frozen=True, slots=True, kw_only=True)
class Entry:
    """A sign-in or a change.

    Attributes
    ----------
    time : seconds since 1970. ``user`` : who called; empty where nobody signed in.
    method : ``token`` or ``oidc``. ``address`` : of the caller; empty for the service itself.
    action : a method of the API, or ``SignIn``. ``target`` : what it was done to.
    outcome : ``ok`` or ``refused``; then ``message`` says why.
    """

    time: float
    user: str
    method: str
    address: str
    action: str
    target: str
    outcome: str
    message: str


class Audit:
    """The files in a data directory; for any thread."""

    def __init__(self, home: Path) -> None:
        self.path = home / "audit.jsonl"
        self._lock = threading.Lock()
        self._failed = False

    def add(self, caller: Caller, action: str, target: str = "", refused: str = "") -> None:
        """Write an entry. A disk that is full does not stop the call: it is logged."""
        entry = Entry(
            time=time.time(),
            user=caller.user,
            method=caller.method,
            address=caller.address,
            action=action,
            target=target[:MOST_TEXT],
            outcome="refused" if refused else "ok",
            message=refused[:MOST_TEXT],
        )
        line = json.dumps(asdict(entry)) + "\n"
        with self._lock:
            try:
                self._write(line.encode())
                self._failed = False
            except OSError as error:
                if not self._failed:
                    log.warning("cannot write %s: %s; sign-ins and changes are not recorded.", self.path, error)
                self._failed = True

    def _write(self, line: bytes) -> None:
        with open(os.open(self.path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600), "ab") as file:
            file.write(line)
            full = file.tell() >= MOST_BYTES
        if full:
            for number in range(FILES - 1, 0, -1):
                older = self._file(number - 1)
                if older.exists():
                    older.replace(self._file(number))

    def _file(self, number: int) -> Path:
        return self.path.with_name(f"audit.{number}.jsonl") if number else self.path

    def read(self, user: str = "", limit: int = 0) -> list[Entry]:
        """Entries, the newest first. ``user`` : of one user; empty: of all. ``limit`` : at most so many; 0: ``MOST_ENTRIES``."""
        out: list[Entry] = []
        most = min(limit or MOST_ENTRIES, MOST_ENTRIES)
        with self._lock:
            for entry in self._backwards():
                if len(out) >= most:
                    break
                if user in ("", entry.user):
                    out.append(entry)
        return out

    def _backwards(self) -> Iterator[Entry]:
        for number in range(FILES):
            try:
                lines = self._file(number).read_bytes().splitlines()
            except FileNotFoundError:
                continue
            for line in reversed(lines):
                try:
                    yield Entry(**json.loads(line))
                except (ValueError, TypeError):
                    continue  # cut off when the machine stopped
