"""What is sick of a machine gets no job: GPUs that are lost or report errors, and machines whose disk is full."""

from __future__ import annotations

import threading
from pathlib import Path
from types import SimpleNamespace

import pytest
from live import grant, live, shell

from processes import wait_until
from themis.machines.agent import health
from themis.machines.agent.health import FAULTS, Health
from themis.machines.agent.messages import Occupied
from themis.machines.agent.system import System
from themis.model.events import GpusWithheld, JobStarted

DEVICES = ("GPU-a", "GPU-b")


class Disk(System):
    """A machine whose disk and clock are set."""

    def __init__(self, free: int = 1 << 40, size: int = 1 << 40, inodes: int | None = None) -> None:
        self.found, self.now = (free, size, inodes), 0.0

    def disk(self, path: Path) -> tuple[int, int, int | None]:
        return self.found

    def clock(self) -> float:
        self.now += health.LOOK_S
        return self.now


class Simulated:
    """NVML of two GPUs, simulated: faults are set."""

    NVML_ERROR_GPU_IS_LOST, NVML_ERROR_NOT_FOUND = 15, 6
    NVML_MEMORY_ERROR_TYPE_UNCORRECTED, NVML_VOLATILE_ECC, nvmlEventTypeXidCriticalError = 1, 0, 8

    class NVMLError(Exception):
        def __init__(self, value: int) -> None:
            self.value = value

        def __str__(self) -> str:
            return f"error {self.value}"

    def __init__(self) -> None:
        self.lost: dict[str, int] = {}
        self.ecc: dict[str, int] = {}
        self.rows: dict[str, tuple[int, int, int, int]] = {}
        self.xids: list[tuple[str, int]] = []
        self.hang = threading.Event()
        self.hang.set()

    def nvmlInit(self) -> None:
        pass

    def nvmlDeviceGetHandleByUUID(self, device: str) -> str:
        self.hang.wait()
        if device in self.lost:
            raise self.NVMLError(self.lost[device])
        return device

    def nvmlDeviceGetUUID(self, handle: str) -> bytes:
        return handle.encode()

    def nvmlDeviceGetTotalEccErrors(self, handle: str, kind: int, counter: int) -> int:
        if handle not in self.ecc:
            raise self.NVMLError(3)  # not supported
        return self.ecc[handle]

    def nvmlDeviceGetRemappedRows(self, handle: str) -> tuple[int, int, int, int]:
        if handle not in self.rows:
            raise self.NVMLError(3)
        return self.rows[handle]

    def nvmlEventSetCreate(self) -> str:
        return "set"

    def nvmlDeviceRegisterEvents(self, handle: str, kinds: int, events: str) -> None:
        pass

    def nvmlEventSetWait_v2(self, events: str, ms: int) -> SimpleNamespace:
        if not self.xids:
            threading.Event().wait(0.01)
            raise self.NVMLError(10)  # the time is over
        device, xid = self.xids.pop()
        return SimpleNamespace(device=device, eventData=xid)


@pytest.fixture
def nvml(monkeypatch: pytest.MonkeyPatch) -> Simulated:
    monkeypatch.setattr(health, "LOOK_S", 0.02)
    return Simulated()


def reasons(found: Health) -> dict[int, str]:
    return {item.gpus[0]: item.reason for item in found.look()}


def test_a_gpu_is_sick_while_it_is_lost_or_reports_errors_and_well_again_afterwards(
    nvml: Simulated, tmp_path: Path
) -> None:
    found = Health(tmp_path, DEVICES, System(), nvml)
    assert reasons(found) == {}
    for change, expected in (
        ({"lost": {"GPU-b": 15}}, {1: "GPU-b is lost (error 15)"}),
        ({"lost": {"GPU-a": 6}}, {0: "GPU-a is lost (error 6)"}),
        ({"ecc": {"GPU-a": 2, "GPU-b": 0}}, {0: "GPU-a has uncorrectable ECC errors; reset it"}),
        ({"rows": {"GPU-b": (1, 1, 1, 0)}}, {1: "GPU-b has rows of memory to remap; reset it"}),
        ({"rows": {"GPU-b": (1, 1, 0, 1)}}, {1: "GPU-b has rows of memory to remap; replace it"}),
        ({"lost": {"GPU-a": 999}}, {}),  # NVML does not know: nothing is said
    ):
        for name, value in change.items():
            setattr(nvml, name, value)
        wait_until(lambda expected=expected: reasons(found) == expected, lambda: str(reasons(found)))
        for name in change:
            setattr(nvml, name, {})
        wait_until(lambda: reasons(found) == {}, "it is well again")


def test_a_critical_xid_error_counts_for_an_hour_and_one_of_a_program_does_not(
    nvml: Simulated, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = Health(tmp_path, DEVICES, System(), nvml)
    nvml.xids = [("GPU-a", 79), ("GPU-b", 31), ("GPU-b", 13)]
    wait_until(
        lambda: reasons(found) == {0: "GPU-a had XID error 79 within the last hour"}, lambda: str(reasons(found))
    )
    monkeypatch.setattr(health, "XID_S", 0.0)
    wait_until(lambda: reasons(found) == {}, "the hour is over")


def test_nvml_that_hangs_is_a_fault_of_all_gpus_and_holds_up_nobody(
    nvml: Simulated, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(health, "SILENT_S", 0.3)
    found = Health(tmp_path, DEVICES, System(), nvml)
    nvml.hang.clear()
    expected = {n: f"NVML does not answer on {device}" for n, device in enumerate(DEVICES)}
    wait_until(lambda: reasons(found) == expected, lambda: str(reasons(found)))
    nvml.hang.set()
    wait_until(lambda: reasons(found) == {}, "it answers again")


@pytest.mark.parametrize(
    ("disk", "expected"),
    [
        (Disk(), ""),
        (Disk(free=10 << 20), "the disk of {} is full"),
        (Disk(free=10 << 20, size=100 << 20), ""),  # a small disk
        (Disk(inodes=3), "the disk of {} has no free inodes"),
    ],
)
def test_a_full_disk_is_a_fault_of_the_whole_machine(tmp_path: Path, disk: Disk, expected: str) -> None:
    found = Health(tmp_path, (), disk).look()
    wanted = (Occupied(gpus=(), pids=(), reason=expected.format(tmp_path), whole=True),)
    assert found == (wanted if expected else ())


def test_simulated_faults_say_so(tmp_path: Path) -> None:
    (tmp_path / FAULTS).write_text("1 XID 79\n\nnonsense\ndisk no room\n")
    one, whole = Health(tmp_path, (), Disk()).look()
    assert (one.gpus, one.reason, whole.whole, whole.reason) == ((1,), "simulated: XID 79", True, "simulated: no room")


@pytest.mark.slow
def test_an_agent_reports_a_fault_and_that_it_has_gone(tmp_path: Path) -> None:
    """A simulated fault; agent and executor are real."""
    node = tmp_path / "run" / "nodes" / "m0"
    with live(tmp_path / "run", shell("sleep 60"), 2) as world:
        world.executor.submit(grant(1, (0,)))
        world.until(JobStarted)
        (node / FAULTS).write_text("1 XID 79\n")
        found = world.until(GpusWithheld)
        assert (found.gpus, found.pids, found.reason) == ((1,), (), "simulated: XID 79")
        (node / FAULTS).write_text("disk full\n")
        assert world.until(GpusWithheld).gpus == (1,), "the job that runs may go on"
        (node / FAULTS).unlink()
        assert world.until(GpusWithheld) == GpusWithheld(machine=0, gpus=())
