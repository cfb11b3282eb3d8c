"""``SettingsHistory``, ``Journal`` and ``BackUp``: what administrators see of the data directory, and a copy of it."""

from __future__ import annotations

import json
import shutil
import sqlite3
import time
from contextlib import closing
from pathlib import Path
from typing import Any

from themis.errors import InputError, counted
from themis.model.units import Seconds
from themis.schema import messages as schema
from themis.service.api.setting_calls import Door
from themis.service.engine.setting_changes import words

MOST_CHANGES = 1000
MOST_BACKUPS = 30
"""Maximum number of backups in the data directory; operators move older ones away."""
FOLDER = "backups"


def changes(journal: Path, epoch: Seconds, limit: int) -> schema.SettingsHistoryReply:
    """Changes of settings, the newest first; for any thread.

    Raises
    ------
    InputError : the limit is below 0.
    """
    if limit < 0:
        raise InputError(f"the limit is {limit}, expected 0 ({MOST_CHANGES}) or more.")
    with _reading(journal) as db:
        rows = db.execute(
            "SELECT number, t, line FROM records WHERE kind = 'SettingsChanged' ORDER BY number DESC LIMIT ?",
            (min(limit or MOST_CHANGES, MOST_CHANGES),),
        ).fetchall()
    out = []
    for number, at, line in rows:
        found: dict[str, Any] = json.loads(line)
        values = {name: words(name, value) for name, value in found["values"].items()}
        out.append(schema.SettingsChange(record=number, time=epoch + at, user=found["user"], values=values))
    return schema.SettingsHistoryReply(changes=out)


def journal(path: Path, epoch: Seconds) -> schema.JournalReply:
    """The journal's size and the backups; for any thread."""
    with _reading(path) as db:
        records, last = db.execute("SELECT count(*), max(t) FROM records").fetchone()
    return schema.JournalReply(
        records=records,
        began=epoch,
        last=epoch + (last or 0.0),
        bytes=sum(file.stat().st_size for file in path.parent.glob(f"{path.name}*")),
        free_bytes=shutil.disk_usage(path.parent).free,
        path=str(path.parent),
        backups=[_backup(folder) for folder in reversed(_folders(path.parent))],
    )


def back_up(home: Path, door: Door | None) -> schema.Backup:
    """Copy a data directory into its folder of backups.

    Raises
    ------
    InputError : there are too many already, or the copy fails.
    """
    if door is None or door.back_up is None:
        raise InputError("this service was not started by `themis up`, and makes no backups.")
    there = _folders(home)
    if len(there) >= MOST_BACKUPS:
        raise InputError(
            f"{home / FOLDER} has {counted(len(there), 'backup')} already; move older ones away, or use `themis backup FOLDER`."
        )
    target = home / FOLDER / time.strftime("%Y-%m-%dT%H-%M-%SZ", time.gmtime())
    door.back_up(home, target)
    return _backup(target)


def _folders(home: Path) -> list[Path]:
    """Backups in a data directory, the oldest first."""
    return sorted(
        (path.parent for path in (home / FOLDER).glob("[!.]*/journal.db")), key=lambda path: path.stat().st_mtime
    )


def _backup(folder: Path) -> schema.Backup:
    size = sum(file.stat().st_size for file in folder.rglob("*") if file.is_file())
    return schema.Backup(name=folder.name, made=folder.stat().st_mtime, bytes=size)


def _reading(path: Path) -> closing[sqlite3.Connection]:
    return closing(sqlite3.connect(f"{path.absolute().as_uri()}?mode=ro", uri=True))
