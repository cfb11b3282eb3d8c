"""The journal's records and their chain, the snapshots of the state between them, and values of the whole journal."""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

from themis.errors import InputError
from themis.model.answers import Proof
from themis.model.events import AgentBid, Allocated, Command, Compacted, Event, Header, Wake
from themis.model.log import decode, encode, is_record
from themis.model.units import Seconds
from themis.service.engine import chain, integrity
from themis.service.engine.integrity import arithmetic
from themis.service.engine.transactions import Transactions

Record = Header | Event | Command

KEPT = (
    "Header",
    "MachineJoined",
    "MachineResized",
    "SettingsChanged",
    "AppSubmitted",
    "AppFinished",
    "AccountingSet",
    "Quarantined",
)
"""Kinds of records that stay where others are dropped: settings, machines, apps and jobs, how apps ended, quarantines, prices."""


class Records(Transactions):
    """Ordered records of a journal; ``Journal`` has the other tables."""

    def __init__(self, path: Path, db: sqlite3.Connection) -> None:
        super().__init__(path, db)
        self.head = self._head = (0, chain.BEGIN)
        """Number and digest of the last record, as written in this transaction, and as on disk."""
        self.last_writes: Callable[[], None] = lambda: None
        """Writes the totals of a transaction; called before each commit."""

    # ---- meta and records -----------------------------------------------------------------------------------------

    def meta(self, name: str) -> str | None:
        """A value that belongs to the whole journal."""
        row = self.db.execute("SELECT value FROM meta WHERE name = ?", (name,)).fetchone()
        return str(row[0]) if row else None

    def set_meta(self, name: str, value: str) -> None:
        """Write it."""
        self.write("INSERT OR REPLACE INTO meta VALUES (?, ?)", (name, value))

    def append(self, time: Seconds, record: Record) -> bytes:
        """Append a record of the log, or a ``Wake``; machinery is skipped. Returns its line, empty if skipped."""
        if isinstance(record, Wake):
            self._append(time, "Wake", b"")
        elif is_record(record):
            line = encode(time, record)
            self._append(time, type(record).__name__, line)
            return line
        return b""

    def _append(self, time: Seconds, kind: str, line: bytes) -> None:
        number, before = self.head
        self.head = number + 1, chain.link(before, number + 1, time, kind, line)
        self.write("INSERT INTO records VALUES (?, ?, ?, ?, ?)", (number + 1, time, kind, line, self.head[1]))

    def _last_link(self) -> tuple[int, bytes]:
        row = self.db.execute("SELECT number, digest FROM records ORDER BY number DESC LIMIT 1").fetchone()
        return (int(row[0]), bytes(row[1] or b"")[: chain.SIZE]) if row else (0, chain.BEGIN)

    def _ending(self) -> None:
        self.last_writes()
        if self.head != self._head:
            self.set_meta("head", integrity.spell(*self.head))

    def _undone(self) -> None:
        self.head = self._head

    def _kept(self) -> None:
        if self.head != self._head:
            self._head = self.head
            integrity.leave_trace(self.path, *self.head)

    def verify(self) -> None:
        """Raise ``integrity.Damaged`` unless every byte that anything depends on is as it was written."""
        integrity.verify(self.db, self.path)

    def records(self, after: int = 0) -> Iterator[tuple[Seconds, Record]]:
        """All records after a number in order, ``Wake`` included; raises as ``numbered`` does."""
        return ((time, record) for _, time, record in self.numbered(after))

    def numbered(self, after: int = 0) -> Iterator[tuple[int, Seconds, Record]]:
        """(number, time, record) of every record after a number in order, ``Wake`` included.

        Raises
        ------
        InputError : a record that this version cannot read.
        """
        rows = self.db.execute("SELECT number, t, kind, line FROM records WHERE number > ? ORDER BY number", (after,))
        for number, time, kind, line in rows:
            try:
                record = Wake() if kind == "Wake" else decode(line)[1]
            except InputError as error:
                raise InputError(f"{self.path}, record {number}: {error}") from None
            yield number, time, record

    def lines_of(self, kinds: Sequence[str]) -> list[bytes]:
        """Lines of all records of some kinds, in order."""
        marks = ", ".join("?" * len(kinds))
        return [
            line
            for (line,) in self.db.execute(f"SELECT line FROM records WHERE kind IN ({marks}) ORDER BY number", kinds)
        ]

    def last(self) -> tuple[int, Seconds]:
        """Number and time of the last record; zeros if there is none."""
        row = self.db.execute("SELECT number, t FROM records ORDER BY number DESC LIMIT 1").fetchone()
        return (int(row[0]), float(row[1])) if row else (0, 0.0)

    def last_proof(self) -> Proof | None:
        """The proof of the last decision."""
        row = self.db.execute(
            "SELECT line FROM records WHERE kind = 'Allocated' ORDER BY number DESC LIMIT 1"
        ).fetchone()
        record = decode(row[0])[1] if row else None
        return record.solved.proof if isinstance(record, Allocated) else None

    def last_said(self, app: int) -> str:
        """The action of an app's own agent in the last decision, as in ``AgentBid``; empty if it has no agent."""
        rows = self.db.execute(
            "SELECT kind, line FROM records WHERE kind IN ('Allocated', 'AgentBid') ORDER BY number DESC LIMIT 600"
        )
        decisions = 0
        for kind, line in rows:
            decisions += kind == "Allocated"
            if decisions > 1:
                break
            record = decode(line)[1] if kind == "AgentBid" else None
            if isinstance(record, AgentBid) and record.app == app and record.said != "rho":
                return record.said
        return ""

    # ---- how exactly the records compare with a fold of them -------------------------------------------------------

    def exact_after(self) -> int:
        """Number of the last record that was written where floats may be rounded otherwise than here; 0 if none was.

        By another version, or with other libraries or on another kind of processor: see ``arithmetic``.
        """
        if self.meta("arithmetic") != arithmetic():
            return self.last()[0]
        return int(self.meta("exact_after") or 0)

    def compare_exactly(self) -> None:
        """From here on every record must equal a fold of those before, to the last bit."""
        if self.meta("arithmetic") != arithmetic():
            self.set_meta("exact_after", str(self.last()[0]))
            self.set_meta("arithmetic", arithmetic())

    # ---- snapshots of the whole state ------------------------------------------------------------------------------

    def add_snapshot(self, number: int, time: Seconds, state: bytes) -> None:
        """The state after a record; of older snapshots only the last is kept."""
        self.write("INSERT OR REPLACE INTO checkpoints VALUES (?, ?, ?)", (number, time, state))
        self.write(
            "DELETE FROM checkpoints WHERE number NOT IN (SELECT number FROM checkpoints ORDER BY number DESC LIMIT 2)"
        )

    def snapshot_number(self) -> int:
        """Number of the last record before the latest snapshot; 0 if there is none."""
        return int(self.db.execute("SELECT coalesce(max(number), 0) FROM checkpoints").fetchone()[0])

    def snapshot(self, upto: int | None = None) -> tuple[int, bytes] | None:
        """The last snapshot and its record's number; of those up to a record, where one is given."""
        row = self.db.execute(
            "SELECT number, state FROM checkpoints WHERE ?1 IS NULL OR number <= ?1 ORDER BY number DESC LIMIT 1",
            (upto,),
        ).fetchone()
        return (int(row[0]), bytes(row[1])) if row else None

    def compact(self, before: Seconds) -> int:
        """Drop records from before a time that the older snapshot covers; returns how many.

        ``KEPT`` stay. A ``Compacted`` stands where others were.
        """
        row = self.db.execute("SELECT number FROM checkpoints ORDER BY number DESC LIMIT 1 OFFSET 1").fetchone()
        gone = f"number <= ? AND t < ? AND kind NOT IN {KEPT}"
        given = (int(row[0]) if row else 0, before)
        count, last, time, already = self.db.execute(
            f"SELECT count(*), max(number), max(t), coalesce(max(kind = 'Compacted'), 0) FROM records WHERE {gone}",
            given,
        ).fetchone()
        if count <= already:
            return 0
        earlier = self.db.execute("SELECT number, line FROM records WHERE kind = 'Compacted'").fetchall()
        total = count - already + sum(json.loads(line)["records"] for _, line in earlier)
        ((end,),) = self.db.execute("SELECT digest FROM records WHERE number = ?", (last,)).fetchall()
        self.write(f"DELETE FROM records WHERE {gone}", given)
        end_kept = self._chain_again(max((number for number, _ in earlier), default=0), last)
        line = encode(time, Compacted(records=total))
        digest = chain.compacted(end_kept, bytes(end)[: chain.SIZE], last, time, line)
        self.write("INSERT INTO records VALUES (?, ?, 'Compacted', ?, ?)", (last, time, line, digest))
        return int(count - already)

    def _chain_again(self, begin: int, last: int) -> bytes:
        """Link what was kept of the records between two numbers to what is before; returns the last one's digest."""
        row = self.db.execute(
            "SELECT digest FROM records WHERE number < ? ORDER BY number DESC LIMIT 1", (begin,)
        ).fetchone()
        before = bytes(row[0]) if row else chain.BEGIN
        rows = self.db.execute(
            "SELECT number, t, kind, line FROM records WHERE number > ? AND number < ? ORDER BY number", (begin, last)
        )
        for number, time, kind, line in rows.fetchall():
            before = chain.link(before, number, time, kind, line)
            self.write("UPDATE records SET digest = ? WHERE number = ?", (before, number))
        return before
