"""What a job asks for of memory and CPUs is its limit where the machine has the controllers; real processes."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from live import LONG, grant, live, revoke, shell

from processes import left_of, wait_until
from themis.errors import InputError
from themis.machines.agent import means
from themis.machines.agent.cells import KINDS
from themis.machines.engines.program import AttemptEnded, Ending, Program
from themis.model.events import JobStarted, JobStopped

pytestmark = pytest.mark.slow

GREEDY = """
import time
time.sleep(0.3)
held = bytearray(300 << 20)
for i in range(0, len(held), 4096): held[i] = 1
time.sleep(1000)
"""
CHILD = (
    "import subprocess, sys, time\nsubprocess.run([sys.executable, '-I', '-S', '-c', sys.argv[1]])\n"
    "while True: time.sleep(1)"
)
"""A rank that goes on when its child is killed."""


def python(text: str, *arguments: str, **more: object) -> Program:
    given = {"grace_s": 1.0, **more}
    return Program(argv=(sys.executable, "-I", "-S", "-c", text, *arguments), **given)  # type: ignore[arg-type]


@pytest.fixture(params=KINDS)
def mode(request: pytest.FixtureRequest) -> str:
    """A way of containment that this machine allows, with both limits."""
    try:
        found = means.find(request.param)
    except InputError as error:
        pytest.skip(str(error))
    if not {"memory", "cpus"} <= {*found.limits}:
        pytest.skip("this machine has no controllers of memory and CPUs that this user may use")
    return str(request.param)


@pytest.fixture
def root(tmp_path: Path) -> Iterator[Path]:
    yield tmp_path / "run"
    wait_until(lambda: not left_of(tmp_path), "no process was left")


@pytest.mark.parametrize("program", [python(GREEDY, memory=32 << 20), python(CHILD, GREEDY, memory=32 << 20)])
def test_a_job_that_exceeds_its_memory_is_killed_alone_and_says_so(root: Path, mode: str, program: Program) -> None:
    with live(root, {0: program, 1: shell("sleep 1000", memory=32 << 20)}, 4, settings=LONG, containment=mode) as world:
        world.executor.submit(grant(1, (2, 3), job=1))
        world.until(JobStarted, lambda event: event.job == 1)
        # Two GPUs: twice the memory that it asks for for each.
        world.executor.submit(grant(1, (0, 1)))
        ended = world.until(AttemptEnded)
        assert (ended.job, ended.ending, ended.cause) == (0, Ending.FAILED, "memory")
        assert ended.message == "it exceeded its memory, 64 MiB on this machine, and was killed; see memory"
        world.until(JobStopped)
        assert ended.message in world.logs()
        other = root / "nodes/m0/tasks/job1-attempt1/status.json"
        assert '"phase": "running"' in other.read_text()
        world.executor.submit(revoke(1, job=1))
        world.until(JobStopped)


def test_a_job_that_keeps_within_its_memory_ends_well(root: Path, mode: str) -> None:
    with live(root, python("held = bytearray(20 << 20)", memory=256 << 20, cpus=1.0), 1, containment=mode) as world:
        world.executor.submit(grant(1, (0,)))
        assert world.until(AttemptEnded).ending is Ending.FINISHED


def test_the_kernel_throttles_a_job_that_wants_more_cpus_than_it_asked_for(root: Path, mode: str) -> None:
    with live(root, python("while True: pass", cpus=0.1), 1, settings=LONG, containment=mode) as world:
        world.executor.submit(grant(1, (0,)))
        world.until(JobStarted)
        found = means.find(mode)
        own = means.name_of(root / "nodes/m0/tasks/job0-attempt1")
        stat = Path(found.cpu, own, "cpu.stat")
        wait_until(lambda: throttled(stat) > 0, "it was throttled")
        world.executor.submit(revoke(1))
        world.until(JobStopped)
        assert not os.path.exists(stat)


def throttled(stat: Path) -> int:
    rows = dict(line.split() for line in stat.read_text().splitlines())
    return int(rows["nr_throttled"])
