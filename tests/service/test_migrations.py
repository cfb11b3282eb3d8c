"""Journals of older versions: they are brought up to this one, and their jobs run on."""

from __future__ import annotations

import re
import sqlite3
from pathlib import Path

import pytest
from fake import world

from themis.cli.report import explain_home, replay_home
from themis.errors import InputError
from themis.service.engine.journal import Journal
from themis.service.engine.migrations import SCHEMA, STEPS, migrate

OLD = sorted((Path(__file__).parent / "data").glob("journal-*.sql"))


def restore(dump: Path, home: Path) -> None:
    db = sqlite3.connect(home / "journal.db")
    db.executescript(dump.read_text())
    db.close()


def tables(path: Path) -> dict[str, list[tuple[object, ...]]]:
    db = sqlite3.connect(path)
    names = [name for (name,) in db.execute("SELECT name FROM sqlite_master WHERE type = 'table'")]
    out = {name: sorted(row[1:] for row in db.execute(f"PRAGMA table_info({name})")) for name in names}
    db.close()
    return out


def test_there_is_a_journal_of_every_older_version() -> None:
    assert [path.stem for path in OLD] == [f"journal-{version}" for version in range(1, SCHEMA)]


@pytest.mark.parametrize("dump", OLD, ids=lambda path: path.stem)
def test_a_migrated_journal_has_the_tables_of_a_fresh_one(tmp_path: Path, dump: Path) -> None:
    (tmp_path / "new").mkdir()
    Journal(tmp_path / "new" / "journal.db").close()
    restore(dump, tmp_path)
    for _ in range(2):
        Journal(tmp_path / "journal.db").close()
        assert tables(tmp_path / "journal.db") == tables(tmp_path / "new" / "journal.db")


@pytest.mark.parametrize("dump", OLD, ids=lambda path: path.stem)
def test_jobs_of_an_older_version_run_on_under_this_one(tmp_path: Path, dump: Path) -> None:
    restore(dump, tmp_path)
    with world(tmp_path, 2, 2, clock=[1010.0]) as w:
        assert w.held() == {2: (0,), 3: (1,)}
        assert [(g.job, g.attempt, started) for g, _, started in w.executor.restored] == [(2, 2, True), (3, 2, True)]
        assert [entry.name for entry in w.arbiter.journal.apps()] == ["a", "b", "c"]
        assert w.arbiter.journal.failures(1) == 1
        w.finish(2)
        assert 2 not in w.held()
        # Rules that came later are not those that its records were made by.
        assert (w.arbiter.settings.renew_idle, w.arbiter.settings.shortest_lease_s) == (False, 0.0)


def test_a_fresh_journal_has_todays_rules_and_keeps_them(tmp_path: Path) -> None:
    for _ in range(2):
        with world(tmp_path, 2, lease_s=600.0, tick_s=60.0) as w:
            assert (w.arbiter.settings.renew_idle, w.arbiter.settings.shortest_lease_s) == (True, 180.0)


def test_a_migration_that_fails_changes_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    restore(OLD[0], tmp_path)
    before = tables(tmp_path / "journal.db")
    monkeypatch.setattr("themis.service.engine.migrations.STEPS", (*STEPS, "CREATE TABLE half (x); DROP TABLE nowhere"))
    db = sqlite3.connect(tmp_path / "journal.db", isolation_level=None)
    with pytest.raises(sqlite3.OperationalError, match="nowhere"):
        migrate(db, tmp_path / "journal.db", "1")
    db.close()
    assert tables(tmp_path / "journal.db") == before


@pytest.mark.parametrize("dump", OLD, ids=lambda path: path.stem)
def test_who_only_reads_a_home_leaves_it_to_the_version_that_wrote_it(tmp_path: Path, dump: Path) -> None:
    restore(dump, tmp_path)
    before = (tmp_path / "journal.db").read_bytes()
    assert replay_home(tmp_path, None).difference is None
    assert explain_home(tmp_path, "a").app == "a"
    assert (tmp_path / "journal.db").read_bytes() == before
    assert [path.name for path in tmp_path.iterdir()] == ["journal.db"]


@pytest.mark.unfoldable
@pytest.mark.parametrize(
    ("text", "said"), [("", "{} is empty"), ("no journal\n" * 100, "cannot read {} ")], ids=["empty", "foreign"]
)
def test_a_home_that_cannot_be_read_is_said_by_its_own_name(tmp_path: Path, text: str, said: str) -> None:
    (tmp_path / "journal.db").write_text(text)
    with pytest.raises(InputError, match=re.escape(said.format(tmp_path / "journal.db"))):
        replay_home(tmp_path, None)
    assert (tmp_path / "journal.db").read_text() == text
