"""The simulated disk of the journal: what SQLite wrote is real; when a write crashes or fails, and what a crash leaves, is not.

SQLite itself runs on real files in memory. A crash takes a copy of the files as they are, so the process that "died" can be
discarded; where the crash hits a commit, the copy of the write-ahead log is cut at a random byte of what the commit appended.
"""

from __future__ import annotations

import os
import shutil
import sqlite3
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

FILES = ("journal.db", "journal.db-wal", "journal.head")
MOMENTS = (
    "before a write",
    "after a write",
    "before a commit",
    "within a commit",
    "after a commit",
    "before a command",
)
"""Of a crash: in the journal, or as a command goes to the executor."""

RESERVE = 200
"""Pages that the journal has before it needs them."""


class Crash(BaseException):
    """The service's process ends here and now."""


class Disk:
    """Where one data directory's journal lives, over all lives of the service."""

    def __init__(self, root: Path, rng: np.random.Generator) -> None:
        self.root, self.rng, self.life = root, rng, 0
        self.db: Connection | None = None
        self.crash_at: tuple[str, int] | None = None
        """At which moment, after so many more of its kind, the process ends."""
        self.failing: str = ""
        """What SQLite answers to each write; empty while all is well."""
        self.low = False
        """The disk is full, whatever the journal may still write."""
        self.power = False
        """The crash is one of the whole machine: what was not synced is lost."""
        self.loses = ""
        """What the disk loses in a crash of what was synced: the end of the journal's log, or all of the journal."""
        self.whole: Path | None = None
        """A copy of what the disk lost, for the operator to put back."""
        self.on_crash: Callable[[], None] = lambda: None
        self._open_folder()

    @property
    def path(self) -> Path:
        """The journal's."""
        return self.folder / "journal.db"

    def connect(self, path: Path, **more: Any) -> Any:
        """As ``sqlite3.connect``."""
        self.db = Connection(self, sqlite3.connect(path, **more))
        return self.db

    def crash(self, *, torn_from: int | None = None) -> None:
        """The files as they are now are what the next life finds; ``torn_from`` : bytes of the log that are there for sure."""
        old, db = self.folder, self.db
        self.life += 1
        self._open_folder()
        for name in FILES:
            if (old / name).exists():
                shutil.copyfile(old / name, self.folder / name)
        self._tear(torn_from)
        self._lose()
        if db is not None:
            db.dead = True
            db.inner.close()
        shutil.rmtree(old)
        self.db, self.crash_at, self.failing, self.power, self.low = None, None, "", False, False

    def _tear(self, torn_from: int | None) -> None:
        log = self.folder / "journal.db-wal"
        if not log.exists():
            return
        size = log.stat().st_size
        if self.power and self.db is not None and self.db.synchronous < 2:
            torn_from = 0  # nothing of the log was ever synced for sure
        if torn_from is not None and torn_from < size:
            os.truncate(log, int(self.rng.integers(torn_from, size + 1)))

    def _lose(self) -> None:
        log = self.folder / "journal.db-wal"
        if not self.loses or not log.exists() or log.stat().st_size < 10_000:
            self.loses = ""
            return
        self.whole = self.root / f"whole-{self.life}"
        shutil.copytree(self.folder, self.whole)
        if self.loses == "end":
            os.truncate(log, int(self.rng.integers(log.stat().st_size // 2)))
        else:
            log.unlink()
            (self.folder / "journal.db").unlink()
        self.loses = ""

    def put_back(self) -> None:
        """The operator restores what the disk lost."""
        assert self.whole is not None
        shutil.rmtree(self.folder)
        self.whole.rename(self.folder)
        self.whole = None

    def space(self) -> tuple[int, int]:
        """Bytes that are free, and all bytes, as the journal asks for them."""
        return 0 if self.low else 1 << 30, 1 << 30

    def full(self, pages: int, *, reserve: bool) -> None:
        """The journal may grow by so many pages only, and by its ``reserve``."""
        self.low, pages = True, pages + RESERVE * reserve
        if self.db is not None and not self.db.dead and not self.db.inner.in_transaction:
            there = int(self.db.inner.execute("PRAGMA page_count").fetchone()[0])
            self.db.inner.execute(f"PRAGMA max_page_count = {there + pages}")

    def room(self) -> None:
        """There is room again."""
        self.low = False
        if self.db is not None and not self.db.dead:
            self.db.inner.execute(f"PRAGMA max_page_count = {1 << 30}")

    def log_size(self) -> int:
        """Bytes of the write-ahead log."""
        log = self.folder / "journal.db-wal"
        return log.stat().st_size if log.exists() else 0

    def reach(self, moment: str) -> bool:
        """Whether the process ends at this moment."""
        if self.crash_at is None or self.crash_at[0] != moment:
            return False
        self.crash_at = (moment, self.crash_at[1] - 1)
        return self.crash_at[1] < 0

    def _open_folder(self) -> None:
        self.folder = self.root / f"life-{self.life}"
        self.folder.mkdir(parents=True)


class Connection:
    """A real connection to SQLite that crashes and fails where the plan wants it."""

    def __init__(self, disk: Disk, inner: sqlite3.Connection) -> None:
        self.disk, self.inner, self.dead, self.synchronous = disk, inner, False, 2

    def execute(self, sql: str, given: Any = ()) -> sqlite3.Cursor:
        """As the real one's."""
        if self.dead:
            raise Crash
        kind = sql[:6]
        if kind == "COMMIT":
            return self._commit()
        if kind not in ("INSERT", "UPDATE", "DELETE"):
            if sql.startswith("PRAGMA synchronous ="):
                self.synchronous = {"OFF": 0, "NORMAL": 1}.get(sql.split()[-1], 2)
            return self.inner.execute(sql, given)
        self._fail()
        if self.disk.reach("before a write"):
            self._crash()
        done = self.inner.execute(sql, given)
        if self.disk.reach("after a write"):
            self._crash()
        return done

    def _commit(self) -> sqlite3.Cursor:
        if not self.inner.total_changes:
            return self.inner.execute("COMMIT")
        self._fail()
        if self.disk.reach("before a commit"):
            self._crash()
        before = self.disk.log_size()
        done = self.inner.execute("COMMIT")
        if self.disk.log_size() > before and self.disk.reach("within a commit"):
            self._crash(before)
        if self.disk.reach("after a commit"):
            self._crash()
        return done

    def _fail(self) -> None:
        if self.disk.failing:
            error = sqlite3.OperationalError(self.disk.failing)
            error.sqlite_errorcode = sqlite3.SQLITE_READONLY  # type: ignore[misc]
            raise error

    def _crash(self, torn_from: int | None = None) -> None:
        self.disk.crash(torn_from=torn_from)
        raise Crash

    @property
    def in_transaction(self) -> bool:
        return not self.dead and self.inner.in_transaction

    @property
    def total_changes(self) -> int:
        return self.inner.total_changes

    def close(self) -> None:
        """Let go of the files."""
        if not self.dead:
            self.dead = True
            self.inner.close()

    def __getattr__(self, name: str) -> Any:
        if self.dead:
            raise Crash
        return getattr(self.inner, name)
