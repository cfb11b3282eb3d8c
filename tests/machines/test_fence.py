"""A gang can open the device nodes of its own GPUs and of no others, and start so many processes; real processes and cgroups.

Harmless devices of the kernel stand for GPUs: ``/dev/full`` and ``/dev/zero`` under other names.
"""

from __future__ import annotations

import dataclasses
import os
import stat
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from live import LONG, grant, live, revoke, shell

from processes import end_all, left_of, wait_until
from themis.machines.agent import fence, means
from themis.machines.agent.cells import CGROUP, KINDS, NONE
from themis.machines.agent.fence import Node
from themis.machines.agent.means import Means
from themis.machines.agent.system import clock
from themis.machines.agent.tasks import Task
from themis.machines.engines.hosts import Host, task_specs
from themis.machines.engines.program import AttemptEnded, Ending, Program
from themis.model.cluster import Machine
from themis.model.events import JobStarted, JobStopped

pytestmark = pytest.mark.slow

NODES = {"GPU-a": Node(1, 7), "GPU-b": Node(1, 5)}
NVML = """
import os, pathlib, themis.machines.agent.gpus
themis.machines.agent.gpus.DEVICES = pathlib.Path(os.environ["DEVICES"])
class NVMLError(Exception): pass
def nvmlInit(): pass
def nvmlDeviceGetCount(): return 2
def nvmlDeviceGetHandleByIndex(i): return i
def nvmlDeviceGetUUID(gpu): return ("GPU-a", "GPU-b")[gpu]
def nvmlDeviceGetMinorNumber(gpu): return 3 - gpu
def nvmlDeviceGetHandleByUUID(uuid): return uuid
def nvmlDeviceGetComputeRunningProcesses(handle): return []
"""
OPENS = """
for gpu in 2 3; do
    (: < $DEVICES/nvidia$gpu) 2> /dev/null && echo $gpu opened || echo $gpu refused
done
mknod $DEVICES/again c 1 5 2> /dev/null && echo made a node
: < /dev/null && echo others opened
"""


@pytest.fixture
def gpus(tmp_path: Path) -> Path:
    """A folder of device nodes: ``nvidia3`` is GPU-a's, ``nvidia2`` GPU-b's."""
    folder = tmp_path / "dev"
    folder.mkdir()
    try:
        for minor, node in zip((3, 2), NODES.values()):
            path = folder / f"nvidia{minor}"
            os.mknod(path, 0o666 | stat.S_IFCHR, os.makedev(node.major, node.minor))
            path.chmod(0o666)
            path.open("rb").close()
    except OSError:
        pytest.skip("this user can make no device nodes, or use none there")
    return folder


@pytest.fixture
def root(tmp_path: Path) -> Iterator[Path]:
    yield tmp_path / "run"
    end_all(tmp_path / "run")
    wait_until(lambda: not left_of(tmp_path), "no process was left")


@pytest.fixture(params=["v1", "v2"])
def fenced(request: pytest.FixtureRequest) -> Means:
    """The means of this machine, with one of the two ways to fence devices."""
    found = means.find()
    if request.param == "v1":
        found = dataclasses.replace(found, devices=means._v1("devices", fence.DENY, "c 195:254 m"))
    elif found.containment != CGROUP or means._tried_group(found.group, "fence"):
        pytest.skip("this machine has no cgroup v2 with eBPF programs that this user may use")
    else:
        found = dataclasses.replace(found, devices=found.group)
    if not found.devices:
        pytest.skip("this machine has no devices controller of cgroup v1 that this user may use")
    return dataclasses.replace(found, nodes=NODES)


def ran(root: Path, found: Means, gpu: int, program: Program) -> str:
    """The output of a job on one of the two GPUs of a machine, by its real supervisor."""
    host = Host(machine=Machine(name="m0", gpus=2), devices=tuple(NODES))
    spec = task_specs(grant(1 + gpu, (gpu,)), program, [host], str(root / "checkpoints"), 1 << 20)[0]
    task = Task.prepare(root, spec, clock() + 1000.0, allow_root=True, means=found)
    wait_until(lambda: task.state().phase == "prepared", "it was prepared")
    task.send({"go": {}})
    wait_until(lambda: task.state().phase == "ended" and not task.alive(), "it ended")
    output = task.log.read_text()
    folders = task.cell.folders
    assert folders
    assert not any(map(os.path.exists, folders))
    task.remove()
    return output


def test_a_job_opens_its_own_gpu_and_is_refused_the_others(root: Path, gpus: Path, fenced: Means) -> None:
    program = shell(OPENS, env={"DEVICES": str(gpus)})
    assert ran(root, fenced, 0, program).split("\n")[:3] == ["2 refused", "3 opened", "others opened"]
    assert ran(root, fenced, 1, program).split("\n")[:3] == ["2 opened", "3 refused", "made a node"]


def test_agents_learn_the_device_nodes_of_their_gpus_and_fence_all_gangs(
    root: Path, gpus: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if "devices" not in means.find(NONE).limits:
        pytest.skip("this machine has no devices controller of cgroup v1 that this user may use")
    (tmp_path / "nvml").mkdir()
    (tmp_path / "nvml/pynvml.py").write_text(NVML)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path / "nvml"), prepend=os.pathsep)
    monkeypatch.setenv("DEVICES", str(gpus))
    program = shell(OPENS, env={"DEVICES": str(gpus)})
    with live(root, {0: program, 1: program}, 2, settings=LONG, devices=tuple(NODES), containment=NONE) as world:
        for job in range(2):
            world.executor.submit(grant(1, (job,), job=job))
            assert world.until(AttemptEnded).ending is Ending.FINISHED
            log = world.root / f"nodes/m0/logs/job{job}-attempt1/rank-0.log"
            assert log.read_text().split("\n")[:2] == [["2 refused", "3 opened"], ["2 opened", "3 refused"]][job]


def test_a_gang_one_of_whose_gpus_is_not_known_has_no_fence() -> None:
    assert Means(nodes=NODES).fenced_off(("MIG-c",)) == set()
    assert Means(nodes=NODES).fenced_off(("",)) == set()
    assert Means(nodes={**NODES, "MIG-c": NODES["GPU-a"]}).fenced_off(("MIG-c",)) == {NODES["GPU-b"]}


BOMB = """
import os, sys, time
until = time.monotonic() + 5.0
made = 0
while time.monotonic() < until:
    try:
        if os.fork() == 0:
            made = 0
        else:
            made += 1
    except BlockingIOError:
        time.sleep(0.1)
"""
"""Processes that start processes, for five seconds."""


@pytest.mark.parametrize("mode", KINDS)
def test_a_fork_bomb_ends_at_its_gang(root: Path, mode: str) -> None:
    if "processes" not in means.find(mode).limits:
        pytest.skip("this machine has no pids controller that this user may use")
    settings = dataclasses.replace(LONG, processes=32)
    # Without its cgroup it must not begin.
    guard = 'grep -q themis- /proc/self/cgroup || exit 1; exec "$0" -I -S -c "$1"'
    bomb = Program(argv=("sh", "-c", guard, sys.executable, BOMB), grace_s=1.0)
    with live(root, {0: bomb, 1: shell("sleep 1000")}, 4, settings=settings, containment=mode) as world:
        world.executor.submit(grant(1, (2, 3), job=1))
        world.until(JobStarted, lambda event: event.job == 1)
        world.executor.submit(grant(1, (0, 1)))
        world.until(JobStarted, lambda event: event.job == 0)
        folder = Path(means.find(mode).processes, means.name_of(root / "nodes/m0/tasks/job0-attempt1"))
        wait_until(lambda: "max 0" not in (folder / "pids.events").read_text(), "it had as many as it may")
        assert int((folder / "pids.max").read_text()) == 64
        assert int((folder / "pids.current").read_text()) <= 64
        # The other job, and what starts others, go on.
        assert '"phase": "running"' in (root / "nodes/m0/tasks/job1-attempt1/status.json").read_text()
        world.executor.submit(revoke(1, job=1))
        world.until(JobStopped, lambda event: event.job == 1)
        world.executor.submit(revoke(1))
        world.until(JobStopped, lambda event: event.job == 0)
        assert "it had as many processes and threads as it may have on this machine, 64, and " in world.logs()
        assert not folder.exists()


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can run a job as another user")
def test_a_job_of_another_user_runs_in_a_service_that_was_started_with_a_strict_umask(
    root: Path, tmp_path: Path
) -> None:
    for folder in (tmp_path, *tmp_path.parents[:3]):
        if folder != Path("/tmp"):
            folder.chmod(0o755)
    program = shell("cat $THEMIS_RUN_DIR/stop; echo saved > $THEMIS_CHECKPOINT_DIR/here && umask", user="nobody")
    before = os.umask(0o077)
    try:
        with live(root, program, 1, settings=LONG) as world:
            world.executor.submit(grant(1, (0,)))
            assert world.until(AttemptEnded).ending is Ending.FINISHED
            assert "0022" in world.logs()
            assert world.checkpoint("here").read_text() == "saved\n"
    finally:
        os.umask(before)
