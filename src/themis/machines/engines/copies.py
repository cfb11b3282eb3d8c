"""Copies of jobs' checkpoints and outputs: the newest whole one of each job, an archive of each machine of its gang.

    FOLDER/copies.db        which attempt began where, what its machines sent, and what is the newest copy
    FOLDER/files/<sha256>   a tar archive: ``checkpoints/...`` and ``outputs/...``

A machine sends an archive in pieces, or says what it wrote to the job's URL. It counts once all of it is here, on disk and entered.
The archives of all machines of a gang are a copy once there was a moment at which each showed its machine's folder; until then the
copy before stays. An attempt that begins closes those before it, so that all of its machines begin with the same copy.
"""

from __future__ import annotations

import math
import sqlite3
import time
from collections.abc import Callable, Collection
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from threading import RLock

from themis.errors import InputError
from themis.machines.agent.messages import Part, Upload, Uploaded
from themis.machines.bundles.store import RECENT_S, Incoming, Store, check_name

OF_PART = "job, attempt, machine, app, number, sha256, bytes, url_sha256, url_bytes, time"
TABLES = """
CREATE TABLE IF NOT EXISTS attempts (
    job INTEGER, attempt INTEGER, machine INTEGER, machines INTEGER, app INTEGER, node TEXT, ended INTEGER DEFAULT 0,
    problem TEXT DEFAULT '', PRIMARY KEY (job, attempt, machine)
);
CREATE TABLE IF NOT EXISTS parts (
    job INTEGER, attempt INTEGER, machine INTEGER, app INTEGER, number INTEGER, sha256 TEXT, bytes INTEGER, url_sha256 TEXT,
    url_bytes INTEGER, time REAL, final INTEGER, PRIMARY KEY (job, attempt, machine)
);
CREATE TABLE IF NOT EXISTS copies (
    job INTEGER, attempt INTEGER, machine INTEGER, app INTEGER, number INTEGER, sha256 TEXT, bytes INTEGER, url_sha256 TEXT,
    url_bytes INTEGER, time REAL, PRIMARY KEY (job, machine)
);
CREATE INDEX IF NOT EXISTS of_app ON copies (app);
"""
EVERY = "SELECT app, sha256 FROM copies UNION SELECT app, sha256 FROM parts"
"""App and name of every file; the name is empty where an archive is at a URL alone."""
REMEMBERED = 8
"""Attempts of a job that are remembered."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Copy:
    """One machine's part of the newest copy of a job: its archives here and at the job's URL, with their sizes in bytes, empty for
    none, and when it came, in seconds since 1970."""

    app: int
    job: int
    attempt: int
    machine: int
    number: int
    sha256: str
    bytes: int
    url_sha256: str
    time: float

    @property
    def part(self) -> Part:
        """Its description for machines."""
        return Part(
            attempt=self.attempt,
            machine=self.machine,
            number=self.number,
            sha256=self.sha256,
            url_sha256=self.url_sha256,
        )


@dataclass(slots=True)
class _Coming:
    number: int
    size: int
    incoming: Incoming


class Copies:
    """Copies of a data directory; for any thread.

    Parameters
    ----------
    folder : where they are. ``quota`` : bytes of all archives. ``most`` : bytes of one.
    live : numbers of the apps whose copies must not be removed. ``clock`` : seconds, never set back.

    Raises
    ------
    InputError : the folder cannot be written, or ``copies.db`` is damaged.
    """

    def __init__(
        self,
        folder: Path,
        quota: int,
        most: int,
        live: Callable[[], Collection[int]] = set,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.most, self.live, self.clock = most, live, clock
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
        self._coming: dict[tuple[int, int, int], _Coming] = {}
        self._spans: dict[tuple[int, int, int], tuple[float, float]] = {}
        """When each archive came, and until when its folder is known to have been as it shows it."""
        self._lock = RLock()
        try:
            self._db = sqlite3.connect(folder / "copies.db", check_same_thread=False, isolation_level=None)
            self._db.execute("PRAGMA journal_mode = WAL")
            self._db.executescript(TABLES)
            self._db.execute("SELECT a.machines, c.machine FROM attempts a, copies c LIMIT 0")
            # Whether their folders have changed since is not known.
            self._db.execute("DELETE FROM parts WHERE NOT final")
            named = {sha256 for _, sha256 in self._db.execute(EVERY)}
            for path in self.store.folder.glob("[!.]*"):
                if path.name not in named:
                    path.unlink()
        except sqlite3.OperationalError as error:
            if "no such column" in str(error):
                raise InputError(
                    f"{folder / 'copies.db'} is of an earlier version of Themis. Move {folder} away: then jobs whose checkpoints "
                    "are there begin again."
                ) from None
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

    def begin(self, app: int, job: int, attempt: int, machine: int, machines: int, node: str) -> None:
        """Note that an attempt begins, and is on this node as machine ``machine`` of ``machines``; only it may send this part."""
        with self._lock:
            self._db.execute(
                "INSERT OR IGNORE INTO attempts (job, attempt, machine, machines, app, node) VALUES (?, ?, ?, ?, ?, ?)",
                (job, attempt, machine, machines, app, node),
            )
            self._db.execute("DELETE FROM attempts WHERE job = ? AND attempt <= ?", (job, attempt - REMEMBERED))

    def awaited(self, job: int, attempt: int) -> list[str]:
        """The nodes that may still send the last archives of the attempt before this one."""
        with self._lock:
            rows = self._db.execute(
                "SELECT node FROM attempts WHERE job = :job AND NOT ended AND attempt = "
                "(SELECT MAX(attempt) FROM attempts WHERE job = :job AND attempt < :attempt) ORDER BY machine",
                {"job": job, "attempt": attempt},
            ).fetchall()
        return [str(node) for (node,) in rows]

    def take(self, node: str, job: int, attempt: int, sent: Upload) -> Uploaded:
        """A piece of an archive came, or word that it is still as its folder is; returns the answer."""
        with self._lock:
            row = self._db.execute(
                "SELECT machine, ended, app, (SELECT MAX(attempt) FROM attempts WHERE job = :job) FROM attempts "
                "WHERE job = :job AND attempt = :attempt AND node = :node",
                {"job": job, "attempt": attempt, "node": node},
            ).fetchone()
            if row is None:
                problem = f"the service does not expect copies of job {job}, attempt {attempt}, from {node}"
                return self._answer(sent, 0, problem)
            machine, ended, app, last = row
            if ended:
                return self._answer(sent, sent.size)  # its answer was lost
            problem, key = sent.problem[:500], (job, attempt, machine)
            try:
                if last > attempt:
                    raise InputError(f"attempt {last} of the job has begun without them")
                if not problem and not self._taken(app, key, sent):
                    return self._answer(sent, self._coming[key].incoming.size, over=False)
            except (InputError, OSError) as error:
                problem = str(error)
            except sqlite3.Error as error:
                problem = f"the service's table of copies cannot be written: {error}"
            if problem:
                self._drop(key)
            if sent.final:
                self._db.execute(
                    "UPDATE attempts SET ended = 1, problem = ? WHERE job = ? AND attempt = ? AND machine = ?",
                    (problem, *key),
                )
            found = self._db.execute(
                "SELECT number FROM copies WHERE job = ? AND attempt = ? AND machine = ?", key
            ).fetchone()
            return self._answer(sent, sent.size, problem, whole=found[0] if found is not None else 0)

    def _answer(self, sent: Upload, offset: int, problem: str = "", *, over: bool = True, whole: int = 0) -> Uploaded:
        return Uploaded(
            task=sent.task,
            number=sent.number,
            offset=offset,
            over=over,
            problem=problem,
            at=self.clock(),
            whole=whole,
        )

    def gone(self, node: str, kept: Collection[tuple[int, int]]) -> None:
        """A machine connected, and has only these attempts, as (job, attempt): of its others no archive will come."""
        with self._lock:
            rows = self._db.execute(
                "SELECT job, attempt, machine FROM attempts WHERE node = ? AND ended = 0", (node,)
            ).fetchall()
            for key in rows:
                if key[:2] not in kept:
                    self._drop(key)
                    self._db.execute(
                        "UPDATE attempts SET ended = 1, problem = 'its machine lost it' "
                        "WHERE job = ? AND attempt = ? AND machine = ?",
                        key,
                    )

    def _taken(self, app: int, key: tuple[int, int, int], sent: Upload) -> bool:
        """Take in a piece; returns whether the archive is complete, and then enters it."""
        there = self._db.execute(
            "SELECT number FROM parts WHERE job = ? AND attempt = ? AND machine = ?", key
        ).fetchone()
        if sent.seen and not sent.final:
            if there is None or there[0] != sent.number:
                raise InputError("the service was started again and does not know the archive any more")
            came, until = self._spans[key]
            self._spans[key] = came, max(until, min(sent.seen, self.clock()))
        else:
            if (sent.size > 0) != bool(sent.sha256):
                raise InputError(
                    f"an archive of {sent.size} bytes is named {sent.sha256!r}, expected the SHA-256 of some bytes"
                )
            for name in filter(None, (sent.sha256, sent.url_sha256)):
                check_name(name)
            if sent.size and not self._whole(app, key, sent):
                return False
            self._enter(app, key, sent)
        self._complete(key[0], key[1])
        return True

    def _whole(self, app: int, key: tuple[int, int, int], sent: Upload) -> bool:
        """Write a piece; returns whether the file is complete."""
        size, coming = max(sent.size, 0), self._coming.get(key)
        if coming is None or (coming.number, coming.size) != (sent.number, size):
            self._drop(key)
            if size > self.most:
                raise InputError(
                    f"the copy has {size / 2**20:.1f} MiB, more than {self.most / 2**20:.1f} MiB (max_copy)"
                )
            old = self._db.execute(
                "SELECT bytes FROM copies WHERE job = ? AND machine = ?", (key[0], key[2])
            ).fetchone()
            self.admit(app, size, int(old[0]) if old is not None else 0)
            coming = self._coming[key] = _Coming(sent.number, size, self.store.receive(size))
        if sent.offset == coming.incoming.size:
            coming.incoming.write(sent.data)
        if coming.incoming.size < size:
            return False
        del self._coming[key]
        coming.incoming.finish(sent.sha256)
        return True

    def _enter(self, app: int, key: tuple[int, int, int], sent: Upload) -> None:
        old = self._db.execute("SELECT sha256 FROM parts WHERE job = ? AND attempt = ? AND machine = ?", key).fetchone()
        self._db.execute(
            f"INSERT OR REPLACE INTO parts ({OF_PART}, final) VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)",
            (*key, app, sent.number, sent.sha256, sent.size, sent.url_sha256, sent.url_bytes, time.time(), sent.final),
        )
        self._spans[key] = self.clock(), math.inf if sent.final else -math.inf
        if old is not None:
            self._unlink(old[0])

    def _complete(self, job: int, attempt: int) -> None:
        """The parts of an attempt become the job's copy, if all are there and there was a moment that all of them show."""
        rows = self._db.execute(
            "SELECT p.machine, p.final, p.sha256 || p.url_sha256, a.machines FROM attempts a JOIN parts p "
            "ON p.job = a.job AND p.attempt = a.attempt AND p.machine = a.machine WHERE a.job = ? AND a.attempt = ?",
            (job, attempt),
        ).fetchall()
        spans = [
            self._spans.get((job, attempt, row[0]), (-math.inf, math.inf)) for row in rows
        ]  # a final one of before a restart
        if not any(row[2] for row in rows) or len(rows) < rows[0][3]:
            return
        if len(rows) > 1 and max(came for came, _ in spans) > min(until for _, until in spans):
            return
        old = self._db.execute("SELECT sha256 FROM copies WHERE job = ?", (job,)).fetchall()
        old += self._db.execute("SELECT sha256 FROM parts WHERE job = ? AND attempt < ?", (job, attempt)).fetchall()
        self._db.execute("BEGIN IMMEDIATE")
        try:
            self._db.execute("DELETE FROM copies WHERE job = ?", (job,))
            self._db.execute("DELETE FROM parts WHERE job = ? AND attempt < ?", (job, attempt))
            self._db.execute(
                f"INSERT INTO copies ({OF_PART}) SELECT {OF_PART} FROM parts WHERE job = ? AND attempt = ?",
                (job, attempt),
            )
            self._db.execute("COMMIT")
        except sqlite3.Error:
            self._db.execute("ROLLBACK")
            raise
        for (sha256,) in old:
            self._unlink(sha256)

    def _drop(self, key: tuple[int, int, int]) -> None:
        if (coming := self._coming.pop(key, None)) is not None:
            coming.incoming.abort()

    def _unlink(self, sha256: str) -> None:
        """Remove a file that no job has any more."""
        found = "SELECT 1 FROM copies WHERE sha256 = :name UNION ALL SELECT 1 FROM parts WHERE sha256 = :name"
        if sha256 and self._db.execute(found, {"name": sha256}).fetchone() is None:
            self.store.path(sha256).unlink(missing_ok=True)

    # ---- for jobs and their owners --------------------------------------------------------------------------------

    def newest(self, job: int) -> list[Copy]:
        """The parts of the newest copy of a job, by machine; none where a file of it is gone."""
        return self._read("job = ?", job)

    def of_app(self, app: int) -> list[Copy]:
        """The parts of the newest copy of each job of an app, by job and machine."""
        return self._read("app = ?", app)

    def coming(self, app: int) -> set[int]:
        """The jobs of an app of whose last attempt a machine has yet to send the last archive."""
        last = "(SELECT MAX(attempt) FROM attempts later WHERE later.job = attempts.job)"
        with self._lock:
            rows = self._db.execute(
                f"SELECT job FROM attempts WHERE app = ? AND NOT ended AND attempt = {last}", (app,)
            ).fetchall()
        return {int(job) for (job,) in rows}

    def _read(self, where: str, value: int) -> list[Copy]:
        with self._lock:
            rows = self._db.execute(
                "SELECT app, job, attempt, machine, number, sha256, bytes, url_sha256, time FROM copies "
                f"WHERE {where} ORDER BY job, machine",
                (value,),
            ).fetchall()
        names = ("app", "job", "attempt", "machine", "number", "sha256", "bytes", "url_sha256", "time")
        found = [Copy(**dict(zip(names, row))) for row in rows]
        gone = {copy.job for copy in found if copy.sha256 and self.store.size(copy.sha256) is None}
        return [copy for copy in found if copy.job not in gone]

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
            rows = self._db.execute(EVERY).fetchall()
            kept = {app for app, sha256 in rows if sha256 and self._age(sha256, now) <= max(keep_s, RECENT_S)}
            for app in {app for app, _ in rows} - live - kept:
                self._db.execute("DELETE FROM copies WHERE app = ?", (app,))
                self._db.execute("DELETE FROM parts WHERE app = ?", (app,))
            for _, sha256 in rows:
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
            rows = self._db.execute(EVERY).fetchall()
        return {str(sha256) for app, sha256 in rows if app in live}
