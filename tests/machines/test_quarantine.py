"""GPUs on which a process is that belongs to no gang are withheld, and are given back when it is gone. Real processes.

A process that SIGKILL does not end is made with the freezer of cgroup v1, as a driver that hangs would make it. NVML is a
stand-in, which reports the processes that the test names.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from live import LONG, grant, live, revoke, shell

from processes import left_of, wait_until
from themis.errors import InputError
from themis.machines.agent import means
from themis.machines.agent.cells import KINDS, NONE
from themis.machines.agent.foreign import numbers_agree
from themis.machines.agent.system import SYSTEM
from themis.machines.engines.program import AttemptEnded, Ending, GangIntrudes
from themis.model.events import GpusWithheld, JobStarted, JobStopped

pytestmark = pytest.mark.slow

NVML = """
import json, os
class NVMLError(Exception): pass
class Process:
    def __init__(self, pid): self.pid = pid
def nvmlInit(): pass
def nvmlDeviceGetHandleByUUID(uuid): return uuid
def nvmlDeviceGetComputeRunningProcesses(handle):
    return [Process(pid) for pid in json.load(open(os.environ["NVML_SAYS"])).get(handle, [])]
"""


@pytest.fixture
def freezer(tmp_path: Path) -> Iterator[Path]:
    """A group of the freezer of cgroup v1, of this test's own."""
    own = means.own_group("freezer")
    folder = own / f"themis-test-{os.getpid()}" if own else None
    try:
        assert folder is not None
        folder.mkdir()
    except (AssertionError, OSError):
        pytest.skip("the freezer of cgroup v1 is not here, or cannot be used")
    yield folder
    (folder / "freezer.state").write_text("THAWED")
    wait_until(lambda: not (folder / "cgroup.procs").read_text().strip(), "the group is empty")
    folder.rmdir()


@pytest.mark.parametrize("mode", KINDS)
def test_a_gpu_with_a_process_that_cannot_be_ended_is_withheld_until_it_is_gone(
    tmp_path: Path, freezer: Path, mode: str
) -> None:
    try:
        means.find(mode)
    except InputError as error:
        pytest.skip(str(error))
    says = "setsid sleep 1000 & wait"
    with live(tmp_path / "run", {0: shell(says), 1: shell("sleep 1000")}, 2, settings=LONG, containment=mode) as world:
        world.executor.submit(grant(1, (1,)))
        world.until(JobStarted)
        keeper = int((world.root / "nodes/m0/tasks/job0-attempt1/lock").read_text())
        wait_until(lambda: sleeper(keeper) is not None, "the child began")
        child = sleeper(keeper)
        (freezer / "cgroup.procs").write_text(str(child))
        (freezer / "freezer.state").write_text("FROZEN")
        wait_until(lambda: (freezer / "freezer.state").read_text().strip() == "FROZEN", "the child is frozen")
        if mode == NONE:
            os.kill(keeper, signal.SIGKILL)
        else:
            world.executor.submit(revoke(1))
        withheld = world.until(GpusWithheld)
        assert (withheld.machine, withheld.gpus) == (0, (1,))
        assert child in withheld.pids
        assert "job0-attempt1" in withheld.reason
        ended = world.until(AttemptEnded)
        assert ended.ending is (Ending.NODE_LOST if mode == NONE else Ending.STOPPED)
        world.until(JobStopped)
        # An arbiter that is told of the end may say that nothing is to be remembered; the process is remembered.
        world.executor.recorded(0, 1)
        (freezer / "freezer.state").write_text("THAWED")
        assert world.until(GpusWithheld) == GpusWithheld(machine=0, gpus=())
        wait_until(lambda: not (world.root / "nodes/m0/tasks/job0-attempt1").exists(), "the task was forgotten")
    wait_until(lambda: not left_of(tmp_path), "no process was left")


def sleeper(keeper: int) -> int | None:
    """The gang's process that sleeps in a session of its own, as this machine counts."""
    for pid in SYSTEM.descendants(keeper):
        try:
            if Path(f"/proc/{pid}/cmdline").read_bytes().startswith(b"sleep\0001000") and os.getsid(pid) == pid:
                return pid
        except OSError:
            continue
    return None


def nvml(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    """A stand-in for NVML in the agents; the function says which processes are on which GPU."""
    if not numbers_agree():
        pytest.skip("NVML's pids mean nothing in a PID namespace of its own")
    (tmp_path / "nvml").mkdir()
    (tmp_path / "nvml/pynvml.py").write_text(NVML)
    says = tmp_path / "says.json"

    def report(**processes: list[int]) -> None:
        says.with_suffix(".new").write_text(json.dumps(processes))
        says.with_suffix(".new").replace(says)

    report()
    monkeypatch.setenv("PYTHONPATH", str(tmp_path / "nvml"), prepend=os.pathsep)
    monkeypatch.setenv("NVML_SAYS", str(says))
    return report


def test_a_gpu_with_a_process_that_is_no_jobs_is_withheld_and_one_with_a_jobs_is_not(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    report = nvml(tmp_path, monkeypatch)
    with (
        subprocess.Popen(["sleep", "1000"]) as stranger,
        live(tmp_path / "run", shell("exec sleep 1000"), 2, settings=LONG, devices=("GPU0", "GPU1")) as world,
    ):
        world.executor.submit(grant(1, (0,)))
        world.until(JobStarted)
        (rank,) = json.loads(world.status())["pids"]
        report(GPU0=[rank], GPU1=[stranger.pid, 1 << 22])
        withheld = world.until(GpusWithheld)
        assert (withheld.gpus, withheld.pids) == ((1,), (stranger.pid,))
        stranger.kill()
        stranger.wait()
        assert world.until(GpusWithheld) == GpusWithheld(machine=0, gpus=())
        world.executor.submit(revoke(1))
        world.until(JobStopped)


def test_a_gang_on_a_gpu_that_it_does_not_hold_is_named_and_no_gpu_is_withheld(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    report = nvml(tmp_path, monkeypatch)
    programs = {job: shell("sleep 1000 & wait") for job in range(3)}
    with live(tmp_path / "run", programs, 3, settings=LONG, devices=("GPU0", "GPU1", "GPU2")) as world:
        # Jobs 1 and 2 share a GPU, each with a seat of its own.
        for job, gpus in ((0, (0,)), (1, (1, 2)), (2, (1, 2))):
            world.executor.submit(replace(grant(1, gpus, job=job), seat=job // 2))
            world.until(JobStarted, lambda event, job=job: event.job == job)
        keepers = [int((world.root / f"nodes/m0/tasks/job{job}-attempt1/lock").read_text()) for job in range(3)]
        wait_until(
            lambda: [len(SYSTEM.descendants(keeper)) >= 2 for keeper in keepers] == [True] * 3, "each has a child"
        )
        own = [max(SYSTEM.descendants(keeper)) for keeper in keepers]
        report(GPU0=[own[0]], GPU1=[own[0], own[1], own[2]], GPU2=own[1:])
        found = world.until(GangIntrudes)
        assert found == GangIntrudes(app=0, job=0, attempt=1, machine=0, gpus=(1,), pids=(own[0],))
        report(GPU0=[own[0]], GPU1=own[1:], GPU2=own[1:])
        assert world.until(GangIntrudes) == replace(found, gpus=(), pids=())
        assert not [event for event in world.heard if isinstance(event, GpusWithheld)]
        for job in range(3):
            world.executor.submit(revoke(1, job=job))
            world.until(JobStopped)
