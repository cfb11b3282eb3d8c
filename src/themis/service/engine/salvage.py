"""Recovery of a damaged journal: row by row, each checked by its own digest."""

from __future__ import annotations

import sqlite3
from collections.abc import Sequence
from contextlib import closing, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from themis.errors import InputError
from themis.service.engine import chain, integrity


@dataclass(slots=True)
class Salvage:
    """Readable content of a journal.

    Attributes
    ----------
    records : records, each with whether it is undamaged. ``tables`` : undamaged rows of the other tables, by column.
    bad : (table, key, what) of damaged rows. ``known`` : number of the last written record, by any source.
    """

    records: list[tuple[chain.Row, bool]] = field(default_factory=list)
    tables: dict[str, list[dict[str, Any]]] = field(default_factory=dict)
    bad: list[tuple[str, str, str]] = field(default_factory=list)
    known: int = 0


def apply_log(path: Path) -> None:
    """Write the pages of the write-ahead log into the file, those behind a damaged place too, which SQLite passes over.

    What they hold is checked row by row afterwards. Format: https://www.sqlite.org/fileformat2.html#walformat
    """
    log = Path(f"{path}-wal")
    data = log.read_bytes() if log.exists() else b""
    size = int.from_bytes(path.read_bytes()[16:18], "big")
    size = 65536 if size == 1 else size
    if size < 512 or len(data) < 32 + 24 + size:
        return
    frames = [data[at : at + 24 + size] for at in range(32, len(data) - 23 - size, 24 + size)]
    # A log is written again from its beginning; frames of before have other salts.
    salts = data[16:24] if any(frame[8:16] == data[16:24] for frame in frames) else frames[0][8:16]
    frames = [frame for frame in frames if frame[8:16] == salts]
    ends = [n for n, frame in enumerate(frames) if any(frame[4:8])]
    with open(path, "r+b") as file:
        for frame in frames[: ends[-1] + 1 if ends else 0]:
            page = int.from_bytes(frame[:4], "big")
            if 0 < page < 1 << 24:
                file.seek((page - 1) * size)
                file.write(frame[24:])
    log.unlink()
    Path(f"{path}-shm").unlink(missing_ok=True)


def salvage(path: Path, name: Path) -> Salvage:
    """Read what can be read of a journal; a copy of it, which is changed. ``name`` : of the journal, for people.

    Raises
    ------
    InputError : nothing of it can be read.
    """
    apply_log(path)
    out = Salvage()
    with closing(sqlite3.connect(path, isolation_level=None)) as db:
        try:
            # A schema of which a part is damaged, such as an index, does not keep the rest from being read.
            db.execute("PRAGMA writable_schema = ON")
            rows = _rows(db, "records", "number", "number, t, kind, line, digest")
            out.records = list(chain.linked(rows))  # type: ignore[arg-type]
            seals = {(str(a), str(b)): c for a, b, c in _rows(db, "seals", "name, key", "name, key, digest")}
            for table in chain.sealed(db):
                _salvage_table(db, table, seals, out)
        except (sqlite3.DatabaseError, TypeError, ValueError, AttributeError) as error:
            if not out.records:
                raise InputError(
                    f"nothing of {name} can be read ({error}); restore a backup with `themis restore`, or move the "
                    "data directory away to "
                    "begin with a new one."
                ) from None
    trace = integrity.read_trace(path)
    head = next(
        (integrity.read_spelled(str(row["value"])) for row in out.tables.get("meta", ()) if row["name"] == "head"), None
    )
    numbers = [row[0] for row, _ in out.records] + [known[0] for known in (trace, head) if known]
    out.known = max(numbers, default=0)
    return out


def _salvage_table(db: sqlite3.Connection, table: str, seals: dict[tuple[str, str], object], out: Salvage) -> None:
    keys, columns = chain.columns_of(db, table)
    good = out.tables.setdefault(table, [])
    expected = {key for name, key in seals if name == table}
    for row in _rows(db, table, ", ".join(keys), ", ".join(columns)):
        key = " ".join(str(row[columns.index(name)]) for name in keys)
        expected.discard(key)
        if seals.get((table, key)) == chain.seal(*row):
            good.append(dict(zip(columns, row)))
        else:
            out.bad.append((table, key, "changed"))
    out.bad += [(table, key, "missing") for key in sorted(expected)]


def _rows(db: sqlite3.Connection, table: str, order: str, columns: str) -> list[Sequence[object]]:
    """All rows that can be read, from both ends of a hole."""
    out: list[Sequence[object]] = []
    try:
        out.extend(db.execute(f"SELECT {columns} FROM {table} ORDER BY {order}"))
        return out
    except sqlite3.DatabaseError:
        pass
    back: list[Sequence[object]] = []
    backwards = ", ".join(f"{name} DESC" for name in order.split(", "))
    with suppress(sqlite3.DatabaseError):
        back.extend(db.execute(f"SELECT {columns} FROM {table} ORDER BY {backwards}"))
    seen = {row[:2] for row in out}
    return out + [row for row in reversed(back) if row[:2] not in seen]
