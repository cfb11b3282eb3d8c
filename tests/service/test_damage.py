"""Damage of a journal at random places: refused with the last good record named, or repaired with the loss said; never silent.

``THEMIS_DAMAGES=200`` for the longer form, which ``make soak`` runs.
"""

from __future__ import annotations

import os
import sqlite3
import time
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import orjson
import pytest
from fake import request, world
from late import LateSolver, something

from audit import as_written, copy, what_counts
from themis.errors import InputError, ThemisError
from themis.model.events import MachineReturned
from themis.policies.api import make_policy
from themis.service.api.submission import submit
from themis.service.engine import integrity, state_snapshots
from themis.service.engine.folding import fold
from themis.service.engine.integrity import Damaged
from themis.service.engine.journal import Journal
from themis.service.engine.pending_calls import Closed
from themis.service.engine.recovery import engine_over
from themis.service.engine.repair import repair
from themis.traces.profiles.models import DEFAULT_BOOK

DAMAGES = int(os.environ.get("THEMIS_DAMAGES", "16"))
HOW = ("flip", "flip", "flip", "truncate", "delete", "zero", "flip log", "truncate log", "remove log", "older file")
TABLES = ("records", "records", "records", "apps", "apps", "meta", "checkpoints", "seals")

pytestmark = pytest.mark.unfoldable


@dataclass
class Home:
    """A journal as a killed arbiter leaves it, an older one, and all that both say."""

    path: Path
    older: Path
    says: dict[str, list[Any]]
    state: bytes
    active: dict[int, str]


@pytest.fixture(scope="module", params=["whole", "compacted"])
def home(tmp_path_factory: pytest.TempPathFactory, request: pytest.FixtureRequest) -> Home:
    folder = tmp_path_factory.mktemp("home")
    keep = 15.0 if request.param == "compacted" else 1e9
    patch = pytest.MonkeyPatch()
    patch.setattr(state_snapshots.maybe_take, "__kwdefaults__", {"every": 60})
    # Of today, as the repair's: a lease that it ends is charged by the hour.
    rng, clock = np.random.default_rng(5), [time.time()]
    older = folder / "older"
    try:
        for life in range(2):
            with world(folder / "live", 2, 2, policy="themis", clock=clock, journal_keep_s=keep) as w:
                w.arbiter.engine.solver = LateSolver(make_policy("themis"))
                w.arbiter.journal.db.execute("PRAGMA synchronous = OFF")
                for _ in range(90):
                    something(w, rng)
                if life == 0:
                    copy(folder / "live" / "journal.db", older)
            # The last part is in the write-ahead log alone, as after kill -9.
        with world(folder / "live", 2, 2, policy="themis", clock=clock, journal_keep_s=keep) as w:
            w.arbiter.engine.solver = LateSolver(make_policy("themis"))
            w.arbiter.journal.db.execute("PRAGMA synchronous = OFF")
            for _ in range(25):
                something(w, rng)
            path = copy(folder / "live" / "journal.db", folder / "killed")
            state = what_counts(w.arbiter.engine)
            t = w.arbiter.state.apps
            active = {a: spec.name for a, spec in enumerate(w.arbiter.state.app_specs) if t.active[a]}
    finally:
        patch.undo()
    check = copy(path, folder / "check")
    with closing(Journal(check)) as journal:
        kinds = {kind for (kind,) in journal.db.execute("SELECT DISTINCT kind FROM records")}
    assert ("Compacted" in kinds) == (keep < 1e9)
    return Home(path, older, says(check), state, active)


def says(path: Path) -> dict[str, list[Any]]:
    """Every row of every table."""
    with closing(sqlite3.connect(path)) as db:
        tables = [name for (name,) in db.execute("SELECT name FROM sqlite_master WHERE type = 'table'")]
        return {table: db.execute(f"SELECT * FROM {table}").fetchall() for table in sorted(tables)}


def damage(path: Path, older: Path, how: str, rng: np.random.Generator) -> str:
    """Damage a journal; returns how, for a message."""
    log = Path(f"{path}-wal")
    match how:
        case "flip" | "flip log":
            file = log if how == "flip log" else path
            data = bytearray(file.read_bytes())
            at, bit = int(rng.integers(len(data))), int(rng.integers(8))
            data[at] ^= 1 << bit
            file.write_bytes(data)
            return f"{how}: bit {bit} of byte {at} of {len(data)}"
        case "zero":
            data = bytearray(path.read_bytes())
            at = 4096 * int(rng.integers(len(data) // 4096))
            data[at : at + 4096] = bytes(4096)
            path.write_bytes(data)
            return f"zero: page {at // 4096 + 1}"
        case "truncate" | "truncate log":
            file = log if how == "truncate log" else path
            length = int(rng.integers(1, file.stat().st_size))
            os.truncate(file, length)
            return f"{how}: to {length}"
        case "remove log":
            log.unlink()
            return how
        case "older file":
            # A file of before is put back, as by a careless copy.
            path.write_bytes((older / "journal.db").read_bytes())
            log.unlink()
            return how
        case _:
            table = str(rng.choice(TABLES))
            with closing(sqlite3.connect(path)) as db:
                key = db.execute(f"PRAGMA table_info({table})").fetchall()[0][1]
                count = db.execute(f"SELECT count(*) FROM {table}").fetchone()[0]
                assert count, f"the journal has no {table}"
                row = db.execute(f"SELECT {key} FROM {table} LIMIT 1 OFFSET ?", (int(rng.integers(count)),)).fetchone()
                db.execute(f"DELETE FROM {table} WHERE {key} = ?", row)
                db.commit()
            return f"delete: {row[0]} of {table}"


def trial(home: Home, folder: Path, seed: int) -> str:
    """Damage a copy of a home; returns what came of it: untouched, refused or repaired."""
    rng = np.random.default_rng([seed, len(home.says["records"])])
    path = copy(home.path, folder)
    what = damage(path, home.older, HOW[seed % len(HOW)], rng)
    opened = copy(path, folder / "opened")
    try:
        with closing(Journal(opened)) as journal:
            journal.verify()
            engine = engine_over(journal, DEFAULT_BOOK)
            fold(engine)
            assert what_counts(engine) == home.state, what
        problem = ""
    except InputError as error:
        problem = str(error)
    if not problem:
        assert says(opened) == home.says, f"{what}: it went unnoticed"
        return "untouched"
    lines: list[str] = []
    try:
        repaired = repair(path, DEFAULT_BOOK, lines.append)
    except InputError as error:
        refusal = str(error)
    else:
        assert repaired, f"{what}: refused, but nothing to repair: {problem}"
        _check_repaired(home, path, lines, f"{what}: {problem}")
        return "repaired"
    assert "restore a backup" in refusal, f"{what}: {refusal}"
    return "refused"


def _check_repaired(home: Home, path: Path, lines: list[str], what: str) -> None:
    said = "\n".join(lines)
    with closing(Journal(path)) as journal:
        journal.verify()
        engine = engine_over(journal, DEFAULT_BOOK)
        fold(engine)
        state, last = engine.core.state, journal.last()[0]
        entries = {entry.app: entry for entry in journal.apps()}
        nameless = "are lost without a name" in said
        assert state.apps.size == len(entries), f"{what}\n{said}"
        assert nameless or state.apps.size == len(home.says["apps"]), f"{what}\n{said}"
        before = {row[0]: row for row in home.says["apps"]}
        for app, name in home.active.items():
            if f"(app {app})" in said and "Lost; submit them again" in said:
                continue
            if app >= state.apps.size and nameless:
                continue
            assert state.apps.active[app], f"{what}: app {app} is not there any more, and nothing was said\n{said}"
            assert entries[app].name == name, what
            row = journal.db.execute("SELECT programs FROM apps WHERE app = ?", (app,)).fetchone()
            assert row[0] == before[app][6], what
    whole = [row[0] for row in home.says["records"]]
    if last < whole[-1] or "cannot be used" in said:
        assert "The state continues from record" in said, said


@pytest.mark.parametrize("part", range(4))
def test_no_damage_goes_unnoticed(home: Home, tmp_path: Path, part: int) -> None:
    outcomes: dict[str, int] = {}
    for seed in range(part * DAMAGES // 8, (part + 1) * DAMAGES // 8):
        came = trial(home, tmp_path / str(seed), seed)
        outcomes[came] = outcomes.get(came, 0) + 1
    print(outcomes)


def test_a_repaired_home_runs_on(home: Home, tmp_path: Path) -> None:
    path = copy(home.path, tmp_path)
    with closing(sqlite3.connect(path)) as db:
        (number,) = db.execute("SELECT max(number) - 6 FROM records").fetchone()
        db.execute("UPDATE records SET t = t + 1e-9 WHERE number = ?", (number,))
        db.commit()
    clock = [time.time() + 5000.0]
    message = rf"The last good record is {number - 1}\. `themis up --repair` lists"
    with pytest.raises(Damaged, match=message), world(tmp_path, 2, 2, policy="themis", clock=clock):
        pass
    lines: list[str] = []
    assert repair(path, DEFAULT_BOOK, lines.append)
    assert f"The state continues from record {number - 1}" in "\n".join(lines) or "cannot be used" in "\n".join(lines)
    assert path.with_name("journal.db.damaged-1").exists()
    assert not repair(path, DEFAULT_BOOK, lines.append)
    with world(tmp_path, 2, 2, policy="themis", clock=clock) as w:
        active = {a for a in range(w.arbiter.state.apps.size) if w.arbiter.state.apps.active[a]}
        assert active >= home.active.keys(), lines
        # The home may have been copied while its machines were away.
        w.say(*(MachineReturned(machine=n) for n in w.executor.lost))
        w.turn(1.0)
        w.ask(lambda a: submit(a, request("more")))
        w.turn(70.0)
        # The random history may end while no machine is there.
        w.say(MachineReturned(machine=0), MachineReturned(machine=1))
        w.turn(70.0)
        assert w.held()
    with world(tmp_path, 2, 2, policy="themis", clock=clock):
        pass


def test_a_home_without_its_journal_is_refused(home: Home, tmp_path: Path) -> None:
    path = copy(home.path, tmp_path / "a")
    Path(f"{path}-wal").unlink()
    for make in (path.unlink, lambda: path.write_bytes(b"")):
        make()
        with pytest.raises(
            InputError, match=r"is (missing|empty), but journal.head is there, so a service used this data directory"
        ):
            Journal(path)
    old = tmp_path / "b"
    (old / "run" / "checkpoints" / "app3").mkdir(parents=True)
    with pytest.raises(InputError, match="missing, but run/checkpoints/app3 is there"):
        Journal(old / "journal.db")
    (tmp_path / "c").mkdir()
    (tmp_path / "c" / "journal.db").touch()
    Journal(tmp_path / "c" / "journal.db").close()


@pytest.mark.parametrize("end", ["", "-wal"])
def test_a_journal_that_is_moved_while_the_service_runs_takes_nothing_in(tmp_path: Path, end: str) -> None:
    with world(tmp_path, 2) as w:
        w.ask(lambda a: submit(a, request("a")))
        path = Path(f"{w.arbiter.journal.path}{end}")
        path.rename(tmp_path / "elsewhere.db")
        with pytest.raises(Closed, match="is missing: it was moved, replaced or removed"):
            w.arbiter.ask(lambda: None)
        tries = iter((True, True, False))

        def back() -> bool:
            """On the second try the file is there again."""
            if next(tries) and not path.exists():
                (tmp_path / "elsewhere.db").rename(path)
            return True

        w.arbiter.journal.patient = back
        w.ask(lambda a: submit(a, request("b")))
        assert not w.arbiter.journal.stuck
        assert [entry.name for entry in w.arbiter.journal.apps()] == ["a", "b"]
    with closing(Journal(tmp_path / "journal.db")) as journal:
        journal.verify()
        assert [entry.name for entry in journal.apps()] == ["a", "b"]


def test_a_journal_that_does_not_follow_is_repaired_too(tmp_path: Path) -> None:
    """As one was left behind by the fault that the fold had: every byte is as it was written, but the core draws something else."""
    clock = [time.time()]  # of today, as the repair's: accounts of each hour until then are written
    with world(tmp_path, 2, policy="themis", clock=clock) as w:
        for name in "abc":
            w.ask(lambda a, name=name: submit(a, request(name, weight=0.37)))
            w.turn(1.1)
        w.finish(1)
        w.ask(lambda a: submit(a, request("d", weight=0.37)))
    with closing(Journal(tmp_path / "journal.db")) as journal:
        number, line = journal.db.execute("SELECT number, line FROM records WHERE kind = 'AppFinished'").fetchone()
        fields = orjson.loads(line)
        fields["rho_paper"] *= 1.01
        journal.db.execute("UPDATE records SET line = ? WHERE number = ?", (orjson.dumps(fields), number))
        as_written(journal)
    with pytest.raises(InputError, match="does not follow"), world(tmp_path, 2, policy="themis", clock=clock):
        pass
    lines: list[str] = []
    assert repair(tmp_path / "journal.db", DEFAULT_BOOK, lines.append)
    said = "\n".join(lines)
    assert "Entered again as submitted: 'd' of u (app 3)." in said, said
    assert "Finished according to the list of apps; the records of how are lost: 'b' of u (app 1)." in said, said
    with world(tmp_path, 2, policy="themis", clock=clock) as w:
        assert [entry.outcome for entry in w.arbiter.journal.apps()] == ["", "completed", "", ""]
        w.clock[0] = w.arbiter.epoch + w.arbiter.state.now + 200.0
        for _ in range(3):
            w.turn(3.0)
        assert len(w.held()) == 2


def test_a_trace_that_is_damaged_or_gone_costs_nothing(home: Home, tmp_path: Path) -> None:
    path = copy(home.path, tmp_path)
    trace = integrity.trace_path(path)
    for change in (lambda: trace.write_text("garbage"), trace.unlink):
        change()
        with closing(Journal(path)) as journal:
            journal.verify()


def test_repair_refuses_what_is_no_journal(tmp_path: Path) -> None:
    (tmp_path / "journal.db").write_text("this is no database, and long enough to be seen as none\n" * 100)
    with pytest.raises(ThemisError, match=r"nothing of .* can be read"):
        repair(tmp_path / "journal.db", DEFAULT_BOOK, print)
