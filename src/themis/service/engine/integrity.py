"""True if a journal is whole: its file, its chain of records, its other rows, and that nothing is missing at its end.

The home keeps a trace of the last record outside the journal, in ``journal.head``: SQLite drops what follows a damaged place in
its write-ahead log without a word, and what was cut off at the end leaves a chain that is whole.
"""

from __future__ import annotations

import logging
import os
import platform
import sqlite3
from contextlib import suppress
from functools import cache
from hashlib import blake2b
from pathlib import Path

import numpy as np

from themis.errors import InputError
from themis.service.engine import chain
from themis.version import __version__

log = logging.getLogger("themis.service")


class Damaged(InputError):
    """A journal that is not what was written. ``good`` : number of the last record before the first damage."""

    def __init__(self, path: Path, what: str, good: int) -> None:
        super().__init__(
            f"{path} is damaged: {what}. The last good record is {good}. `themis up --repair` lists what is lost and continues "
            "without it; or restore a backup with `themis restore`."
        )
        self.what, self.good = what, good


def verify(db: sqlite3.Connection, path: Path, *, ends: bool = True) -> None:
    """Read all of a journal. ``ends`` : also check its end; False while a service writes it.

    Raises
    ------
    Damaged : with the first thing that is not as it was written.
    """
    good = 0
    try:
        for (number, time, kind, *_), whole in chain.linked(
            db.execute("SELECT number, t, kind, line, digest FROM records ORDER BY number")
        ):
            if not whole:
                raise Damaged(
                    path, f"record {number} ({kind!s:.20}, at {time!s:.12} s) or the one before it was changed", good
                )
            good = number
        if ends:
            _check_end(db, path, good)
        if broken := chain.broken_seals(db):
            table, key, what = broken[0]
            more = f", and {len(broken) - 1} other rows are not as they were" if len(broken) > 1 else ""
            raise Damaged(path, f"row {key:.40} of the table {table} is {what}{more}", good)
        ((found,), *_) = db.execute("PRAGMA integrity_check(1)").fetchall()
        if found != "ok":
            raise Damaged(path, f"SQLite says {found}", good)
    except (sqlite3.DatabaseError, TypeError, ValueError, AttributeError) as error:
        raise Damaged(path, f"it cannot be read ({error})", good) from None


def _check_end(db: sqlite3.Connection, path: Path, last: int) -> None:
    """Raise Damaged where the journal ends before its own word, or the trace's, of its last record."""
    row = db.execute("SELECT value FROM meta WHERE name = 'head'").fetchone()
    for known in (read_spelled(str(row[0])) if row else None, read_trace(path)):
        if known is None:
            continue
        number, digest = known
        found = db.execute("SELECT digest FROM records WHERE number = ?", (number,)).fetchone()
        if number > last:
            raise Damaged(path, f"records {last + 1} to {number} are missing at its end", last)
        if found is None or bytes(found[0])[: chain.SIZE] != digest:
            raise Damaged(
                path,
                f"record {number} is not the one that this service wrote; the file is another service's, or an older copy",
                last,
            )


@cache
def arithmetic() -> str:
    """Versions, libraries and processor type, on which the last digit of a float may depend."""
    simd = np.show_config(mode="dicts").get("SIMD Extensions", {}).get("found", [])
    return f"Themis {__version__}, numpy {np.__version__}, {platform.machine()} {' '.join(simd)}, {'-'.join(platform.libc_ver())}"


# ---- the trace ------------------------------------------------------------------------------------------------------


def spell(number: int, digest: bytes) -> str:
    """A record's number and digest as text, with a checksum of its own."""
    text = f"{number} {digest.hex()}"
    return f"{text} {blake2b(text.encode(), digest_size=4).hexdigest()}"


def read_spelled(text: str) -> tuple[int, bytes] | None:
    """Number and digest, or None where the text is damaged."""
    words = text.split()
    if len(words) != 3 or not words[0].isdecimal():
        return None
    with suppress(ValueError):
        digest = bytes.fromhex(words[1])
        return (int(words[0]), digest) if spell(int(words[0]), digest).split() == words else None
    return None


def trace_path(journal: Path) -> Path:
    """Path of the number and digest of the last record of a data directory's journal."""
    return journal.with_name("journal.head")


def leave_trace(journal: Path, number: int, digest: bytes) -> None:
    """Write down the last record that is on disk. Not synced: after a loss of power the trace may be behind, never ahead."""
    try:
        file = os.open(trace_path(journal), os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            os.pwrite(file, f"{spell(number, digest):<80}\n".encode(), 0)
        finally:
            os.close(file)
    except OSError as error:
        log.warning("%s cannot be written: %s", trace_path(journal), error.strerror)


def read_trace(journal: Path) -> tuple[int, bytes] | None:
    """Number and digest of the last record that this service wrote; None if the trace is missing or damaged."""
    try:
        text = trace_path(journal).read_text(errors="replace")
    except FileNotFoundError:
        return None
    found = read_spelled(text)
    if found is None:
        log.warning("%s is damaged; the journal is checked without it", trace_path(journal))
    return found


def check_there(journal: Path) -> bool:
    """True if a journal is to be begun.

    Raises
    ------
    InputError : the journal is missing or empty, but the data directory had one.
    """
    fresh = not journal.exists() or journal.stat().st_size == 0
    if fresh and (trace := trace_of_a_journal(journal)):
        raise InputError(
            f"{journal} is {'empty' if journal.exists() else 'missing'}, but {trace} is there, so a service used "
            "this data directory. "
            "Restore a backup with `themis restore`, or move the data directory away to begin with a new one."
        )
    return fresh


def trace_of_a_journal(journal: Path) -> str:
    """Name of a file in a data directory that only a service with a journal leaves there; empty without one."""
    home = journal.parent
    write_ahead = Path(f"{journal}-wal")
    if trace_path(journal).exists():
        return trace_path(journal).name
    if write_ahead.exists() and write_ahead.stat().st_size:
        return write_ahead.name
    for pattern in ("run/checkpoints/app*", "run/nodes/*/logs/job*"):
        for found in home.glob(pattern):
            return str(found.relative_to(home))
    return ""
