"""Transactions of the journal: all of one or nothing; where the disk is full, they are retried.

The arbiter's state in memory is ahead of what a transaction wrote, so one that fails because the disk is full cannot be taken
back. It is kept and written again until there is room; meanwhile nothing is decided, carried out or answered, while jobs run on,
because another thread renews machines' leases. Killed while it waits, the arbiter continues from the transaction
before.

A reserve keeps that from happening: blocks of the write-ahead log that it has before it needs them, so that no other program can
take them. While the disk is nearly full, submissions are refused (``low``) and everything else is written into the reserve.
"""

from __future__ import annotations

import logging
import os
import sqlite3
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from themis.errors import ThemisError
from themis.machines.agent.health import is_full
from themis.machines.agent.system import SYSTEM
from themis.model.units import Seconds
from themis.service.engine.tallies import SECONDS, Tally

LOOK_S: Seconds = 1.0
"""Seconds between two tries."""
SAY_S: Seconds = 60.0
"""Seconds between two messages in the log."""
RESERVE_S: Seconds = 10.0
"""Seconds between two looks whether the reserve is whole."""
LEAST_RESERVE = 256 << 10
"""Bytes; a smaller reserve is not worth its blocks."""
NO_ROOM = frozenset(
    (sqlite3.SQLITE_FULL, sqlite3.SQLITE_IOERR_WRITE, sqlite3.SQLITE_IOERR_SHMSIZE, sqlite3.SQLITE_IOERR_TRUNCATE)
)
"""Error codes of SQLite for a full disk, an exhausted quota, or a file that may not grow. A failed sync is not among
them: earlier writes may then be lost, and only a restart can find out which."""

log = logging.getLogger("themis.service")


class NoRoom(ThemisError):
    """The journal cannot be written."""


class Vanished(ThemisError):
    """The open file is no longer the one at the path that readers open."""


def _file_at(path: Path) -> tuple[int, int] | None:
    try:
        found = os.stat(path)
    except OSError:
        return None
    return found.st_dev, found.st_ino


class Transactions:
    """A connection to SQLite that writes in transactions."""

    def __init__(self, path: Path, db: sqlite3.Connection) -> None:
        self.path, self.db = path, db
        self._files = {path: file} if (file := _file_at(path)) is not None else {}
        """Device and number of the files that are open."""
        self.commit_s = Tally(SECONDS)
        """Durations of commits: until the decision was on disk."""
        self.stuck = ""
        """Why nothing can be written down at this moment; for any thread to read."""
        self.patient: Callable[[], bool] = lambda: False
        """Asked before each new try to write; where it says no, ``NoRoom`` is raised."""
        self.pause: Callable[[float], None] = time.sleep
        """Waits between two tries."""
        self.reserve = 0
        """Bytes reserved for the write-ahead log, at most a quarter of the free ones; 0: as many as it needs."""
        self.disk: Callable[[], tuple[int, int]] = lambda: SYSTEM.disk(path.parent)[:2]
        """Bytes that are free on the journal's disk, and all bytes."""
        self._reserve_at = 0.0
        self.committed = False
        """True if the last transaction is on disk, also where an error came after its commit."""
        self._written: list[tuple[str, Sequence[object]]] | None = None
        """Statements that the open transaction has executed so far."""

    @contextmanager
    def transaction(self) -> Iterator[None]:
        """Atomic block: its writes are on disk afterwards, or rolled back after an error.

        Raises
        ------
        NoRoom : the disk is full, and ``patient`` says not to wait.
        """
        self._written, self.committed = [], False
        self.db.execute("BEGIN")
        try:
            yield
            self._ending()
            try:
                self._commit()
            except (Vanished, sqlite3.OperationalError) as error:
                self._repeat(error, commit=True)
        except BaseException:
            if not self.committed:
                self._roll_back()
                self._undone()
            raise
        finally:
            self._written = None
        self._watch_log()
        self._kept()

    def _ending(self) -> None:
        """Called before the commit, to write what comes last."""

    def _undone(self) -> None:
        """Called when the transaction was rolled back."""

    def _kept(self) -> None:
        """Called when the transaction is on disk."""

    def vanished(self) -> str:
        """Why the journal's file is not where its readers look; empty while it is where it was. For any thread."""
        for path, file in tuple(self._files.items()):
            if _file_at(path) != file:
                return (
                    f"{path} is missing: it was moved, replaced or removed while the service runs. Nothing is decided or "
                    "accepted until it is back; jobs run on. Put it back, or stop the service and restore a backup."
                )
        return ""

    def _watch_log(self) -> None:
        """The write-ahead log is there from the first transaction on, for as long as the journal is open."""
        log_path = Path(f"{self.path}-wal")
        if log_path not in self._files and (file := _file_at(log_path)) is not None:
            self._files[log_path] = file

    def _commit(self) -> None:
        if vanished := self.vanished():
            raise Vanished(vanished)
        began = time.perf_counter()
        self.db.execute("COMMIT")
        self.committed = True
        self.commit_s.add(time.perf_counter() - began)

    def low(self) -> str:
        """Reason why submissions are refused on a full disk; empty otherwise. For any thread."""
        try:
            free, size = self.disk()
        except OSError:
            return ""
        if not is_full(free, size):
            return ""
        return (
            f"the disk of {self.path.parent} is full ({free / 2**20:.1f} of {size / 2**20:.0f} MiB are free), so submissions are "
            "refused until there is room; jobs run on, and cancel, hold and drain work. `themis doctor` says who uses it."
        )

    def keep_reserve(self) -> None:
        """Give the write-ahead log its reserve, if it is time to look and there is room; called between transactions.

        SQLite itself writes it, in a transaction that is rolled back: the log keeps its length, and the index of the log its own.
        """
        if not self.reserve or self.stuck or time.monotonic() < self._reserve_at:
            return
        self._reserve_at = time.monotonic() + RESERVE_S
        try:
            there = os.stat(f"{self.path}-wal").st_size
            wanted = min(self.reserve, (self.disk()[0] + there) // 4)
            if there >= 0.9 * wanted or wanted < LEAST_RESERVE or self.vanished() or self.low():
                return
            self.db.execute("PRAGMA cache_size = -64")
            self.db.execute("BEGIN")
            self.db.execute("CREATE TABLE reserve (room BLOB)")
            self.db.execute("INSERT INTO reserve VALUES (zeroblob(?))", (wanted,))
        except (OSError, sqlite3.OperationalError) as error:
            log.warning("the reserve of %s cannot be taken: %s", self.path, error)
        finally:
            self._roll_back()
            self.db.execute("PRAGMA cache_size = -2000")

    def write(self, sql: str, given: Sequence[object] = ()) -> None:
        """Carry out a statement that changes something."""
        if self._written is not None:
            self._written.append((sql, given))
        try:
            self.db.execute(sql, given)
        except sqlite3.OperationalError as error:
            if self._written is None:
                raise
            self._repeat(error)

    @property
    def changes(self) -> int:
        """Number of writes since the file was opened."""
        return self.db.total_changes

    def close(self) -> None:
        """Close the file."""
        self.db.close()

    def _roll_back(self) -> None:
        if self.db.in_transaction:
            self.db.execute("ROLLBACK")

    def _repeat(self, error: Exception, *, commit: bool = False) -> None:
        """Repeat the transaction that ``error`` ended until there is room; ``commit`` : with its commit.

        Raises
        ------
        NoRoom : the disk is full, and ``patient`` returns False. Other errors are raised again.
        """
        began, reported = time.monotonic(), -SAY_S
        while True:
            gone = self.vanished()
            if not gone and isinstance(error, sqlite3.OperationalError) and error.sqlite_errorcode not in NO_ROOM:
                raise error
            self._roll_back()
            self.stuck = gone or (
                f"{self.path} cannot be written ({error}): nothing is decided or accepted until there is room; jobs run on. "
                "A call that came just before may be kept then."
            )
            if not self.patient():
                raise NoRoom(self.stuck)
            if time.monotonic() >= reported + SAY_S:
                reported = time.monotonic()
                log.error("%s", self.stuck)
            self.pause(LOOK_S)
            try:
                self._again()
                if commit:
                    self._commit()
                break
            except (Vanished, sqlite3.OperationalError) as next_error:
                error = next_error
        self.stuck = ""
        log.warning("%s can be written again, after %.0f s; the service continues", self.path, time.monotonic() - began)

    def _again(self) -> None:
        """Write the transaction so far again, from its beginning."""
        self.db.execute("BEGIN")
        for sql, given in self._written or ():
            self.db.execute(sql, given)
