"""Disk usage of users in a data directory: checkpoints, logs and folders of jobs, files that they were sent with, and
copies.

    DATA_DIR/run/checkpoints/appA/jobJ    DATA_DIR/run/nodes/NODE/{logs,tasks,work,checkpoints}/jobJ-attemptA
    DATA_DIR/bundles/SHA256               DATA_DIR/copies/files/SHA256

Folders are measured (``usage_of``), because the file system does not record the Themis user that a folder belongs to.
"""

from __future__ import annotations

import re
import sqlite3
import threading
import time
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import closing, suppress
from dataclasses import dataclass, field
from pathlib import Path

from themis.machines.agent.system import SYSTEM
from themis.machines.agent.usage import bytes_below, disk_id
from themis.machines.bundles.store import NoRoomInStore
from themis.machines.engines.copies import EVERY
from themis.machines.engines.disks import limit_of, size_words
from themis.model.units import Seconds

EVERY_S, REST = 60.0, 20.0
"""Seconds between two measurements: the minimum, and as a multiple of the last one's duration."""
PAUSE, PAUSE_S = 1000, 0.002
"""Folder entries between pauses that let other threads run, and seconds of a pause."""
JOB, OF_JOB = re.compile(r"job(\d{1,18})"), re.compile(r"job(\d{1,18})-attempt\d+")


@dataclass(frozen=True, slots=True, kw_only=True)
class DiskUsage:
    """Bytes of a data directory.

    Attributes
    ----------
    free, size : of its disk. ``users`` : by user. ``at_rest`` : likewise without the folders of jobs that run.
    """

    free: int
    size: int
    users: Mapping[str, int] = field(default_factory=dict)
    at_rest: Mapping[str, int] = field(default_factory=dict)

    def most(self, count: int = 3) -> str:
        """The users with the largest usage, in words; empty if nothing is used."""
        first = sorted(((size, user) for user, size in self.users.items() if size), reverse=True)[:count]
        return ", ".join(f"{user} has {size_words(size)}" for size, user in first)


def usage_of(home: Path, running: Collection[int] = ()) -> DiskUsage:
    """Measure a data directory; ``running`` : jobs that do.

    Raises
    ------
    OSError : it does not exist. sqlite3.Error : its journal, or its table of copies, cannot be read.
    """
    free, size, _ = SYSTEM.disk(home)
    users, rest = dict[str, int](), dict[str, int]()
    with closing(_reading(home / "journal.db")) as db:
        of_job: dict[int, str] = dict(db.execute("SELECT DISTINCT job, user FROM leases"))
        bundles = db.execute(
            "SELECT json_extract(p.value, '$.bundle'), user, MIN(app) FROM apps, json_each(programs) p GROUP BY 1"
        ).fetchall()
        of_app: dict[int, str] = dict(db.execute("SELECT app, user FROM apps"))
    found = [(of_job.get(job), folder, job in running) for job, folder in _folders(home / "run")]
    found += [(user, home / "bundles" / name, False) for name, user, _ in bundles if name]
    if (copies := home / "copies" / "copies.db").exists():
        with closing(_reading(copies)) as db:
            rows = db.execute(f"SELECT app, sha256 FROM ({EVERY}) WHERE sha256 != '' GROUP BY sha256").fetchall()
        found += [(of_app.get(app), home / "copies" / "files" / sha256, False) for app, sha256 in rows]
    for user, path, runs in found:
        if user is not None:
            there = _bytes_of(path)
            users[user] = users.get(user, 0) + there
            rest[user] = rest.get(user, 0) + there * (not runs)
    return DiskUsage(free=free, size=size, users=users, at_rest=rest)


def _reading(path: Path) -> sqlite3.Connection:
    return sqlite3.connect(f"{path.absolute().as_uri()}?mode=ro", uri=True)


def _folders(run: Path) -> Iterator[tuple[int, Path]]:
    """Folders of jobs, with the number of each."""
    for pattern, name in (("checkpoints/app*/job*", JOB), ("nodes/*/*/job*-attempt*", OF_JOB)):
        for folder in run.glob(pattern):
            if match := name.fullmatch(folder.name):
                yield int(match[1]), folder


def _bytes_of(path: Path) -> int:
    total = 0
    with suppress(OSError):
        if path.is_file() and not path.is_symlink():
            return path.stat().st_size
        for n, size in enumerate(bytes_below(path)):
            total += size
            if n % PAUSE == PAUSE - 1:
                time.sleep(PAUSE_S)
    return total


@dataclass(slots=True)
class DiskWatch:
    """Periodic measurement of a data directory, in a thread, and the decision who may add to it.

    Attributes
    ----------
    quota : ``Config.user_disk``. ``running`` : jobs that do; called in the arbiter's thread.
    """

    home: Path
    quota: float
    running: Callable[[], Collection[int]]
    found: DiskUsage | None = None
    at: Seconds = 0.0
    added: dict[str, int] = field(default_factory=dict)
    """Bytes that were let in since the last measurement, by user."""
    thread: threading.Thread = field(default_factory=threading.Thread)
    lock: threading.Lock = field(default_factory=threading.Lock)
    """Held to change ``added``: calls and copies come in threads of their own."""

    def run(self, now: Seconds) -> None:
        """Begin to measure if it is time."""
        if now < self.at or self.thread.is_alive():
            return
        self.at = now + EVERY_S
        self.thread = threading.Thread(
            target=self.measure, args=(frozenset(self.running()), now), name="themis-disk", daemon=True
        )
        self.thread.start()

    def measure(self, running: Collection[int], now: Seconds) -> None:
        """Measure now; what cannot be read leaves what was found before."""
        began = time.monotonic()
        with self.lock:
            added, self.added = self.added, {}
        try:
            self.found = usage_of(self.home, running)
        except (OSError, sqlite3.Error):
            with self.lock:
                for user, size in added.items():
                    self.added[user] = self.added.get(user, 0) + size
        self.at = max(self.at, now + REST * (time.monotonic() - began))

    def rest(self) -> tuple[str, Mapping[str, int]]:
        """The directory's disk, and each user's bytes there apart from running jobs."""
        return ("", {}) if self.found is None else (disk_id(self.home), self.found.at_rest)

    def admit(self, user: str, size: int, instead: int = 0) -> None:
        """Let a user add a file of this size, ``instead`` of one.

        Raises
        ------
        NoRoomInStore : it does not fit into the user's quota.
        """
        if self.found is None or not self.quota:
            return
        limit = limit_of(self.quota, self.found.size)
        with self.lock:
            added = self.added.get(user, 0)
            have = self.found.users.get(user, 0) + added
            if have - instead + size <= limit:
                self.added[user] = added + size - instead
                return
        raise NoRoomInStore(
            f"user {user} has {size_words(have)} in the service's data directory, and {size_words(size)} more exceed the quota "
            f"of {size_words(limit)} (user_disk); remove checkpoints and outputs that are not needed."
        )
