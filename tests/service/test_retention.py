"""What a home drops when it is old, and what it never does."""

from __future__ import annotations

from pathlib import Path

import pytest
from fake import World, request, world
from test_arbiter import enter

from themis.core.retire import is_pruned
from themis.machines.agent.logfile import MOST, turned
from themis.model.events import JobStopped
from themis.schema import messages as schema
from themis.service.api import accounts, views
from themis.service.api.submission import submit
from themis.service.engine import state_snapshots
from themis.service.engine.config import Config
from themis.service.operations.retention import EVERY_S, Due, Sweeper, due, keep_swept, sweep
from themis.service.operations.up import running

KEEP = 10.0


def lay(home: Path, jobs: int = 3) -> None:
    """Logs and checkpoints as two machines leave them, of one app a job."""
    for j in range(jobs):
        for name in ("m0", "m1"):
            logs = home / "run" / "nodes" / name / "logs" / f"job{j}-attempt2"
            logs.mkdir(parents=True)
            (logs / "rank-0.log").write_text("words")
        saved = home / "run" / "checkpoints" / f"app{j}" / f"job{j}"
        saved.mkdir(parents=True)
        (saved / "last.pt").write_text("weights")


def left(home: Path) -> tuple[list[str], list[str]]:
    """Names of what is there still."""
    run = home / "run"
    logs = {path.name for path in run.glob("nodes/*/logs/*")}
    return sorted(logs), sorted(path.name for path in run.glob("checkpoints/*"))


def swept(w: World) -> None:
    """The hour is over, and what that begins is done."""
    chores = w.arbiter.housekeeping.chores
    if not chores:
        keep_swept(w.arbiter)
    of_chores = (chore.__self__ for chore in chores)  # type: ignore[attr-defined]
    sweeper = next(sweeper for sweeper in of_chores if isinstance(sweeper, Sweeper))
    sweeper.at = w.arbiter.now()
    w.turn(0.1)
    assert sweeper.at == pytest.approx(w.arbiter.now() + EVERY_S, abs=0.1)
    sweeper.thread.join(30.0)
    assert not sweeper.thread.is_alive()


def test_a_service_deletes_what_is_old_by_itself(tmp_path: Path) -> None:
    with running(tmp_path, Config(gpus=1, port=0)) as service:
        of_chores = (chore.__self__ for chore in service.arbiter.housekeeping.chores)  # type: ignore[attr-defined]
        sweeper = next(sweeper for sweeper in of_chores if isinstance(sweeper, Sweeper))
        assert service.arbiter.ask(lambda: sweeper.find(0.0)).args[0] == tmp_path / "run"
        assert 0 < sweeper.at - service.arbiter.now() <= EVERY_S


def test_logs_go_some_time_after_their_app_is_over_and_checkpoints_of_completed_apps_where_that_is_asked_for(
    tmp_path: Path,
) -> None:
    with world(tmp_path, logs_keep_s=KEEP, checkpoints_keep_s=3 * KEEP) as w:
        for i in range(3):
            enter(w, f"a{i}")
        lay(tmp_path)
        w.finish(0)
        w.ask(lambda a: a.cancel(1))
        swept(w)
        everything = ["job0-attempt2", "job1-attempt2", "job2-attempt2"], ["app0", "app1", "app2"]
        assert left(tmp_path) == everything
        w.turn(KEEP)
        swept(w)
        assert left(tmp_path) == (["job2-attempt2"], everything[1])
        w.turn(2 * KEEP)
        swept(w)
        assert left(tmp_path) == (["job2-attempt2"], ["app1", "app2"]), "of cancelled and of running apps they stay"


def test_checkpoints_stay_for_ever_by_default(tmp_path: Path) -> None:
    with world(tmp_path) as w:
        enter(w)
        lay(tmp_path, 1)
        w.finish(0)
        w.turn(29 * 86400.0)
        swept(w)
        assert left(tmp_path) == (["job0-attempt2"], ["app0"])
        w.turn(2 * 86400.0)
        swept(w)
        assert left(tmp_path) == ([], ["app0"])


def test_nothing_goes_while_a_gang_of_the_app_has_not_let_go(tmp_path: Path) -> None:
    with world(tmp_path, silent=True, logs_keep_s=KEEP, checkpoints_keep_s=KEEP) as w:
        enter(w)
        w.finish(0)
        assert due(w.arbiter.state, w.arbiter.journal, w.arbiter.config, w.arbiter.now() + 2 * KEEP) == Due(
            jobs=frozenset(), apps=frozenset()
        )
        w.say(JobStopped(job=0, attempt=1, steps=100.0))
        assert due(w.arbiter.state, w.arbiter.journal, w.arbiter.config, w.arbiter.now() + 2 * KEEP) == Due(
            jobs=frozenset({0}), apps=frozenset({0})
        )


def test_no_link_is_followed_and_nothing_else_is_touched(tmp_path: Path) -> None:
    outside = tmp_path / "outside"
    (outside / "logs" / "job0-attempt1").mkdir(parents=True)
    (outside / "app1").mkdir()
    lay(tmp_path, 1)
    run = tmp_path / "run"
    (run / "checkpoints" / "app0" / "job0" / "way-out").symlink_to(outside)
    (run / "checkpoints" / "app1").symlink_to(outside / "app1")
    (run / "nodes" / "m2").symlink_to(outside)
    (run / "nodes" / "m0" / "logs" / "job0-attempt2-mine").mkdir()
    (run / "nodes" / "m0" / "tasks" / "job0-attempt2").mkdir(parents=True)
    every = frozenset(range(9))
    sweep(run, Due(jobs=every, apps=every))
    assert (outside / "logs" / "job0-attempt1").is_dir()
    assert (outside / "app1").is_dir()
    assert left(tmp_path) == (["job0-attempt1", "job0-attempt2-mine"], ["app1"])
    assert (run / "nodes" / "m0" / "tasks" / "job0-attempt2").is_dir()
    assert sweep(tmp_path / "absent", Due(jobs=every, apps=every)) == 0
    (tmp_path / "link").symlink_to(run)
    lay(tmp_path / "other", 1)
    (tmp_path / "other" / "link").symlink_to(tmp_path / "other" / "run")
    assert sweep(tmp_path / "other" / "link", Due(jobs=every, apps=every)) == 0


def test_a_log_of_our_own_begins_anew_when_it_is_long(tmp_path: Path) -> None:
    path = tmp_path / "agent.log"
    assert turned(path) == path
    path.write_bytes(b"short")
    turned(path)
    assert path.read_bytes() == b"short"
    with path.open("r+b") as file:
        file.truncate(MOST + 1)
    turned(path)
    assert not path.exists()
    assert (tmp_path / "agent.log.1").stat().st_size == MOST + 1


def test_apps_that_are_long_over_are_told_of_as_before(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(state_snapshots.maybe_take, "__kwdefaults__", {"every": 1})
    clock = [1000.0]

    def seen(w: World) -> list[object]:
        over = schema.AppsRequest(ended=True, user="u")
        return list(
            w.ask(
                lambda a: (
                    views.show(a, "0"),
                    views.show(a, "two"),
                    views.apps(a, over),
                    accounts.history(a, schema.HistoryRequest(), "u"),
                    accounts.usage(a, schema.UsageRequest(), "u"),
                    views.owners(a),
                    views.why(a, "two")[2],
                )
            )
        )

    with world(tmp_path, 2, clock=clock, journal_keep_s=100.0) as w:
        for name, user in (("one", "u"), ("two", "u"), ("three", "v")):
            w.ask(lambda a, name=name, user=user: submit(a, request(name, jobs=2, user=user)))
        w.finish(0)
        w.finish(1)
        w.ask(lambda a: a.cancel(1))
        w.turn(50.0)
        before = seen(w)
        assert w.executor.dismissed == []
        w.turn(60.0)
        w.ask(lambda a: a.hold(2))
        assert [is_pruned(app) for app in w.arbiter.state.app_specs] == [True, True, False]
        assert w.executor.dismissed == [0, 1, 2, 3]
        assert seen(w) == before
        w.ask(lambda a: a.resume(2))
    with world(tmp_path, 2, clock=clock, journal_keep_s=100.0) as w:
        assert seen(w) == before
        assert [name for _, name in w.executor.admitted] == ["three"]
        w.finish(4)
        w.finish(5)
        assert [entry.outcome for entry in w.arbiter.journal.apps()] == ["completed", "cancelled", "completed"]
