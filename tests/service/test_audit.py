"""The audit log: what others and administrators did stays, however much a user sends."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from themis.service.api import audit as module
from themis.service.api.access import Caller
from themis.service.api.audit import Audit

ANN, BEN = (Caller(user=name, admin=False, address="ipv4:10.0.0.7:1") for name in ("ann", "ben"))
ROOT = Caller(user="root", admin=True, address="ipv4:10.0.0.1:1")
DAY_S = 86400.0


@dataclass
class Log:
    """An audit log whose clock is the test's."""

    home: Path
    now: float = 1_000_000_020.0
    keep_s: float = 90 * DAY_S
    audit: Audit = field(init=False)

    def __post_init__(self) -> None:
        self.audit = Audit(self.home, lambda: self.keep_s, lambda: self.now)


@pytest.fixture
def log(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Log]:
    for name, value in (("MOST_OF_USER", 200), ("MOST_REFUSED", 100), ("EVERY", 10)):
        monkeypatch.setattr(module, name, value)
    found = Log(tmp_path)
    yield found
    found.audit.close()


def test_what_a_user_sends_washes_out_nothing_of_others(log: Log) -> None:
    log.audit.add(ROOT, "Drain", "node3")
    log.audit.add(BEN, "Submit", "train")
    for number in range(1000):
        log.now += 61.0
        log.audit.add(ANN, "Cancel", str(number), refused=f"there is no app {number}. " + "x" * 5000)
        log.audit.add(ANN, "Hold", str(number))
        log.audit.add(Caller(user="", admin=False), "SignIn", "oidc", refused=f"no {number}")
    assert [entry.action for entry in log.audit.read("root")] == ["Drain"]
    assert [entry.action for entry in log.audit.read("ben")] == ["Submit"]
    own = log.audit.read("ann")
    assert [entry.target for entry in own[:2]] == ["999", "999"], "the newest of her own stay"
    assert 200 <= sum(entry.outcome == "ok" for entry in own) < 210 + 1
    assert 100 <= sum(entry.outcome == "refused" for entry in own) < 110 + 1
    assert 100 <= sum(entry.user == "" for entry in log.audit.read()) < 110 + 1


def test_refused_calls_of_one_minute_are_one_entry_with_their_number(log: Log) -> None:
    for number in range(500):
        log.audit.add(ANN, "Cancel", str(number), refused="Permission denied")
    log.audit.add(BEN, "Cancel", "7", refused="Permission denied")
    log.audit.add(ANN, "Hold", "7", refused="Permission denied")
    log.now += 60.0
    log.audit.add(ANN, "Cancel", "500", refused="Permission denied")
    found = [(e.user, e.action, e.target, e.count) for e in log.audit.read()]
    assert sorted(found) == [
        ("ann", "Cancel", "499", 500),
        ("ann", "Cancel", "500", 1),
        ("ann", "Hold", "7", 1),
        ("ben", "Cancel", "7", 1),
    ]


def test_changes_stay_as_long_as_the_setting_says_and_those_of_administrators_in_any_number(log: Log) -> None:
    for number in range(500):
        log.audit.add(ROOT, "Drain", str(number))
    assert len(log.audit.read("root")) == 500
    log.now += 89 * DAY_S
    log.audit.add(BEN, "Submit", "a")
    assert len(log.audit.read("root")) == 500
    log.now += 2 * DAY_S
    log.audit.add(BEN, "Submit", "b")
    assert [entry.target for entry in log.audit.read()] == ["b", "a"]
    log.keep_s = DAY_S
    log.now += 3600.0
    log.audit.add(BEN, "Submit", "c")
    assert [entry.target for entry in log.audit.read()] == ["c", "b"]


def test_entries_outlive_the_service_and_only_its_user_reads_them(log: Log) -> None:
    log.audit.add(ROOT, "Drain", "node3")
    assert log.audit.path.stat().st_mode & 0o077 == 0
    log.audit.close()
    again = Audit(log.home, clock=lambda: log.now + 1.0)
    again.add(ROOT, "Undrain", "node3")
    assert [entry.action for entry in again.read()] == ["Undrain", "Drain"]
    again.close()


def test_a_file_that_cannot_be_written_stops_no_call(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    (tmp_path / "audit.db").write_text("no database at all, " * 100)
    audit = Audit(tmp_path)
    audit.add(ANN, "Submit", "a")
    audit.add(ANN, "Submit", "b")
    assert caplog.text.count("are kept in memory") == 1
    with pytest.raises(sqlite3.DatabaseError):
        audit.read()


def test_entries_of_a_full_disk_are_written_when_there_is_room(log: Log, monkeypatch: pytest.MonkeyPatch) -> None:
    with monkeypatch.context() as full:

        def no_room(audit: Audit) -> sqlite3.Connection:
            raise sqlite3.OperationalError("database or disk is full")

        full.setattr(Audit, "_db", no_room)
        log.audit.add(ANN, "Cancel", "a")
        log.audit.add(ROOT, "Set", "policy")
    log.now += 60.0
    log.audit.add(BEN, "Submit", "b")
    assert [(e.user, e.action, log.now - e.time) for e in reversed(log.audit.read())] == [
        ("ann", "Cancel", 60.0),
        ("root", "Set", 60.0),
        ("ben", "Submit", 0.0),
    ]
