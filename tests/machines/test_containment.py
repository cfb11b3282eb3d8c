"""Nothing of a gang outlives its end, however its supervisor dies and whatever its processes do: by cgroup, by PID namespace, by
neither. Real processes; each mode is skipped where the machine does not allow it."""

from __future__ import annotations

import os
import signal
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from live import LONG, SHORT, Live, grant, live, revoke, script, shell

from processes import PATIENCE_S, left_of, wait_until
from themis.errors import InputError
from themis.machines.agent import cells, means
from themis.machines.agent.cells import CGROUP, KINDS, NAMESPACE, NONE, Cell
from themis.machines.agent.system import SYSTEM
from themis.machines.engines.program import AttemptEnded, Ending, Program
from themis.model.events import JobProgress, JobReached, JobStarted, JobStopped

pytestmark = pytest.mark.slow

ESCAPES = """
import os, sys, time
if os.fork() == 0:
    os.setsid()
    if os.fork() == 0:
        for fd in range(3): os.dup2(os.open(os.devnull, os.O_RDWR), fd)
        beat = "import sys, time\\nwhile True:\\n open(sys.argv[1], 'a').write(f'{time.time()}\\\\n'); time.sleep(0.02)"
        os.execve(sys.executable, [sys.executable, "-I", "-S", "-c", beat, sys.argv[1]], {})
    os._exit(0)
while True: time.sleep(1)
"""
"""A child in a session of its own, orphaned, without environment, that writes the time into a file for ever."""
STORM = """
import os, signal, sys, time
signal.signal(signal.SIGTERM, signal.SIG_IGN)
for _ in range(10):
    if os.fork() == 0:
        os.setsid()
        while True:
            if os.fork(): os._exit(0)
open(sys.argv[1], "w").close()
while True: time.sleep(1)
"""
"""Processes that fork and exit without end, so that none lives long enough to be looked up."""


def python(text: str, *arguments: object, **more: object) -> Program:
    """A program without any of the project in it."""
    given = {"grace_s": 1.0, **more}
    return Program(argv=(sys.executable, "-I", "-S", "-c", text, *map(str, arguments)), **given)  # type: ignore[arg-type]


@pytest.fixture(params=KINDS)
def mode(request: pytest.FixtureRequest) -> str:
    """A way of containment that this machine allows."""
    return allowed(request.param)


def allowed(kind: str) -> str:
    """The same, or skip."""
    try:
        means.find(kind)
    except InputError as error:
        pytest.skip(str(error))
    return kind


@pytest.fixture
def root(tmp_path: Path) -> Iterator[Path]:
    """A folder whose processes and cgroups are all gone when the test is over."""
    yield tmp_path / "run"
    wait_until(lambda: not left_of(tmp_path), "no process was left")
    assert groups_of(tmp_path / "run") == []


def groups_of(root: Path) -> list[str]:
    """Cgroups of tasks in this folder."""
    found = means.find()
    bases = {base for base in (found.group, found.memory, found.cpu) if base}
    names = [means.name_of(root / f"nodes/m0/tasks/job{j}-attempt{a}") for j in range(3) for a in range(4)]
    return [f"{base}/{name}" for base in bases for name in names if os.path.exists(f"{base}/{name}")]


def keeper_of(world: Live, job: int = 0, attempt: int = 1) -> int:
    return int((world.root / f"nodes/m0/tasks/job{job}-attempt{attempt}/lock").read_text())


def alive(beats: Path) -> list[int]:
    """Processes that have this file among their arguments."""
    return [
        pid
        for pid, _, state in SYSTEM.processes()
        if state not in "ZX" and pid != os.getpid() and str(beats).encode() in arguments(pid)
    ]


def arguments(pid: int) -> bytes:
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes()
    except OSError:
        return b""


@pytest.fixture
def beats(tmp_path: Path) -> Iterator[Path]:
    """Where an escaped child writes; it is ended if the test failed to."""
    path = tmp_path / "beats"
    yield path
    for pid in alive(path):
        os.kill(pid, signal.SIGKILL)


def last(beats: Path) -> float:
    return float(beats.read_text().split()[-1])


def test_the_next_job_starts_after_the_last_sign_of_a_child_whose_supervisor_was_killed(
    root: Path, beats: Path, mode: str
) -> None:
    programs = {0: python(ESCAPES, beats), 1: shell("date +%s.%N > $THEMIS_CHECKPOINT_DIR/began; sleep 1000")}
    with live(root, programs, 1, settings=LONG, containment=mode) as world:
        world.executor.submit(grant(1, (0,)))
        world.until(JobStarted)
        wait_until(beats.exists, "the child wrote")
        os.kill(keeper_of(world), signal.SIGKILL)
        assert world.until(AttemptEnded).ending is Ending.NODE_LOST
        world.until(JobStopped)
        assert alive(beats) == []
        world.executor.submit(grant(1, (0,), job=1))
        world.until(JobStarted, lambda event: event.job == 1)
        began = world.checkpoint("began", job=1)
        wait_until(lambda: began.exists() and began.read_text() != "", "the next job began")
        assert last(beats) < float(began.read_text())


def test_a_child_that_escaped_is_found_by_an_agent_that_came_later(root: Path, beats: Path, mode: str) -> None:
    with live(root, python(ESCAPES, beats), 1, settings=LONG, containment=mode) as world:
        world.executor.submit(grant(1, (0,)))
        world.until(JobStarted)
        wait_until(beats.exists, "the child wrote")
        record = root / "nodes/m0/tasks/job0-attempt1/members.json"
        wait_until(
            lambda: mode != NONE or (record.exists() and all(f'"{p}"' in record.read_text() for p in alive(beats))),
            "the supervisor wrote the child down",
        )
        agent = world.executor.agents[0]
        world.executor.respawn = False
        os.kill(agent.pid, signal.SIGKILL)
        agent.wait()
        os.kill(keeper_of(world), signal.SIGKILL)
        world.executor.respawn = True
        world.until(JobStopped)
        assert alive(beats) == []


def test_processes_that_fork_and_exit_without_end_are_over_when_their_grace_is(
    root: Path, tmp_path: Path, mode: str
) -> None:
    with live(root, python(STORM, tmp_path / "begun"), 1, settings=LONG, containment=mode) as world:
        world.executor.submit(grant(1, (0,)))
        world.until(JobStarted)
        wait_until((tmp_path / "begun").exists, "the storm began")
        world.executor.submit(revoke(1))
        ended = world.until(AttemptEnded)
        world.until(JobStopped)
        assert (ended.ending, ended.killed) == (Ending.STOPPED, True)
        assert alive(tmp_path / "begun") == []


def test_processes_that_are_stopped_end_with_their_grace(root: Path, beats: Path, mode: str) -> None:
    with live(root, python(ESCAPES, beats), 1, settings=LONG, containment=mode) as world:
        world.executor.submit(grant(1, (0,)))
        world.until(JobStarted)
        wait_until(beats.exists, "the child wrote")
        for pid in alive(beats):
            os.kill(pid, signal.SIGSTOP)
        world.executor.submit(revoke(1))
        ended = world.until(AttemptEnded)
        assert (ended.ending, ended.killed) == (Ending.STOPPED, True)
        world.until(JobStopped)
        assert alive(beats) == []


def test_a_supervisor_that_hangs_holds_no_gpu_for_ever(root: Path, beats: Path) -> None:
    with live(root, python(ESCAPES, beats), 1, settings=LONG, containment=NONE) as world:
        world.executor.submit(grant(1, (0,)))
        world.until(JobStarted)
        wait_until(beats.exists, "the child wrote")
        os.kill(keeper_of(world), signal.SIGSTOP)
        world.executor.submit(revoke(1))
        assert world.until(AttemptEnded).ending is Ending.STOPPED
        world.until(JobStopped)
        assert alive(beats) == []


def test_a_job_trains_and_ends_as_ever(root: Path, mode: str) -> None:
    with live(root, script("steps.py", 20, 0.02), 2, settings=LONG, containment=mode) as world:
        world.executor.submit(grant(1, (0, 1), target=20))
        world.until(JobProgress)
        assert world.until(JobReached).steps == 20
        world.executor.submit(revoke(1, "finished"))
        world.until(JobStopped)
        assert world.executor.containment_of(0)[0] == mode


def test_a_rank_in_a_namespace_sees_its_own_processes_and_files_as_ever(root: Path) -> None:
    allowed(NAMESPACE)
    text = "id -u > $THEMIS_CHECKPOINT_DIR/uid; readlink /proc/self/ns/pid > $THEMIS_CHECKPOINT_DIR/ns; ls /proc/$$ > /dev/null"
    with live(root, shell(text), 1, settings=LONG, containment=NAMESPACE) as world:
        world.executor.submit(grant(1, (0,)))
        assert world.until(AttemptEnded).code is None
        assert world.checkpoint("uid").read_text().strip() == str(os.getuid())
        assert world.checkpoint("ns").read_text().strip() != os.readlink("/proc/self/ns/pid")


def test_a_lease_that_lapses_ends_what_escaped(root: Path, beats: Path, mode: str) -> None:
    with live(root, python(ESCAPES, beats), 1, settings=SHORT, containment=mode, respawn=False) as world:
        world.executor.submit(grant(1, (0,)))
        world.until(JobStarted)
        wait_until(beats.exists, "the child wrote")
        agent = world.executor.agents[0]
        os.kill(agent.pid, signal.SIGKILL)
        agent.wait()
        world.until(JobStopped)
        assert alive(beats) == []


# ---- cgroups by themselves -----------------------------------------------------------------------------------------------


@pytest.fixture
def cell(tmp_path: Path) -> Iterator[Cell]:
    """A cgroup of this test's own."""
    allowed(CGROUP)
    made = means.find(CGROUP).cell(tmp_path)
    yield made
    made.kill()
    wait_until(made.empty, "the cgroup is empty")
    made.remove()
    assert not os.path.exists(made.group)


@pytest.mark.parametrize("file", ["cgroup.kill", "a file that kernels before 5.14 have not"])
def test_a_cgroup_with_a_storm_in_it_is_ended(
    cell: Cell, file: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cells, "KILL", file)
    begun = tmp_path / "begun"
    if os.fork() == 0:
        try:
            cell.enter()
            os.execv(sys.executable, [sys.executable, "-I", "-S", "-c", STORM, str(begun)])
        finally:
            os._exit(1)
    wait_until(begun.exists, "the storm began")
    assert not cell.empty()
    end = time.monotonic() + PATIENCE_S
    while not cell.empty() and time.monotonic() < end:
        cell.kill()
        time.sleep(0.01)
    assert cell.empty()
    os.wait()


def test_two_tasks_of_one_name_in_two_installations_have_two_cgroups(tmp_path: Path) -> None:
    assert means.name_of(tmp_path / "a/job0-attempt1") != means.name_of(tmp_path / "b/job0-attempt1")


def test_a_containment_that_is_unknown_or_not_possible_is_refused_in_words(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(InputError, match="jail"):
        means.find("jail")
    refuse: Callable[..., str] = lambda *what: "not permitted"  # noqa: E731
    monkeypatch.setattr(means, "_tried", refuse)
    monkeypatch.setattr(means, "_tried_group", refuse)
    for kind in (CGROUP, NAMESPACE):
        with pytest.raises(InputError, match=f"containment is '{kind}', which this machine does not allow"):
            means.find(kind)
    assert means.find().containment == NONE
    assert means.find().why_not
