"""Digests over the journal, so that no change of it goes unnoticed: a chain over its records, a seal on every other row.

A record's digest covers the digest before it, its number, time, kind and line. Records that were dropped leave a ``Compacted``
in the place of the last of them; its digest is that record's own, which the next one follows, and a seal over those that were
kept before it. The other tables' rows have their seals in a table of their own, kept by triggers of this connection: a program
that changes a row otherwise leaves a seal that does not fit. They are checksums, not signatures: damage is found, not forgery.
"""

from __future__ import annotations

import sqlite3
import struct
from collections.abc import Iterable, Iterator, Sequence
from hashlib import blake2b

SIZE = 16
"""Bytes of a digest."""
BEGIN = bytes(SIZE)
"""Digest before the first record."""
CHAINED, SEALS = "records", "seals"
"""The tables whose rows have no seal; all others' have one."""

Row = tuple[int, float, str, bytes, bytes | None]
"""Number, time, kind, line and digest of a record."""


def link(before: bytes, number: int, time: float, kind: str, line: bytes | str) -> bytes:
    """The digest of a record that follows one with the digest ``before``."""
    text = line.encode() if isinstance(line, str) else line
    hashed = blake2b(before, digest_size=SIZE)
    hashed.update(struct.pack("<qd", number, time) + kind.encode() + b"\0" + text)
    return hashed.digest()


def linked(rows: Iterable[Row]) -> Iterator[tuple[Row, bool]]:
    """Each row, and whether it follows the one before it and is what was written."""
    before = BEGIN
    for row in rows:
        digest = row[4] if isinstance(row[4], bytes) else b""
        try:
            own = _digest(before, row, digest)
        except (struct.error, TypeError, ValueError, AttributeError):
            own = b""  # a flipped bit made a column something else
        yield row, bool(own) and own == digest
        before = digest[:SIZE]


def _digest(before: bytes, row: Row, stored: bytes) -> bytes:
    """The digest that a row should have."""
    number, time, kind, line, _ = row
    if kind == "Compacted" and len(stored) == 2 * SIZE:
        return compacted(before, stored[:SIZE], number, time, line)
    return link(before, number, time, kind, line)


def compacted(kept: bytes, last: bytes, number: int, time: float, line: bytes | str) -> bytes:
    """The digest of a ``Compacted``: ``kept`` of the last record kept before it, ``last`` of the last one dropped."""
    return last + link(last, number, time, "Compacted", link(kept, number, time, "Compacted", line))


def seal(*values: object) -> bytes:
    """Digest of a row's values."""
    hashed = blake2b(digest_size=SIZE)
    for value in values:
        text = value if isinstance(value, bytes) else repr(value).encode()
        hashed.update(struct.pack("<cq", type(value).__name__[:1].encode(), len(text)) + text)
    return hashed.digest()


def sealed(db: sqlite3.Connection) -> list[str]:
    """Names of the tables whose rows have seals."""
    names = [str(name) for (name,) in db.execute("SELECT name FROM sqlite_master WHERE type = 'table' ORDER BY name")]
    return [name for name in names if name not in (CHAINED, SEALS) and not name.startswith("sqlite_")]


def keep_seals(db: sqlite3.Connection) -> None:
    """Let the connection seal every row that it writes."""
    db.create_function("themis_seal", -1, seal, deterministic=True)
    for table in sealed(db):
        key, columns = columns_of(db, table)
        new = ", ".join(f"NEW.{column}" for column in columns)
        name, old_key = f"'{table}'", " || ' ' || ".join(f"OLD.{column}" for column in key)
        new_key = old_key.replace("OLD.", "NEW.")
        gone = f"DELETE FROM seals WHERE name = {name} AND key = {old_key};"
        write = f"DELETE FROM seals WHERE name = {name} AND key = {new_key}; "
        write += f"INSERT INTO seals VALUES ({name}, {new_key}, themis_seal({new}));"
        for event, do in (("INSERT", write), ("UPDATE", gone + write), ("DELETE", gone)):
            db.execute(f"CREATE TEMP TRIGGER seal_{table}_{event} AFTER {event} ON main.{table} BEGIN {do} END")


def rows_of(db: sqlite3.Connection, table: str) -> list[tuple[str, Sequence[object]]]:
    """(key, values) of every row of a sealed table."""
    key, columns = columns_of(db, table)
    at = [columns.index(column) for column in key]
    rows = db.execute(f"SELECT {', '.join(columns)} FROM {table}").fetchall()
    return [(" ".join(str(row[i]) for i in at), row) for row in rows]


def broken_seals(db: sqlite3.Connection) -> list[tuple[str, str, str]]:
    """(table, key, what is wrong: changed, missing or strange) of each row that is not what was written."""
    out = []
    for table in sealed(db):
        seals = dict(db.execute("SELECT key, digest FROM seals WHERE name = ?", (table,)).fetchall())
        for key, row in rows_of(db, table):
            known = seals.pop(key, None)
            if known != seal(*row):
                out.append((table, key, "strange" if known is None else "changed"))
        out += [(table, str(key), "missing") for key in seals]
    return out


def columns_of(db: sqlite3.Connection, table: str) -> tuple[list[str], list[str]]:
    """Names of the key's columns and of all."""
    info = db.execute(f"PRAGMA table_info({table})").fetchall()
    keys = sorted((row[5], row[1]) for row in info if row[5])
    return [name for _, name in keys], [row[1] for row in info]
