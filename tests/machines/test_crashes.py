"""What happens when something is killed: nothing is lost, nothing runs twice, nothing is left."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from live import grant, live, revoke, script, shell

from processes import left_of, ranks_of, wait_until
from themis.machines.engines.program import AttemptEnded, Ending
from themis.model.events import JobProgress, JobReached, JobStarted, JobStopped, MachineFailed, MachineReturned

pytestmark = pytest.mark.slow

DEEP = "(setsid sh -c 'sleep 1000' &) ; sleep 1000 & wait"
"""A job with a child in a session of its own, orphaned at once."""


@pytest.fixture
def root(tmp_path: Path) -> Iterator[Path]:
    """A folder whose processes are all gone when the test is over."""
    yield tmp_path
    wait_until(lambda: not left_of(tmp_path), "no process was left")


def kill_agent(world: object, n: int = 0) -> None:
    """kill -9."""
    agent = world.executor.agents[n]  # type: ignore[attr-defined]
    os.kill(agent.pid, signal.SIGKILL)
    agent.wait()


def test_after_kill_9_of_the_agent_nothing_is_left_once_lease_and_grace_are_over(root: Path) -> None:
    with live(root, shell(DEEP), respawn=False) as world:
        world.executor.submit(grant(1, (0, 1)))
        world.until(JobStarted)
        wait_until(lambda: len(left_of(root)) >= 8, "the shells started their children")
        kill_agent(world)
        world.until(MachineFailed)
        ended, _ = world.until(AttemptEnded), world.until(JobStopped)
        assert (ended.ending, ended.ending.is_failure) == (Ending.NODE_LOST, False)
        # The arbiter counts the GPUs as free now; nothing may be on them.
        assert left_of(root) == []


def test_an_agent_that_is_started_again_finds_its_gangs_running(root: Path) -> None:
    with live(root, script("steps.py", 60, 0.05)) as world:
        world.executor.submit(grant(1, (0, 1), target=60))
        world.until(JobProgress)
        kill_agent(world)
        assert world.until(JobReached).steps == 60
        assert not [e for e in world.heard if isinstance(e, MachineFailed | JobStopped)]
        assert world.checkpoint("history").read_text() == "0 2\n", "it was not restarted"
        world.executor.submit(revoke(1, "finished"))
        world.until(JobStopped)


def test_what_ended_while_the_agent_was_away_is_reported_once(root: Path) -> None:
    with live(root, shell("sleep 0.7; exit 5"), respawn=False) as world:
        world.executor.submit(grant(1, (0,)))
        world.until(JobStarted)
        kill_agent(world)
        wait_until(lambda: '"phase": "ended"' in world.status(), "it ended by itself")
        world.executor.respawn = True
        ended = world.until(AttemptEnded)
        assert (ended.ending, ended.code) == (Ending.FAILED, 5)
        world.until(JobStopped)
        time.sleep(1.0)
        assert world.queue.empty()


def test_an_arbiter_that_comes_back_within_the_lease_finds_its_gangs(root: Path) -> None:
    program = script("steps.py", 100, 0.05)
    with live(root, program, sweep=False) as first:
        first.executor.submit(grant(1, (0, 1), target=100))
        first.until(JobProgress)
        first.executor.close(stop_jobs=False)
    with live(root, program, restored=[(grant(1, (0, 1), target=100), 0.0)]) as second:
        assert second.until(JobReached).steps == 100
        assert not [e for e in second.heard if isinstance(e, MachineFailed | JobStopped)]
        assert second.checkpoint("history").read_text() == "0 2\n"


def test_gangs_that_no_arbiter_knows_are_stopped(root: Path) -> None:
    with live(root, shell("sleep 1000"), sweep=False) as first:
        first.executor.submit(grant(1, (0,)))
        first.until(JobStarted)
        first.executor.close(stop_jobs=False)
    with live(root, shell("sleep 1000")) as second:
        wait_until(
            lambda: not (root / "nodes/m0/tasks/job0-attempt1").exists(), "the old gang was stopped and forgotten"
        )
        assert second.queue.empty()


def test_a_killed_keeper_takes_its_ranks_along_and_the_rest_is_swept(root: Path) -> None:
    with live(root, shell(DEEP)) as world:
        world.executor.submit(grant(1, (0,)))
        world.until(JobStarted)
        keeper = next(p for p in left_of(root) if b"keeper.py" in Path(f"/proc/{p}/cmdline").read_bytes())
        os.kill(keeper, signal.SIGKILL)
        assert world.until(AttemptEnded).ending is Ending.NODE_LOST
        assert not ranks_of(root)


def test_another_installations_task_of_the_same_name_is_left_alone(root: Path) -> None:
    with live(root / "one", shell(DEEP)) as one, live(root / "two", shell(DEEP)) as two:
        for world in (one, two):
            world.executor.submit(grant(1, (0,)))
            world.until(JobStarted)
        wait_until(lambda: len(ranks_of(root / "two")) >= 3, "the shell started its children")
        before = ranks_of(root / "two")
        keeper = next(p for p in left_of(root / "one") if b"keeper.py" in Path(f"/proc/{p}/cmdline").read_bytes())
        os.kill(keeper, signal.SIGKILL)
        assert one.until(AttemptEnded).ending is Ending.NODE_LOST
        assert not ranks_of(root / "one")
        assert ranks_of(root / "two") == before


def test_a_machine_whose_agent_hangs_loses_its_lease_and_returns_when_it_wakes(root: Path) -> None:
    with live(root, shell("sleep 1000"), 1, 1) as world:
        world.executor.submit(grant(1, (0, 1)))
        world.until(JobStarted)
        agent = world.executor.agents[1].pid
        os.kill(agent, signal.SIGSTOP)
        try:
            assert world.until(MachineFailed).machine == 1
            world.executor.submit(revoke(1, "failed"))
            world.until(JobStopped)
            assert not ranks_of(root)
        finally:
            os.kill(agent, signal.SIGCONT)
        assert world.until(MachineReturned).machine == 1
        world.executor.submit(grant(2, (1,)))
        world.until(JobStarted)
