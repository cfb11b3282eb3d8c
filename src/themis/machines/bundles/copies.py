"""Copies of jobs' checkpoints and outputs, kept by the service: the newest one of each job.

    FOLDER/copies.db        which attempt began where, and which file is whose
    FOLDER/files/<sha256>   a tar archive: ``checkpoints/...`` and ``outputs/...``

A machine sends a copy in pieces. It counts once all of it is here, on disk and entered; until then the one before stays.
"""

from __future__ import annotations

import sqlite3
import time
from collections.abc import Callable, Collection
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from threading import RLock

from themis.errors import InputError
from themis.machines.bundles.store import RECENT_S, Incoming, Store

TABLES = """
CREATE TABLE IF NOT EXISTS attempts (
    job INTEGER, attempt INTEGER, app INTEGER, node TEXT, ended INTEGER DEFAULT 0, problem TEXT DEFAULT '',
    PRIMARY KEY (job, attempt)
);
CREATE TABLE IF NOT EXISTS copies (
    job INTEGER PRIMARY KEY, app INTEGER, attempt INTEGER, number INTEGER, sha256 TEXT, bytes INTEGER, time REAL
);
CREATE INDEX IF NOT EXISTS of_app ON copies (app);
"""
REMEMBERED = 8
"""Attempts of a job that are remembered."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Copy:
    """The newest copy of a job: which attempt made it, its file and size in bytes, and when it came, in seconds since 1970."""

    app: int
    job: int
    attempt: int
    sha256: str
    bytes: int
    time: float


@dataclass(slots=True)
class _Coming:
    number: int
    size: int
    incoming: Incoming


class Copies:
    """Copies of a data directory; for any thread.

    Parameters
    ----------
    folder : where they are. ``quota`` : bytes of all copies. ``most`` : bytes of one.
    live : numbers of the apps whose copies must not be removed.

    Raises
    ------
    InputError : the folder cannot be written, or ``copies.db`` is damaged.
    """

    def __init__(self, folder: Path, quota: int, most: int, live: Callable[[], Collection[int]] = set) -> None:
        self.most, self.live = most, live
        try:
            folder.mkdir(parents=True, exist_ok=True, mode=0o700)
            self.store = Store(
                folder / "files", quota, self._needed, setting="copies_quota", called="the store of copies"
            )
        except OSError as error:
            raise InputError(
                f"{error.filename or folder} cannot be used for copies of checkpoints and outputs: {error.strerror}."
            ) from None
        self.admit: Callable[[int, int, int], None] = lambda app, size, instead: None
        """Raises InputError where an app's user may not add a copy of this size instead of one."""
        self._coming: dict[tuple[int, int], _Coming] = {}
        self._lock = RLock()
        try:
            self._db = sqlite3.connect(folder / "copies.db", check_same_thread=False, isolation_level=None)
            self._db.execute("PRAGMA journal_mode = WAL")
            self._db.executescript(TABLES)
        except sqlite3.OperationalError as error:
            raise InputError(f"{folder / 'copies.db'} cannot be written: {error}.") from None
        except sqlite3.DatabaseError as error:
            raise InputError(
                f"{folder / 'copies.db'} is damaged: {error}. Put {folder} of a backup in its place, or move it away: "
                "then jobs whose checkpoints are there begin again."
            ) from None

    def close(self) -> None:
        """Close the file; what has not come whole is dropped."""
        with self._lock:
            for coming in self._coming.values():
                coming.incoming.abort()
            self._coming.clear()
            self._db.close()

    # ---- for machines ---------------------------------------------------------------------------------------------

    def begin(self, app: int, job: int, attempt: int, node: str) -> None:
        """Note that an attempt begins on a machine, which alone may send copies of it."""
        with self._lock:
            self._db.execute(
                "INSERT OR IGNORE INTO attempts (job, attempt, app, node) VALUES (?, ?, ?, ?)",
                (job, attempt, app, node),
            )
            self._db.execute("DELETE FROM attempts WHERE job = ? AND attempt <= ?", (job, attempt - REMEMBERED))

    def awaited(self, job: int, attempt: int) -> str:
        """The machine that may still send the last copy of the attempt before this one; empty if none is expected."""
        with self._lock:
            row = self._db.execute(
                "SELECT node, ended FROM attempts WHERE job = ? AND attempt < ? ORDER BY attempt DESC LIMIT 1",
                (job, attempt),
            ).fetchone()
        return "" if row is None or row[1] else str(row[0])

    def take(
        self,
        node: str,
        job: int,
        attempt: int,
        number: int,
        offset: int,
        size: int,
        data: bytes,
        *,
        final: bool,
        problem: str,
    ) -> tuple[int, str, bool]:
        """A piece of a copy came.

        Parameters
        ----------
        size : bytes of the whole copy; 0: there is nothing to copy, or there is a ``problem``.

        Returns
        -------
        The next offset to send, the reason of a refusal, and true if the copy is complete.
        """
        with self._lock:
            row = self._db.execute(
                "SELECT node, ended, app FROM attempts WHERE job = ? AND attempt = ?", (job, attempt)
            ).fetchone()
            if row is None or row[0] != node:
                return 0, f"the service does not expect copies of job {job}, attempt {attempt}, from {node}", True
            if row[1]:
                return size, "", True  # its answer was lost
            try:
                if size > 0 and not self._whole(int(row[2]), job, attempt, number, offset, size, data):
                    return self._coming[job, attempt].incoming.size, "", False
            except (InputError, OSError) as error:
                self._drop(job, attempt)
                problem = str(error)
            except sqlite3.Error as error:
                problem = f"the service's table of copies cannot be written: {error}"
            if final:
                self._db.execute(
                    "UPDATE attempts SET ended = 1, problem = ? WHERE job = ? AND attempt = ?", (problem, job, attempt)
                )
            return size, problem, True

    def gone(self, node: str, kept: Collection[tuple[int, int]]) -> None:
        """A machine connected, and has only these attempts, as (job, attempt): of its others no copy will come."""
        with self._lock:
            rows = self._db.execute(
                "SELECT job, attempt FROM attempts WHERE node = ? AND ended = 0", (node,)
            ).fetchall()
            for job, attempt in rows:
                if (job, attempt) not in kept:
                    self._drop(job, attempt)
                    self._db.execute(
                        "UPDATE attempts SET ended = 1, problem = 'its machine lost it' WHERE job = ? AND attempt = ?",
                        (job, attempt),
                    )

    def _whole(self, app: int, job: int, attempt: int, number: int, offset: int, size: int, data: bytes) -> bool:
        """Write a piece; returns whether the copy is complete, and then enters it."""
        coming = self._coming.get((job, attempt))
        if coming is None or (coming.number, coming.size) != (number, size):
            self._drop(job, attempt)
            if size > self.most:
                raise InputError(
                    f"the copy has {size / 2**20:.1f} MiB, more than {self.most / 2**20:.1f} MiB (max_copy)"
                )
            old = self._db.execute("SELECT bytes FROM copies WHERE job = ?", (job,)).fetchone()
            self.admit(app, size, int(old[0]) if old is not None else 0)
            coming = _Coming(number, size, self.store.receive(size))
            self._coming[job, attempt] = coming
        if offset == coming.incoming.size:
            coming.incoming.write(data)
        if coming.incoming.size < size:
            return False
        del self._coming[job, attempt]
        self._enter(app, job, attempt, number, coming.incoming.finish(), size)
        return True

    def _enter(self, app: int, job: int, attempt: int, number: int, sha256: str, size: int) -> None:
        old = self._db.execute("SELECT attempt, number, sha256 FROM copies WHERE job = ?", (job,)).fetchone()
        if old is not None and (old[0], old[1]) > (attempt, number):
            return
        self._db.execute(
            "INSERT OR REPLACE INTO copies VALUES (?, ?, ?, ?, ?, ?, ?)",
            (job, app, attempt, number, sha256, size, time.time()),
        )
        if old is not None and old[2] != sha256:
            self._unlink(old[2])

    def _drop(self, job: int, attempt: int) -> None:
        if (coming := self._coming.pop((job, attempt), None)) is not None:
            coming.incoming.abort()

    def _unlink(self, sha256: str) -> None:
        """Remove a file that no job has any more."""
        if self._db.execute("SELECT 1 FROM copies WHERE sha256 = ?", (sha256,)).fetchone() is None:
            self.store.path(sha256).unlink(missing_ok=True)

    # ---- for jobs and their owners --------------------------------------------------------------------------------

    def newest(self, job: int) -> Copy | None:
        """The newest copy of a job whose file is here."""
        return next(iter(self._read("job = ?", job)), None)

    def of_app(self, app: int) -> list[Copy]:
        """The newest copy of each job of an app, by the job."""
        return self._read("app = ?", app)

    def _read(self, where: str, value: int) -> list[Copy]:
        with self._lock:
            rows = self._db.execute(
                f"SELECT app, job, attempt, sha256, bytes, time FROM copies WHERE {where} ORDER BY job", (value,)
            ).fetchall()
        found = [Copy(app=a, job=j, attempt=n, sha256=s, bytes=b, time=t) for a, j, n, s, b, t in rows]
        return [copy for copy in found if self.store.size(copy.sha256) is not None]

    # ---- room -----------------------------------------------------------------------------------------------------

    def trim(self, keep_s: float, now: float | None = None) -> None:
        """Remove copies of apps that are not live, and that were not used for ``keep_s``; nothing once it is closed."""
        with suppress(sqlite3.ProgrammingError):  # closed meanwhile, by another thread
            self._trim(keep_s, now)

    def _trim(self, keep_s: float, now: float | None) -> None:
        now = time.time() if now is None else now
        live = set(self.live())
        self.store.trim(keep_s, now)
        with self._lock:
            for job, app, sha256 in self._db.execute("SELECT job, app, sha256 FROM copies").fetchall():
                if app not in live and self._age(sha256, now) > max(keep_s, RECENT_S):
                    self._db.execute("DELETE FROM copies WHERE job = ?", (job,))
                    self._unlink(sha256)
            for (app,) in self._db.execute("SELECT DISTINCT app FROM attempts WHERE ended = 1").fetchall():
                if app not in live:
                    self._db.execute("DELETE FROM attempts WHERE app = ? AND ended = 1", (app,))

    def _age(self, sha256: str, now: float) -> float:
        with suppress(FileNotFoundError):
            return now - self.store.path(sha256).stat().st_mtime
        return float("inf")

    def _needed(self) -> set[str]:
        live = set(self.live())
        with self._lock:
            rows = self._db.execute("SELECT app, sha256 FROM copies").fetchall()
        return {str(sha256) for app, sha256 in rows if app in live}
