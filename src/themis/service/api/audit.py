"""Audit log of sign-ins and changes by user and address, in ``audit.db`` of the data directory. The effects are in the
journal.

No user can displace the entries of others: changes are kept by time (``audit_keep``), up to a maximum number for each
user who is not an administrator. Refused calls, which anyone can make, are counted in one row a minute for each caller,
action and reason, also up to a maximum number for each caller.
"""

from __future__ import annotations

import logging
import sqlite3
import threading
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from themis.service.api.access import Caller

KEEP_S = 90 * 86400.0
"""Seconds that entries are kept."""
MOST_OF_USER, MOST_REFUSED = 20_000, 2_000
"""Changes of a user who is no administrator, and rows of refused calls of any caller; all who did not sign in are one caller."""
MINUTE_S = 60.0
EVERY, EVERY_S = 50, 3600.0
"""Entries between two looks at one caller's number, and seconds between two looks at what is too old."""
MOST_WAITING = 10_000
"""Entries kept in memory while the file cannot be written; refused calls take half of them at most."""
MOST_TEXT = 300
"""Characters of a text."""
MOST_ENTRIES = 1000
_TABLES = """
CREATE TABLE IF NOT EXISTS entries (
    number INTEGER PRIMARY KEY, time REAL NOT NULL, user TEXT NOT NULL, method TEXT NOT NULL, address TEXT NOT NULL,
    action TEXT NOT NULL, target TEXT NOT NULL, outcome TEXT NOT NULL, message TEXT NOT NULL, count INTEGER NOT NULL,
    admin INTEGER NOT NULL
);
CREATE INDEX IF NOT EXISTS entries_by_user ON entries (user, outcome, time);
CREATE INDEX IF NOT EXISTS entries_by_time ON entries (time);
"""
_COLUMNS = "time, user, method, address, action, target, outcome, message, count"

log = logging.getLogger("themis.service")


@dataclass(frozen=True, slots=True, kw_only=True)
class Entry:
    """A sign-in or a change, or refused calls of one minute that differ only in their targets.

    Attributes
    ----------
    time : seconds since 1970, of the last of them. ``user`` : the caller; empty without a sign-in.
    method : ``token`` or ``oidc``. ``address`` : of the caller; empty for the service itself.
    action : a method of the API, or ``SignIn``. ``target`` : what it was done to, the last time.
    outcome : ``ok`` or ``refused``; then ``message`` says why. ``count`` : how many calls.
    """

    time: float
    user: str
    method: str
    address: str
    action: str
    target: str
    outcome: str
    message: str
    count: int = 1


class Audit:
    """The entries of a data directory; for any thread. ``keep_s`` : says how many seconds they are kept."""

    def __init__(
        self, home: Path, keep_s: Callable[[], float] = lambda: KEEP_S, clock: Callable[[], float] = time.time
    ) -> None:
        self.path, self.keep_s, self.clock = home / "audit.db", keep_s, clock
        self._lock = threading.Lock()
        self._open: sqlite3.Connection | None = None
        self._waiting: deque[tuple[float, Caller, str, str, str]] = deque(maxlen=MOST_WAITING)
        """Entries that could not be written yet, the oldest first."""
        self._added: dict[str, int] = {}
        """Entries of each caller since its number was looked at."""
        self._swept_at = 0.0

    def add(self, caller: Caller, action: str, target: str = "", refused: str = "") -> None:
        """Write an entry, after those that wait. A full disk does not stop the call: the entry waits in memory."""
        with self._lock:
            waited = bool(self._waiting)
            if refused and len(self._waiting) > MOST_WAITING // 2:
                return
            self._waiting.append((self.clock(), caller, action, target[:MOST_TEXT], refused[:MOST_TEXT]))
            try:
                while self._waiting:
                    try:
                        self._write(*self._waiting[0])
                    except ValueError:  # text that no database takes
                        log.exception("an entry of the audit log cannot be written")
                    self._waiting.popleft()
            except (sqlite3.Error, OSError) as error:
                if not waited:
                    log.warning(
                        "cannot write %s: %s; the newest %d sign-ins and changes are kept in memory until there is room.",
                        self.path,
                        error,
                        MOST_WAITING,
                    )

    def _write(self, now: float, caller: Caller, action: str, target: str, refused: str) -> None:
        key = (caller.user, caller.method, caller.address, action, refused)
        with self._db() as db:
            if not (refused and self._counted(db, now, target, key)):
                db.execute(
                    f"INSERT INTO entries ({_COLUMNS}, admin) VALUES (?, ?, ?, ?, ?, ?, ?, ?, 1, ?)",
                    (now, *key[:4], target, "refused" if refused else "ok", refused, caller.admin),
                )
            self._sweep(db, caller.user, now)

    def _db(self) -> sqlite3.Connection:
        if self._open is None:
            self.path.touch(mode=0o600)
            db = sqlite3.connect(self.path, check_same_thread=False)
            try:
                db.execute("PRAGMA journal_mode = WAL")
                db.execute("PRAGMA synchronous = NORMAL")
                db.executescript(_TABLES)
            except BaseException:
                db.close()
                raise
            self._open = db
        return self._open

    def _counted(self, db: sqlite3.Connection, now: float, target: str, key: tuple[str, ...]) -> bool:
        """Count a refused call with others of its minute; returns whether there was one."""
        found = db.execute(
            "UPDATE entries SET count = count + 1, time = ?, target = ? WHERE number = (SELECT number FROM entries WHERE user = ? "
            "AND outcome = 'refused' AND time >= ? AND method = ? AND address = ? AND action = ? AND message = ? "
            "ORDER BY time DESC LIMIT 1)",
            (now, target, key[0], now // MINUTE_S * MINUTE_S, *key[1:]),
        )
        return found.rowcount > 0

    def _sweep(self, db: sqlite3.Connection, user: str, now: float) -> None:
        """Drop entries that are too old, and excess entries of this caller."""
        if now >= self._swept_at + EVERY_S:
            self._swept_at = now
            db.execute("DELETE FROM entries WHERE time < ?", (now - self.keep_s(),))
        self._added[user] = self._added.get(user, 0) + 1
        if self._added[user] < EVERY:
            return
        del self._added[user]
        for outcome, most in (("ok", MOST_OF_USER), ("refused", MOST_REFUSED)):
            db.execute(
                "DELETE FROM entries WHERE number IN (SELECT number FROM entries WHERE user = ? AND outcome = ? "
                "AND NOT (admin AND outcome = 'ok') ORDER BY time DESC LIMIT -1 OFFSET ?)",
                (user, outcome, most),
            )

    def read(self, user: str = "", limit: int = 0) -> list[Entry]:
        """Entries, the newest first. ``user`` : of one user; empty: of all. ``limit`` : at most; 0: the maximum."""
        most = min(limit or MOST_ENTRIES, MOST_ENTRIES)
        with self._lock:
            rows = self._db().execute(
                f"SELECT {_COLUMNS} FROM entries WHERE ?1 = '' OR user = ?1 ORDER BY time DESC, number DESC LIMIT ?2",
                (user, most),
            )
            names = _COLUMNS.split(", ")
            return [Entry(**dict(zip(names, row, strict=True))) for row in rows.fetchall()]

    def close(self) -> None:
        """Close the file; the next entry opens it again."""
        with self._lock:
            if self._open is not None:
                self._open.close()
                self._open = None
