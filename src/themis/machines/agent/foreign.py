"""Processes on this machine's GPUs that belong to no gang, as NVML reports them: a job placed there would share its GPU."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from themis.limits import IDS
from themis.machines.agent.messages import Occupied
from themis.machines.agent.system import SYSTEM, clock

LOOK_S = 5.0
"""Seconds between two looks. A process counts when two looks in a row see it: one that just ended is listed for a moment."""
INIT_NAMESPACE = "pid:[4026531836]"
"""The machine's own PID namespace, in whose numbers NVML reports (the kernel's PROC_PID_INIT_INO)."""
HELPERS = frozenset({"nvidia-cuda-mps", "nvidia-persiste", "dcgm", "nv-hostengine"})
"""Services of NVIDIA's that work for all jobs on a GPU, by the 15 characters that Linux keeps of a name."""


class Foreign:
    """What NVML says of some GPUs, looked at now and then.

    Parameters
    ----------
    devices : UUIDs of the machine's GPUs, by position; without any, nothing is looked at.
    ours : pids of every process of this machine's gangs; asked only where NVML reports processes.
    """

    def __init__(self, devices: Sequence[str], ours: Callable[[], set[int]]) -> None:
        self.devices, self.ours = tuple(devices), ours
        self.found: tuple[Occupied, ...] = ()
        self._due, self._before = 0.0, [set[int]() for _ in self.devices]
        self._nvml: Any = None
        if self.devices and numbers_agree():
            with contextlib.suppress(Exception):  # no package, no driver: virtual GPUs
                import pynvml

                pynvml.nvmlInit()
                self._nvml = pynvml

    def look(self) -> tuple[Occupied, ...]:
        """Each GPU that has such processes, with them; looked up anew every ``LOOK_S``."""
        if self._nvml is None or clock() < self._due:
            return self.found
        self._due = clock() + LOOK_S
        seen = [self._on(device) for device in self.devices]
        if any(seen):
            ours = self.ours()
            names = {pid: _name(pid) for pid, _, state in SYSTEM.processes() if state not in "ZX" and pid not in ours}
            seen = [{pid for pid in pids if pid in names and names[pid] not in HELPERS} for pids in seen]
        both = [now & before for now, before in zip(seen, self._before)]
        self._before = seen
        self.found = tuple(
            Occupied(
                gpus=(slot,),
                pids=tuple(sorted(pids))[: IDS.most],
                reason=f"not of this service, on {self.devices[slot]}",
            )
            for slot, pids in enumerate(both)
            if pids
        )
        return self.found

    def _on(self, device: str) -> set[int]:
        try:
            handle = self._nvml.nvmlDeviceGetHandleByUUID(device)
            return {int(found.pid) for found in self._nvml.nvmlDeviceGetComputeRunningProcesses(handle)}
        except self._nvml.NVMLError:
            return set()  # MIG, or a GPU that fell off the bus: nothing is known


def numbers_agree() -> bool:
    """Whether NVML's pids are those of this process's /proc; in a container with a PID namespace of its own they are not."""
    try:
        return os.readlink("/proc/self/ns/pid") == INIT_NAMESPACE
    except OSError:
        return False


def _name(pid: int) -> str:
    with contextlib.suppress(OSError):
        return Path(f"/proc/{pid}/comm").read_text().strip()
    return ""
