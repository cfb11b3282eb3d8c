"""Damage of what says how a journal's tables look, and of its first records."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from pathlib import Path

import pytest
from fake import request, world

from themis.errors import InputError
from themis.model.cluster import Machine
from themis.model.events import MachineJoined
from themis.service.api.submission import submit
from themis.service.engine.integrity import Damaged
from themis.service.engine.journal import Journal
from themis.service.engine.repair import repair
from themis.traces.profiles.library import load_book


def a_home(home: Path) -> list[float]:
    """Three apps, one of them over; all of it in the file, nothing in the write-ahead log, no snapshot."""
    clock = [1000.0]
    with world(home, 2, 2, clock=clock) as w:
        w.ask(lambda a: [submit(a, request(n, gpus=(3, 3) if n == "c" else (1, 1))) for n in "abc"])
        w.finish(0)
    with closing(sqlite3.connect(home / "journal.db")) as db:
        db.execute("PRAGMA wal_checkpoint(TRUNCATE)")
    return clock


def repaired(home: Path, *machines: Machine) -> list[str]:
    said: list[str] = []
    assert repair(home / "journal.db", load_book("themis", home / "profiles"), said.append, machines)
    return said


@pytest.mark.unfoldable
@pytest.mark.parametrize(
    ("was", "now"),
    [(b"apps (user, submitted)", b"apps (user, submittee)"), (b"CREATE INDEX open_apps", b"CREATE\0INDEX open_apps")],
)
def test_a_bit_of_the_schema_does_not_cost_the_journal(tmp_path: Path, was: bytes, now: bytes) -> None:
    clock = a_home(tmp_path)
    path = tmp_path / "journal.db"
    found = path.read_bytes()
    assert found.count(was) == 1
    path.write_bytes(found.replace(was, now))
    with pytest.raises(InputError, match="--repair"), closing(Journal(path)) as journal:
        journal.verify()
    said = repaired(tmp_path)
    assert "Kept: 3 apps, 2 of them queued or running" in said[-2]
    with world(tmp_path, 2, 2, clock=clock) as w:
        assert [entry.name for entry in w.arbiter.journal.apps()] == ["a", "b", "c"]


@pytest.mark.unfoldable
def test_what_cannot_be_read_is_named_as_its_owner_knows_it(tmp_path: Path) -> None:
    path = tmp_path / "journal.db"
    path.write_text("no journal\n" * 100)
    with pytest.raises(InputError, match=rf"nothing of {path} can be read"):
        repaired(tmp_path)


@pytest.mark.unfoldable
@pytest.mark.parametrize("kind", ["MachineJoined", "FairnessSet"])
def test_a_home_whose_first_records_are_damaged_starts_with_its_machines(tmp_path: Path, kind: str) -> None:
    clock = a_home(tmp_path)
    with closing(sqlite3.connect(tmp_path / "journal.db", isolation_level=None)) as db:
        db.execute(
            "UPDATE records SET line = '{}' WHERE number = (SELECT max(number) FROM records WHERE kind = ?)", (kind,)
        )
    with pytest.raises(Damaged), closing(Journal(tmp_path / "journal.db")) as journal:
        journal.verify()
    machines = [Machine(name=f"m{n}", gpus=2) for n in range(2)]
    said = " ".join(repaired(tmp_path, *machines))
    assert "Lost; submit them again" not in said
    with world(tmp_path, 2, 2, clock=clock) as w:
        assert [entry.outcome for entry in w.arbiter.journal.apps()] == ["completed", "", ""]


@pytest.mark.unfoldable
def test_nodes_whose_records_can_be_read_keep_their_apps(tmp_path: Path) -> None:
    """Of an engine whose nodes join by themselves."""
    a_home(tmp_path)
    with closing(sqlite3.connect(tmp_path / "journal.db", isolation_level=None)) as db:
        db.execute("UPDATE records SET line = '{}' WHERE number = 2")
        first = "SELECT count(*) FROM records WHERE kind = 'MachineJoined' AND number > 2"
        assert db.execute(first).fetchone() == (1,)
    repaired(tmp_path)
    with closing(Journal(tmp_path / "journal.db")) as journal:
        joined = [record.machine.name for _, record in journal.records() if isinstance(record, MachineJoined)]
    assert joined == ["m1"]
