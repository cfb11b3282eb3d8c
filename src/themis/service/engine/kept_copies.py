"""The journal of a data directory for readers outside the arbiter's thread: a copy of the file."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING

from themis.errors import InputError

if TYPE_CHECKING:
    from themis.service.engine.journal import Journal


@contextmanager
def journal_of(home: Path) -> Iterator[Journal]:
    """The journal of a data directory, whether or not its arbiter runs. Reads a copy: a reader must not migrate the journal.

    Raises
    ------
    InputError : the journal is missing, cannot be read, or was written by a later version.
    """
    from themis.service.engine.journal import Journal

    path = home / "journal.db"
    if not path.exists():
        raise InputError(f"{home} is not a data directory: it has no journal.db. Name a log file or a data directory.")
    if not path.stat().st_size:
        raise InputError(f"{path} is empty; restore a backup with `themis restore`.")
    with TemporaryDirectory(prefix="themis-") as folder:
        copy = Path(folder) / path.name
        try:
            with (
                closing(sqlite3.connect(f"{path.absolute().as_uri()}?mode=ro", uri=True)) as db,
                closing(sqlite3.connect(copy)) as there,
            ):
                db.backup(there)  # which copies damaged pages as they are
                if (fault := there.execute("PRAGMA quick_check(1)").fetchone()[0]) != "ok":
                    raise sqlite3.DatabaseError(fault)
            with closing(Journal(copy)) as journal:
                yield journal
        except sqlite3.DatabaseError as error:
            raise InputError(
                f"cannot read {path} ({error}). Run `themis doctor --data-dir {home}` to check it."
            ) from None
