"""Every journal that a test leaves behind, folded whole and compared with what it says and with its pictures."""

from __future__ import annotations

import math
import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import closing, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import orjson

from themis.core.checkpoint import save
from themis.core.tables import Status
from themis.model.events import Compacted, Header, JournalRepaired, Quarantined
from themis.report.accounts.charges import Amounts
from themis.report.accounts.fold import Accounts, Tally
from themis.service.engine import chain, integrity, recovery, state_snapshots
from themis.service.engine.books import DONE, Books, row_of
from themis.service.engine.engine import Engine
from themis.service.engine.folding import RunningFold, fold
from themis.service.engine.journal import Journal
from themis.traces.profiles.library import BOOKS


@dataclass
class Audited:
    """What was compared: records, pictures, and commands that agreed within a tolerance only."""

    records: int = 0
    pictures: int = 0
    near: int = 0


def engine_over(journal: Journal) -> Engine:
    """A fresh engine for a journal, by its header."""
    _, header = next(journal.records())
    assert isinstance(header, Header)
    books = [build() for build in BOOKS.values()]
    if header.profiles not in {b.fingerprint for b in books}:
        raise LookupError(f"{journal.path} was begun with profiles of its own")
    return recovery.engine_over(journal, next(b for b in books if b.fingerprint == header.profiles))


def what_counts(engine: Engine) -> bytes:
    """All that decides how an engine goes on, as bytes; of apps that are long over only what every engine keeps."""
    core = engine.core
    jobs = core.state.jobs
    here = {j for j in range(jobs.size) if jobs.status[j] != Status.ENDED} | core.state.occupied.keys()
    saved = save(core)
    saved["app_specs"] = [app.name for app in core.state.app_specs]
    saved["state"].pop("retired_below", None)
    kept: dict[str, Any] = {
        name: state_snapshots.pack({j: v for j, v in sorted(getattr(engine, name).items()) if j in here})
        for name in ("grants", "revokes", "saved")
    }
    speeds = core.state.speeds
    return orjson.dumps(
        [
            saved,
            kept,
            sorted(engine.started & here),
            sorted(engine.wakes),
            speeds.scale.tolist(),
            speeds.slowdown.tolist(),
        ]
    )


def same(one: Engine, other: Engine, where: str) -> None:
    """Raise AssertionError where two engines would not go on alike; names what differs."""
    a, b = what_counts(one), what_counts(other)
    assert a == b, f"{where}: {list(_apart(orjson.loads(a), orjson.loads(b)))[:5]}"


def _apart(a: Any, b: Any, at: str = "") -> Iterator[str]:
    if isinstance(a, dict) and isinstance(b, dict) and list(a) == list(b):
        for name in a:
            yield from _apart(a[name], b[name], f"{at}.{name}")
    elif isinstance(a, list) and isinstance(b, list) and len(a) == len(b):
        for n, (x, y) in enumerate(zip(a, b)):
            yield from _apart(x, y, f"{at}[{n}]")
    elif repr(a) != repr(b):  # 1 and 1.0 are other bytes, as are keys in another order
        yield f"{at}: {a!r:.200} and {b!r:.200}"


def copy(path: Path, folder: Path) -> Path:
    """Copy a journal with all that belongs to it; returns where it is then."""
    folder.mkdir(exist_ok=True)
    for name in ("journal.db", "journal.db-wal", "journal.head"):
        if (there := path.with_name(name)).exists():
            shutil.copyfile(there, folder / name)
    return folder / "journal.db"


def as_written(journal: Journal) -> None:
    """After a test edited a journal: digests of what is there now, as if it had been written so."""
    db, before = journal.db, chain.BEGIN
    with journal.transaction():
        for number, *row in db.execute("SELECT number, t, kind, line FROM records ORDER BY number").fetchall():
            before = chain.link(before, number, *row)
            db.execute("UPDATE records SET digest = ? WHERE number = ?", (before, number))
        db.execute("DELETE FROM seals")
        for table in chain.sealed(db):
            seals = [(table, key, chain.seal(*row)) for key, row in chain.rows_of(db, table)]
            db.executemany("INSERT INTO seals VALUES (?, ?, ?)", seals)
    integrity.trace_path(journal.path).unlink(missing_ok=True)
    with journal.transaction():
        journal.write("DELETE FROM meta WHERE name = 'head'")


def audit(path: Path) -> Audited:
    """Fold a copy of a journal whole, where its first records are there, and compare its pictures on the way.

    Raises AssertionError or InputError where anything differs.
    """
    found = Audited()
    with tempfile.TemporaryDirectory() as folder:
        copy(path, Path(folder))
        with closing(Journal(Path(folder) / "journal.db")) as journal:
            if journal.last()[0] == 0:
                return found
            journal.verify()
            compacted = any(isinstance(record, Compacted) for _, record in journal.records())
            numbers = [number for (number,) in journal.db.execute("SELECT number FROM checkpoints ORDER BY number")]
            engine = engine_over(journal)

            def seen(state: RunningFold) -> None:
                found.records, found.near = found.records + 1, state.near
                if state.number in numbers:
                    other = engine_over(journal)
                    stored = journal.snapshot(state.number)
                    assert stored is not None
                    state_snapshots.restore(other, stored[1])
                    same(other, engine, f"{path}: the snapshot after record {state.number}")
                    found.pictures += 1

            fold(engine, whole=not compacted, seen=seen)
            short = engine_over(journal)
            fold(short)
            same(short, engine, f"{path}: from the last snapshot, and from the beginning")
            repaired = any(isinstance(record, JournalRepaired) for _, record in journal.records())
            if journal.meta(DONE) is not None and not repaired:
                audit_accounts(journal, engine, whole=not compacted, where=str(path))
    return found


def audit_accounts(journal: Journal, engine: Engine, *, whole: bool, where: str) -> None:
    """The accounts are what the records come to, to 1e-9, and of no app more than the core counted."""
    state = engine.core.state
    books = Books(journal)
    with journal.transaction():
        books.open(state)
    assert books.accounts is not None
    if whole:
        tally = Tally()
        accounts = Accounts(tally)
        for _, time, record in journal.numbered():
            accounts.add(time, record)
        kept = {(lease.job, lease.attempt): lease for lease in books.leases("1")}
        assert {key: repr(row_of(lease)) for key, lease in kept.items()} == {
            k: repr(row_of(v)) for k, v in sorted(tally.leases.items())
        }, where
        # A gang that waits for others to release its GPUs has no lease yet.
        waiting = {job for job, gpus in state.job_gpus.items() if state.occupied.get(job, ((), 0))[0] != gpus}
        open_ = sorted(accounts.leases.held)
        assert open_ == sorted(books.accounts.leases.held) == sorted(state.job_gpus.keys() - waiting), (where, open_)
        total = Amounts()
        for charge in tally.charges:
            total = total.plus(charge.amounts)
        for zone in ("utc", "local"):
            row = journal.db.execute(
                "SELECT total(leased), total(restart), total(lost), total(idle), total(cost) FROM usage WHERE zone = ?",
                (zone,),
            ).fetchone()
            assert all(near(a, b) for a, b in zip(row, total, strict=True)), (where, zone, row, total)
    if any(isinstance(record, Quarantined) and record.skipped for _, record in journal.records()):
        return  # the core ended those leases with the record that is skipped, the accounts when the gangs were stopped
    # The core counts time in which a gang waits for others to release its GPUs, too; no lease is granted before they did.
    attained = state.apps_attained()
    leased = np.zeros(len(attained))
    for lease in books.leases("1"):
        leased[lease.app] += lease.amounts(state.now).leased
    assert (leased <= attained * (1 + 1e-9) + 1e-6).all(), (where, leased, attained)


def near(a: float, b: float) -> bool:
    """Equal to 1e-9, of the larger one or of a GPU-second."""
    return math.isclose(a, b, rel_tol=1e-9, abs_tol=1e-9 * 3600)


def audit_below(folder: Path) -> None:
    """Audit every journal in a folder; one that was begun with profiles of a test's own is passed over."""
    # Folders may go while this looks: those of tasks are removed in the background.
    for path in sorted(Path(top, "journal.db") for top, _, files in os.walk(folder) if "journal.db" in files):
        if path.is_file() and path.stat().st_size:
            with suppress(LookupError):
                audit(path)
