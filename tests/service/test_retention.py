"""What a home drops when it is old, and what it never does."""

from __future__ import annotations

from pathlib import Path

import pytest
from fake import World, world
from test_arbiter import enter

from themis.model.events import JobStopped
from themis.node.logfile import MOST, turned
from themis.service.retention import EVERY_S, Due, due, sweep

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
    w.arbiter.upkeep.sweeper.at = w.arbiter.now()
    w.turn(0.1)
    assert w.arbiter.upkeep.sweeper.at == pytest.approx(w.arbiter.now() + EVERY_S, abs=0.1)
    w.arbiter.upkeep.sweeper.thread.join(30.0)
    assert not w.arbiter.upkeep.sweeper.thread.is_alive()


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
        assert due(w.arbiter, w.arbiter.now() + 2 * KEEP) == Due(jobs=frozenset(), apps=frozenset())
        w.say(JobStopped(job=0, attempt=1, steps=100.0))
        assert due(w.arbiter, w.arbiter.now() + 2 * KEEP) == Due(jobs=frozenset({0}), apps=frozenset({0}))


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
