"""Processes on this machine's GPUs that belong to no gang, or to a gang that does not hold the GPU, as NVML reports them.

A job placed on a GPU with a process of no gang would share it, so that GPU is withheld. A gang on a GPU that it does not hold is
reported only: if such GPUs were withheld, one user could take all of them out of service.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from themis.limits import IDS
from themis.machines.agent.messages import Intrusion, Occupied, TaskSpec
from themis.machines.agent.system import SYSTEM, clock

LOOK_S = 5.0
"""Seconds between two looks. A process counts when two looks in a row see it: one that just ended is listed for a moment."""
INIT_NAMESPACE = "pid:[4026531836]"
"""The machine's own PID namespace, in whose numbers NVML reports (the kernel's PROC_PID_INIT_INO)."""
MOST_PIDS = 16
"""Maximum number of process ids that are reported for one gang on one GPU."""
HELPERS = frozenset({"nvidia-cuda-mps", "nvidia-persiste", "dcgm", "nv-hostengine"})
"""Services of NVIDIA's that work for all jobs on a GPU, by the 15 characters that Linux keeps of a name."""


class Foreign:
    """Periodic reading from NVML of the foreign processes that use the GPUs.

    Parameters
    ----------
    devices : UUIDs of the machine's GPUs, by position; if empty, nothing is read.
    tasks_of : maps those of the given pids that belong to gangs of this machine to their tasks; called only if NVML
        reports processes.
    """

    def __init__(self, devices: Sequence[str], tasks_of: Callable[[set[int]], Mapping[int, TaskSpec]]) -> None:
        self.devices, self.tasks_of = tuple(devices), tasks_of
        self.found: tuple[Occupied, ...] = ()
        self.intrusions: tuple[Intrusion, ...] = ()
        """Processes of gangs on GPUs that other gangs may hold, at the last look. Gangs that share a GPU both hold it."""
        self._due, self._before = 0.0, [set[int]() for _ in self.devices]
        self._nvml: Any = None
        if self.devices and numbers_agree():
            with contextlib.suppress(Exception):  # no package, no driver: virtual GPUs
                import pynvml

                pynvml.nvmlInit()
                self._nvml = pynvml

    def look(self) -> tuple[Occupied, ...]:
        """Each GPU with processes of no gang, with them; every ``LOOK_S`` it is looked up again."""
        if self._nvml is None or clock() < self._due:
            return self.found
        self._due = clock() + LOOK_S
        seen = [self._on(device) for device in self.devices]
        if any(seen):
            alive = {pid for pid, _, state in SYSTEM.processes() if state not in "ZX"}
            seen = [{pid for pid in pids & alive if _name(pid) not in HELPERS} for pids in seen]
        both = [now & before for now, before in zip(seen, self._before)]
        self._before = seen
        of = self.tasks_of(set().union(*both)) if any(both) else {}
        strangers = [pids - of.keys() for pids in both]
        self.found = tuple(
            Occupied(
                gpus=(slot,),
                pids=tuple(sorted(pids))[: IDS.most],
                reason=f"not of this service, on {self.devices[slot]}",
            )
            for slot, pids in enumerate(strangers)
            if pids
        )
        elsewhere: dict[tuple[str, int], list[int]] = {}
        for slot, pids in enumerate(both):
            for pid in sorted(pids & of.keys()):
                if of[pid].slots and slot not in of[pid].slots:
                    elsewhere.setdefault((of[pid].task, slot), []).append(pid)
        self.intrusions = tuple(
            Intrusion(task=task, gpu=slot, pids=tuple(pids[:MOST_PIDS]))
            for (task, slot), pids in sorted(elsewhere.items())
        )
        return self.found

    def _on(self, device: str) -> set[int]:
        try:
            handle = self._nvml.nvmlDeviceGetHandleByUUID(device)
            return {int(found.pid) for found in self._nvml.nvmlDeviceGetComputeRunningProcesses(handle)}
        except self._nvml.NVMLError:
            return set()  # MIG, or a GPU that fell off the bus: nothing is known


def numbers_agree() -> bool:
    """True if NVML's pids are those of this process's /proc; in a container with its own PID namespace they are not."""
    try:
        return os.readlink("/proc/self/ns/pid") == INIT_NAMESPACE
    except OSError:
        return False


def _name(pid: int) -> str:
    with contextlib.suppress(OSError):
        return Path(f"/proc/{pid}/comm").read_text().strip()
    return ""
