"""Copies of a data directory that a service can continue from, made while it runs.

    journal.db, journal.head          SQLite's online backup, checked; the queue, and all that was decided
    token, users.json, sign-ins.json  who may call
    arbiter.id                        which service machines belong to
    config.yaml, traces/profiles/            settings
    trust/authority/                        what clients and nodes verify the service against
    fleet/fleet.db                    machines that joined and digests of their tokens; without join tokens, which are valid once
    run/checkpoints/                  where asked for: checkpoints of jobs that named no folder of their own
    machines/bundles/                          where asked for: files that jobs were sent with
    copies/                           where asked for: checkpoints and outputs that the service keeps

Left out: logs of ranks, the processes that run, locks, and where the service listens.
"""

from __future__ import annotations

import os
import shutil
import sqlite3
import subprocess
import sys
from contextlib import closing, suppress
from dataclasses import dataclass
from pathlib import Path

from themis.errors import InputError
from themis.service.engine import integrity
from themis.service.engine.journal import Journal
from themis.service.operations.lock import only_one

FILES = ("token", "users.json", "sign-ins.json", "arbiter.id", "config.yaml")
FOLDERS = ("profiles", "authority")
MEMBERS = Path("fleet", "fleet.db")
COPIES = Path("copies")
LARGE = (Path("run", "checkpoints"), Path("bundles"))
LONGEST_S = 600.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Copied:
    """Content of a backup or of a restored data directory: number of journal records, and other files."""

    records: int
    files: tuple[str, ...]


def back_up(home: Path, target: Path, *, checkpoints: bool = False) -> Copied:
    """Copy a data directory to a folder that does not exist yet.

    Raises
    ------
    InputError : the data directory has no journal, the target is there already, or the journal is damaged.
    """
    source = home / "journal.db"
    if not source.exists() or not source.stat().st_size:
        raise InputError(
            f"{home} has no journal.db, so there is nothing to back up; name a service's data directory with --data-dir."
        )
    if os.path.lexists(target):
        raise InputError(f"{target} exists already; name a new folder, so that no older backup is overwritten.")
    draft = target.with_name(f".{target.name}.part")
    shutil.rmtree(draft, ignore_errors=True)
    draft.mkdir(mode=0o700, parents=True)
    try:
        with (
            closing(sqlite3.connect(f"{source.as_uri()}?mode=ro", uri=True)) as db,
            closing(_private(draft / "journal.db")) as copy,
        ):
            db.backup(copy)
        records = _check(draft / "journal.db")
        files = _copy(home, draft, checkpoints=checkpoints)
        _sync(draft)
        draft.rename(target)
    except sqlite3.DatabaseError as error:
        raise InputError(f"{source} cannot be copied ({error}); `themis doctor` says what is wrong with it.") from None
    finally:
        shutil.rmtree(draft, ignore_errors=True)
    return Copied(records=records, files=files)


def back_up_apart(home: Path, target: Path) -> None:
    """Same as ``back_up``, in a separate process: reading a whole journal takes seconds of computing.

    Raises
    ------
    InputError : as ``back_up``, or it takes longer than ``LONGEST_S``.
    """
    command = [sys.executable, "-P", "-m", "themis", "backup", str(target), "--data-dir", str(home)]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=LONGEST_S, check=False)
    except subprocess.TimeoutExpired:
        raise InputError(f"the backup took longer than {LONGEST_S:g} s; use `themis backup`.") from None
    if done.returncode:
        raise InputError(done.stderr.strip()[-500:] or f"the backup ended with exit code {done.returncode}.")


def restore(source: Path, home: Path) -> Copied:
    """Make a data directory of a backup; files in it that are not part of a service stay.

    Raises
    ------
    InputError : the source is no backup or is damaged, or the data directory has a journal or a running service.
    """
    if not (source / "journal.db").exists():
        raise InputError(f"{source} has no journal.db, so it is not a backup; name a folder that `themis backup` made.")
    if (home / "journal.db").exists() and (home / "journal.db").stat().st_size:
        raise InputError(f"{home} has a journal.db already; name another data directory, or move that one away.")
    with only_one(home):
        return _restore(source, home)


def _restore(source: Path, home: Path) -> Copied:
    """Make a data directory of a backup; it is locked."""
    home.chmod(0o700)
    draft = home / ".journal.db.part"
    for end in ("", "-wal", "-shm"):
        Path(f"{draft}{end}").unlink(missing_ok=True)
    try:
        with (
            closing(sqlite3.connect(f"{(source / 'journal.db').as_uri()}?mode=ro", uri=True)) as db,
            closing(_private(draft)) as copy,
        ):
            db.backup(copy)
    except sqlite3.DatabaseError as error:
        raise InputError(f"{source / 'journal.db'} cannot be read ({error}); take another backup.") from None
    # What is left of a journal that is gone would be taken for this one's.
    for name in ("journal.head", "journal.db-wal", "journal.db-shm", "endpoint.json"):
        (home / name).unlink(missing_ok=True)
    files = _copy(source, home, checkpoints=True)
    aside = draft.with_name("journal.db")
    draft.rename(aside)
    try:
        records = _check(aside)
    except InputError:
        aside.unlink()
        raise
    _sync(home)
    return Copied(records=records, files=files)


def _private(path: Path) -> sqlite3.Connection:
    """A database that only its owner may read, from the first byte on."""
    os.close(os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600))
    return sqlite3.connect(path)


def _check(path: Path) -> int:
    """Verify a copy and leave its trace; returns its records."""
    integrity.trace_path(path).unlink(missing_ok=True)
    with closing(Journal(path)) as journal:
        journal.verify()
        integrity.leave_trace(path, *journal.head)
        return int(journal.db.execute("SELECT count(*) FROM records").fetchone()[0])


def _copy(source: Path, target: Path, *, checkpoints: bool) -> tuple[str, ...]:
    copied = []
    for name in FILES:
        if (source / name).is_file():
            draft = target / f".{name}.part"
            draft.unlink(missing_ok=True)
            with open(os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as file:
                file.write((source / name).read_bytes())
            draft.replace(target / name)
            copied.append(name)
    if (source / MEMBERS).is_file():
        _copy_members(source / MEMBERS, target / MEMBERS)
        copied.append(str(MEMBERS))
    folders = [*map(Path, FOLDERS), *(LARGE if checkpoints else ())]
    for folder in folders:
        if (source / folder).is_dir():
            shutil.copytree(source / folder, target / folder, symlinks=True, dirs_exist_ok=True)
            if os.geteuid() == 0:
                _same_owners(source / folder, target / folder)
            copied.append(str(folder))
    if (source / COPIES / "copies.db").is_file():
        # Without the files it still knows which archives are at URLs.
        _copy_kept(source / COPIES, target / COPIES, files=checkpoints)
        copied.append(str(COPIES))
    return tuple(copied)


def _copy_kept(source: Path, target: Path, *, files: bool) -> None:
    """The table of copies, and those that the service keeps, without those that are replaced during the backup."""
    _copy_database(source / "copies.db", target / "copies.db")
    (target / "files").mkdir(mode=0o700, exist_ok=True)
    for path in (source / "files").glob("[!.]*") if files else ():
        with suppress(FileNotFoundError):
            shutil.copy2(path, target / "files" / path.name)


def _copy_members(source: Path, target: Path) -> None:
    """The machines of a fleet; a token that is used after the copy must not be valid again."""
    _copy_database(source, target, "DELETE FROM tokens")


def _copy_database(source: Path, target: Path, change: str = "") -> None:
    """A database that may be in use, in one piece."""
    target.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    draft = target.with_name(f".{target.name}.part")
    for path in (draft, *(Path(f"{target}{end}") for end in ("-wal", "-shm"))):
        path.unlink(missing_ok=True)
    with closing(sqlite3.connect(f"{source.as_uri()}?mode=ro", uri=True)) as db, closing(_private(draft)) as copy:
        try:
            db.backup(copy)
        except sqlite3.DatabaseError as error:
            raise InputError(f"{source} cannot be copied ({error}); no backup was made.") from None
        copy.execute("PRAGMA journal_mode = DELETE")
        if change:
            copy.execute(change)
        copy.commit()
    draft.replace(target)


def _same_owners(source: Path, target: Path) -> None:
    """Checkpoints belong to the users whose jobs wrote them."""
    for there in (source, *source.rglob("*")):
        found = there.lstat()
        os.chown(target / there.relative_to(source), found.st_uid, found.st_gid, follow_symlinks=False)


def _sync(folder: Path) -> None:
    for path in (*folder.glob("*"), folder):
        if path.is_file() or path == folder:
            file = os.open(path, os.O_RDONLY)
            try:
                os.fsync(file)
            finally:
                os.close(file)
