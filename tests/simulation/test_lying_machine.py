"""What one machine sends ends at that machine: the service goes on, its journal folds, and other machines' jobs run."""

from __future__ import annotations

import json
import time
from collections.abc import Mapping

import pytest

from extremes import count
from simulation.liar import LIAR, Draw, LyingWorld, lying
from themis.machines.agent.messages import GpusOccupied, Hello, Lease, Message, Occupied, TaskState, encode
from themis.machines.engines.gangs import ORPHANS
from themis.model.events import MachineFailed
from themis.service.api.views import node_row
from themis.service.engine.journal import Journal


def _failures(world: LyingWorld) -> list[MachineFailed]:
    """The failures of machines by the journal, which is whole and folds."""
    world.service.stop()
    world.checks.at_end()
    journal = Journal(world.disk.path)
    try:
        return [record for _, record in journal.records() if isinstance(record, MachineFailed)]
    finally:
        journal.db.close()


@pytest.mark.slow
def test_messages_near_to_right_ones_end_at_their_machine_and_each_refusal_says_why() -> None:
    most = count("THEMIS_FUZZ", 2000)
    began = time.process_time()
    with lying(None, most) as world:
        failures = _failures(world)
        print(
            f"{most} messages, {sum(world.refused.values())} refused in {len(world.refused)} sentences, "
            f"{world.turns} turns, {world.given} tasks, {world.submitted} apps, {time.process_time() - began:.1f} CPU s"
        )
        assert world.refused_right == []
        assert sum(world.refused.values()) > most / 10
        assert all(reason.isprintable() and reason.endswith(".") for reason in world.refused)
        assert world.given > most / 200
        assert {failed.machine for failed in failures} == {LIAR}


def _with(message: Message, **fields: object) -> bytes:
    return json.dumps({**encode(message), **fields}).encode()


TASK = TaskState(task="job0-attempt1", phase="ended")
LIES: Mapping[str, tuple[tuple[bytes, ...], str]] = {
    "a process of number 10**30": (
        (_with(GpusOccupied(), items=[{"gpus": [0], "pids": [10**30], "reason": "x"}]),),
        "Occupied.pids is 1000000000000000000000000000000, expected a whole number",
    ),
    "seconds of 10**400": ((_with(TASK, seconds=10**400),), "TaskState.seconds is a whole number of 1329 bits"),
    "exit codes of 10**30": ((_with(TASK, codes=[10**30]),), "TaskState.codes is 1000000000000000000000000000000"),
    "a first exit code of 10**30": ((_with(TASK, first=10**30),), "TaskState.first is 1000000000000000000000000000000"),
    "a port of 10**30": ((_with(TASK, port=10**30),), "TaskState.port is 1000000000000000000000000000000, expected"),
    "a line of 100,000 brackets": ((b"[" * 100_000,), "a message is nested deeper than 8 levels"),
    "brackets that are hidden in UTF-16": (
        (('["\u2200", ' + "[" * 50_000).encode("utf-16-le"),),
        "a message is ",
    ),
    "a negative GPU": (
        (_with(GpusOccupied(), items=[{"gpus": [-1, 0, 1], "pids": [], "reason": "x"}]),),
        "Occupied.gpus is -1",
    ),
    "a GPU that it does not have": (
        (_with(GpusOccupied(items=(Occupied(gpus=(0, 2), pids=(), reason="x"),))),),
        "it names GPUs 0, 2, expected each once, from 0 to 1",
    ),
    "a GPU twice": (
        (_with(GpusOccupied(items=(Occupied(gpus=(1, 1), pids=(), reason="x"),))),),
        "it names GPUs 1, 1, expected",
    ),
    "another machine's name": (
        (_with(Hello(node="m0", trust="root")),),
        "it speaks for machine 'm0', which it may not",
    ),
    "a command of the service": ((_with(Lease(sequence=1, lease_s=9.0)),), "it sends Lease, which no machine may"),
    "a task that is no attempt": (
        (_with(TaskState(task="../x", phase="running")),),
        "it has a task '../x' that it was never given",
    ),
    "more tasks than it can have been given": (
        tuple(_with(TaskState(task=f"job{n}-attempt77", phase="running")) for n in range(ORPHANS + 1)),
        f"that it was never given, after {ORPHANS} others",
    ),
}
"""By what is wrong: lines, and the words of the answer."""


def _once(lines: tuple[bytes, ...]) -> Draw:
    return lambda number: ("wrong", b"\n".join(lines))


@pytest.mark.parametrize("lie", LIES)
def test_a_machine_that_lies_is_out_of_service_and_nodes_says_why(lie: str) -> None:
    lines, words = LIES[lie]
    with lying(_once(lines), 1, pardons=False) as world:
        assert [reason for reason in world.refused if words in reason], dict(world.refused)
        arbiter = world.service.arbiter
        assert arbiter is not None
        row = node_row(arbiter, LIAR)
        assert (row.state, words in row.rejected) == ("lost", True)
        assert [node_row(arbiter, n).state for n in (0, 1)] == ["up", "up"]
        (failed,) = _failures(world)
        assert failed.machine == LIAR
        assert words in failed.reason


@pytest.mark.slow
def test_a_machine_that_lies_three_times_stays_out_of_service_until_it_is_put_back() -> None:
    lines, _ = LIES["a negative GPU"]
    with lying(_once(lines), 3, pardons=False) as world:
        arbiter, node = world.service.arbiter, world.service.executor.gangs.nodes[LIAR]
        assert arbiter is not None
        assert sum(world.refused.values()) == 3
        world.until(lambda: node_row(arbiter, LIAR).state == "drained", "an administrator sees it")
        world.wait(100.0)
        assert node.barred_until > world.now
        world.service.kill()
        world.until(lambda: world.service.arbiter is not None, "the service is there again")
        arbiter = world.service.arbiter
        assert arbiter is not None
        row = node_row(arbiter, LIAR)
        assert (row.state, "Occupied.gpus is -1" in row.rejected) == ("drained", True)
        world.pardon()
        world.behaves = True
        world.until(lambda: node_row(arbiter, LIAR).state == "up", "it is back")
        assert node_row(arbiter, LIAR).rejected == ""
        world.end()


def test_a_machine_that_lied_once_comes_back_when_it_behaves() -> None:
    lines, _ = LIES["a negative GPU"]
    with lying(_once(lines), 1, pardons=False) as world:
        arbiter = world.service.arbiter
        assert arbiter is not None
        assert node_row(arbiter, LIAR).state == "lost"
        world.behaves = True
        world.until(lambda: node_row(arbiter, LIAR).state == "up", "it is back")
        assert node_row(arbiter, LIAR).rejected == ""
        world.end()
