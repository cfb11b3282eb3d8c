"""The machines of a fleet: who joined, the digests of their tokens and of join tokens; SQLite, so that each change is whole or not.

A separate file from the journal: the gateway writes it while the arbiter has a transaction of the journal open, and a
machine is a record of the log only once it was there. A join token is used once. A machine's token is its own: it is replaced from
time to time, and serves until the next one was used. Of both kinds only digests are kept.
"""

from __future__ import annotations

import hashlib
import os
import secrets
import sqlite3
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from themis.errors import InputError
from themis.machines.agent.frames import Join

TABLES = """
CREATE TABLE IF NOT EXISTS tokens (hash TEXT PRIMARY KEY, rack TEXT NOT NULL, expires REAL NOT NULL, used REAL, used_by TEXT);
CREATE TABLE IF NOT EXISTS members (name TEXT PRIMARY KEY, gpus INTEGER NOT NULL, gpu_type TEXT NOT NULL, rack TEXT NOT NULL,
    devices TEXT NOT NULL, slot INTEGER NOT NULL, state TEXT NOT NULL, joined REAL NOT NULL, heard REAL, address TEXT NOT NULL,
    token TEXT NOT NULL, made REAL NOT NULL, next TEXT);
CREATE TABLE IF NOT EXISTS facts (name TEXT PRIMARY KEY, value TEXT NOT NULL);
"""
KEEP_S = 7 * 86400.0
"""Seconds for which a used or expired token is remembered, so that a late caller learns which of the two it is."""
LISTEN = "listen"
"""The fact that says where machines are served."""
TOKEN_BYTES = 32
"""Random bytes of a machine's token."""
SERVING, LEAVING, REMOVED = "serving", "leaving", "removed"


def members_file(home: Path) -> Path:
    """The file of a data directory."""
    return home / "fleet" / "fleet.db"


def authority_folder(home: Path) -> Path:
    """The certificate authority of a data directory."""
    return home / "authority"


class NotAllowed(InputError):
    """A machine may not join or connect, and why."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Member:
    """A machine that joined.

    Attributes
    ----------
    state : serving, leaving (it is to be removed, and its jobs end), removed. ``heard``, ``joined`` : seconds since 1970.
    made : when its token was made, in seconds since 1970. ``address`` : from where it connected last.
    """

    name: str
    gpus: int
    gpu_type: str
    rack: str
    devices: tuple[str, ...]
    slot: int
    state: str
    joined: float
    heard: float | None
    address: str
    made: float


class Members:
    """The file; each method is one transaction. ``clock`` : seconds since 1970."""

    def __init__(self, path: Path, clock: Callable[[], float] = time.time) -> None:
        self.path, self.clock = path, clock
        path.parent.mkdir(parents=True, exist_ok=True)
        path.parent.chmod(0o700)
        os.close(os.open(path, os.O_RDWR | os.O_CREAT, 0o600))
        self.db = sqlite3.connect(path, isolation_level=None, timeout=30.0, check_same_thread=False)
        self.db.execute("PRAGMA journal_mode = WAL")
        # A token that was used stays used when power is lost.
        self.db.execute("PRAGMA synchronous = FULL")
        for statement in TABLES.split(";"):
            self.db.execute(statement)

    def close(self) -> None:
        """Close the file."""
        self.db.close()

    @contextmanager
    def _whole(self) -> Iterator[sqlite3.Connection]:
        self.db.execute("BEGIN IMMEDIATE")
        try:
            yield self.db
        except BaseException:
            self.db.execute("ROLLBACK")
            raise
        self.db.execute("COMMIT")

    # ---- tokens ---------------------------------------------------------------------------------------------------

    def add_token(self, secret: str, ttl_s: float, rack: str = "") -> float:
        """Make a token valid; returns until when. Only a digest of its secret is kept."""
        now = self.clock()
        with self._whole() as db:
            db.execute("DELETE FROM tokens WHERE expires < ?", (now - KEEP_S,))
            db.execute("INSERT INTO tokens VALUES (?, ?, ?, NULL, NULL)", (_digest(secret), rack, now + ttl_s))
        return now + ttl_s

    def admit(self, join: Join, address: str) -> tuple[Member, str]:
        """Use up the join token and enter the machine; returns it and its own token: all or nothing of it.

        Raises
        ------
        NotAllowed : the token was used, has expired or is unknown; the name or a GPU is another machine's.
        """
        now, key, token = self.clock(), _digest(join.secret), secrets.token_hex(TOKEN_BYTES)
        with self._whole() as db:
            row = db.execute("SELECT rack, expires, used, used_by FROM tokens WHERE hash = ?", (key,)).fetchone()
            again = "`themis agent token` on the service makes another one"
            if row is None:
                raise NotAllowed(f"the service does not know this join token; {again}.")
            rack, until, used, used_by = row
            if used is not None:
                raise NotAllowed(f"this join token was used at {_at(used)} by machine {used_by}; {again}.")
            if now >= until:
                raise NotAllowed(f"this join token expired at {_at(until)}; {again}.")
            known = self._member(join.name)
            if known is not None and known.state != REMOVED:
                raise NotAllowed(
                    f"a machine named {join.name!r} has joined already; give another name with --name, or remove the other one "
                    f"first with `themis agent remove {join.name}`."
                )
            self._check_devices(join.name, join.devices)
            db.execute("UPDATE tokens SET used = ?, used_by = ? WHERE hash = ?", (now, join.name, key))
            db.execute(
                "INSERT OR REPLACE INTO members VALUES (?, ?, ?, ?, ?, ?, ?, ?, NULL, ?, ?, ?, NULL)",
                (
                    join.name,
                    join.gpus,
                    join.gpu_type,
                    rack or join.rack or "rack0",
                    "\n".join(join.devices),
                    join.slot,
                    SERVING,
                    now,
                    address,
                    _digest(token),
                    now,
                ),
            )
            member = self._member(join.name)
        assert member is not None
        return member, token

    def _check_devices(self, name: str, devices: tuple[str, ...]) -> None:
        for other in self.all():
            if other.name != name and other.state != REMOVED and (both := set(other.devices) & set(devices)):
                raise NotAllowed(f"GPU {min(both)} is the machine {other.name}'s; a GPU joins with one machine only.")

    # ---- tokens of machines ------------------------------------------------------------------------------------------

    def next_token(self, name: str) -> str:
        """Make the next token of a machine; the present one ends when this one is used."""
        token = secrets.token_hex(TOKEN_BYTES)
        with self._whole() as db:
            db.execute("UPDATE members SET next = ? WHERE name = ? AND state <> ?", (_digest(token), name, REMOVED))
        return token

    def entering(self, name: str, token: str, address: str) -> Member:
        """The machine that connects with this token.

        Raises
        ------
        NotAllowed : it was removed, never joined, or the token is not its own, or was replaced.
        """
        now, key = self.clock(), _digest(token)
        with self._whole() as db:
            row = db.execute("SELECT state, token, next FROM members WHERE name = ?", (name,)).fetchone()
            if row is None:
                raise NotAllowed(f"machine {name} has not joined this service; join it with a token.")
            state, present, following = row
            if state == REMOVED:
                raise NotAllowed(
                    f"machine {name} was removed from the service; to bring it back, join it with a new token."
                )
            if key == following:
                db.execute("UPDATE members SET token = next, next = NULL, made = ? WHERE name = ?", (now, name))
            elif key != present:
                raise NotAllowed(
                    f"the token of machine {name} is not the one that it was given last: its folder is an old copy, or another "
                    f"machine took its place. On the service `themis agent remove {name}`, then join it again with a new token."
                )
            db.execute("UPDATE members SET heard = ?, address = ? WHERE name = ?", (now, address, name))
            member = self._member(name)
        assert member is not None
        return member

    # ---- machines --------------------------------------------------------------------------------------------------

    def heard(self, names: list[str]) -> None:
        """These are connected."""
        now = self.clock()
        with self._whole() as db:
            db.executemany("UPDATE members SET heard = ? WHERE name = ?", [(now, name) for name in names])

    def leave(self, name: str) -> Member:
        """A machine is to be removed.

        Raises
        ------
        InputError : no machine has this name.
        """
        with self._whole() as db:
            member = self._member(name)
            if member is None or member.state == REMOVED:
                names = ", ".join(other.name for other in self.all() if other.state != REMOVED) or "none"
                raise InputError(f"no machine named {name!r} has joined; machines: {names}.")
            db.execute("UPDATE members SET state = ? WHERE name = ?", (LEAVING, name))
        return member

    def remove(self, name: str) -> None:
        """A machine that is leaving has no job any more: it is removed, and its tokens are no longer valid."""
        with self._whole() as db:
            db.execute(
                "UPDATE members SET state = ?, token = '', next = NULL WHERE name = ? AND state = ?",
                (REMOVED, name, LEAVING),
            )

    def all(self) -> list[Member]:
        """Every machine that ever joined, by name."""
        return self._select("")

    def _member(self, name: str) -> Member | None:
        return next(iter(self._select("WHERE name = ?", name)), None)

    def _select(self, where: str, *values: str) -> list[Member]:
        fields = ["name", "gpus", "gpu_type", "rack", "devices", "slot", "state", "joined", "heard", "address", "made"]
        rows = self.db.execute(f"SELECT {', '.join(fields)} FROM members {where} ORDER BY name", values)
        return [
            Member(**{**dict(zip(fields, row, strict=True)), "devices": tuple(row[4].split("\n") if row[4] else ())})
            for row in rows
        ]

    # ---- facts -----------------------------------------------------------------------------------------------------

    def fact(self, name: str) -> str:
        """A fact that the service noted, as ``listen``; empty if it did not."""
        row = self.db.execute("SELECT value FROM facts WHERE name = ?", (name,)).fetchone()
        return str(row[0]) if row else ""

    def note(self, name: str, value: str) -> None:
        """Note a fact."""
        with self._whole() as db:
            db.execute("INSERT OR REPLACE INTO facts VALUES (?, ?)", (name, value))


def _digest(secret: str) -> str:
    return hashlib.sha256(secret.encode()).hexdigest()


def _at(seconds: float) -> str:
    return time.strftime("%Y-%m-%d %H:%M:%S UTC", time.gmtime(seconds))
