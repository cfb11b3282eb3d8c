"""How each job of a cancelled app ended, and what it had: in the journal, to callers, in reports and replays."""

from __future__ import annotations

from pathlib import Path

import pytest
from fake import World, request, world

from themis.model.events import JobEnded
from themis.model.log import read_log
from themis.report.metrics import Fold
from themis.service.api import views
from themis.service.api.submission import submit
from themis.service.engine.journal import export
from themis.sim.replay import replay

SOLD = dict.fromkeys((0, 1), 10.0) | {2: 0.0}
"""GPU-seconds of each job: two run for 5 s on 2 GPUs each, one waits."""


def cancelled(w: World) -> None:
    """An app of three jobs, two of which run, is cancelled after five seconds."""
    w.ask(lambda a: submit(a, request("a", gpus=(2, 2), jobs=3)))
    w.turn()
    assert sorted(w.held()) == [0, 1]
    w.turn(5.0)
    w.ask(lambda a: a.cancel(0))


def test_jobs_that_ran_when_their_app_was_cancelled_end_as_all_others(tmp_path: Path) -> None:
    with world(tmp_path, 4, lease_s=60.0) as w:
        cancelled(w)
        ended = [r for _, r in w.arbiter.journal.records() if isinstance(r, JobEnded)]
        assert {r.job: r.gpu_seconds for r in ended} == pytest.approx(SOLD)
        assert {r.outcome for r in ended} == {"cancelled"}
        shown = w.ask(lambda a: views.show(a, "0")).jobs
        assert {j.id: (j.state, j.outcome) for j in shown} == dict.fromkeys(range(3), ("ended", "cancelled"))
        assert {j.id: 3600 * j.gpu_hours for j in shown} == pytest.approx(SOLD)


def test_gpu_time_of_a_running_job_counts_up_to_now(tmp_path: Path) -> None:
    with world(tmp_path, 4, lease_s=60.0) as w:
        w.turn(7.0)
        w.ask(lambda a: submit(a, request("a", gpus=(2, 2))))
        w.turn()
        w.turn(5.0)
        shown = w.ask(lambda a: views.show(a, "0"))
        assert [3600 * row.gpu_hours for row in (shown.app, *shown.jobs)] == pytest.approx([10.0, 10.0])


def test_reports_and_replays_tell_how_they_ended(tmp_path: Path) -> None:
    with world(tmp_path, 4, lease_s=60.0) as w:
        cancelled(w)
    log = tmp_path / "log.jsonl"
    export(tmp_path / "journal.db", log)
    assert replay(log).difference is None
    fold = Fold()
    for time, record in read_log(log):
        fold.add(time, record)
    jobs = fold.result().jobs
    assert jobs.outcome == ("cancelled",) * 3
    assert jobs.gpu_seconds.tolist() == pytest.approx(list(SOLD.values()))
    assert jobs.finish.tolist() == pytest.approx([5.0] * 3, abs=0.1)
    with world(tmp_path, 4, lease_s=60.0, clock=[1020.0]) as w:
        assert w.arbiter.state.jobs_in_system == 0
        assert [j.outcome for j in w.ask(lambda a: views.show(a, "0")).jobs] == ["cancelled"] * 3


def test_a_log_whose_command_differs_is_found(tmp_path: Path) -> None:
    with world(tmp_path, 4, lease_s=60.0) as w:
        cancelled(w)
    log, wrong = tmp_path / "log.jsonl", tmp_path / "wrong.jsonl"
    export(tmp_path / "journal.db", log)
    lines = [
        line.replace('"outcome":"cancelled","jct"', '"outcome":"failed","jct"') for line in log.read_text().splitlines()
    ]
    wrong.write_text("\n".join(lines) + "\n")
    assert wrong.read_text() != log.read_text()
    assert replay(wrong).difference is not None
