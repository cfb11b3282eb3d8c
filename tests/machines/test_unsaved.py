"""A job that is told to stop and loses its work says so: a save that raised is a failure, a missing checkpoint is told."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path

import pytest
from live import grant, live, revoke, script, shell

from processes import wait_until
from themis.machines.agent.messages import TaskReport
from themis.machines.engines.gang import could_not_save
from themis.machines.engines.program import AttemptEnded, Ending
from themis.model.events import JobStarted, JobStopped


@pytest.mark.slow
@pytest.mark.parametrize("own_steps", [True, False])
def test_a_save_that_raises_is_a_failure_and_says_what_is_lost(tmp_path: Path, own_steps: bool) -> None:
    with live(tmp_path / "root", script("unsaved.py", own_steps=own_steps)) as world:
        world.executor.submit(grant(1, (0,)))
        world.until(JobStarted)
        wait_until(lambda: any(world.checkpoint("").glob("step-*/state")), "it saved once")
        world.executor.submit(revoke(1))
        ended, stopped = world.until(AttemptEnded), world.until(JobStopped)
        assert "no room for the checkpoint" in world.logs()
    assert (ended.ending, ended.ending.is_failure, ended.cause) == (Ending.FAILED, True, "expired")
    assert ended.code == 1
    told = re.fullmatch(
        r"preempted at step (\d+), it could not save: (\d+) steps are lost, and the next attempt begins at step (\d+); "
        r"its log says why",
        ended.message,
    )
    assert told is not None, ended.message
    at, lost, saved = map(int, told.groups())
    assert (at - saved, lost > 0) == (lost, True)
    assert stopped.steps == (saved if own_steps else 0)


@pytest.mark.slow
def test_a_loop_that_saves_by_itself_and_raises_is_one_too(tmp_path: Path) -> None:
    with live(tmp_path / "root", script("unsaved.py", "own")) as world:
        world.executor.submit(grant(1, (0,)))
        wait_until(lambda: any(world.root.glob("nodes/*/tasks/*/reports/reports.jsonl")), "it trains")
        world.executor.submit(revoke(1))
        ended = world.until(AttemptEnded)
    assert ended.ending is Ending.FAILED
    assert ended.code == 1
    assert "it could not save" in ended.message


@pytest.mark.slow
def test_a_job_that_saves_nothing_when_it_is_told_to_stop_is_stopped_and_says_so(tmp_path: Path) -> None:
    with live(tmp_path / "root", shell("exec sleep 1000")) as world:
        world.executor.submit(grant(1, (0,)))
        world.until(JobStarted)
        world.executor.submit(revoke(1))
        ended = world.until(AttemptEnded)
    assert ended.ending is Ending.STOPPED
    assert re.fullmatch(r"preempted after \d+ s, it wrote nothing to .*/app0/job0: this work is lost", ended.message)


def test_a_save_that_failed_and_one_that_came_after_it_is_no_loss() -> None:
    report = TaskReport(task="t", steps=30.0, saved=10.0, unsaved=20.0)
    assert "at step 20, it could not save: 10 steps are lost" in could_not_save(report)
    assert could_not_save(replace(report, saved=30.0)) == ""
    assert could_not_save(replace(report, unsaved=0.0)) == ""
    assert could_not_save(None) == ""


@pytest.mark.slow
def test_ranks_that_wait_for_one_that_failed_are_not_waited_for_their_whole_grace(tmp_path: Path) -> None:
    """As in a collective, where no signal is heard; the next attempt would wait for it on top of its backoff."""
    program = shell("[ $RANK = 0 ] && sleep 0.5 && exit 3; trap '' TERM; while :; do sleep 0.2; done", grace_s=1000.0)
    with live(tmp_path / "root", program) as world:
        world.executor.submit(grant(1, (0, 1)))
        ended = world.until(AttemptEnded)
    assert (ended.ending, ended.code, ended.killed) == (Ending.FAILED, 3, True)
