"""Idle time of the GPUs of this machine's gangs by NVML's utilisation: no kernel ran in its last sample."""

from __future__ import annotations

import contextlib
from collections.abc import Mapping, Sequence
from typing import Any

from themis.machines.agent.messages import TaskIdle
from themis.machines.agent.system import clock

LOOK_S = 5.0
"""Seconds between two samples; each represents the time since the one before it, at most this long."""


class Idleness:
    """Periodic reading of the GPUs' utilisation from NVML.

    Parameters
    ----------
    devices : UUIDs of the machine's GPUs, by position; if empty, nothing is measured.
    """

    def __init__(self, devices: Sequence[str]) -> None:
        self.devices = tuple(devices)
        self._due = self._before = 0.0
        self._busy_at: dict[str, list[float]] = {}
        self._nvml: Any = None
        if self.devices:
            with contextlib.suppress(Exception):  # no package, no driver: virtual GPUs
                import pynvml

                pynvml.nvmlInit()
                self._nvml = pynvml if hasattr(pynvml, "nvmlDeviceGetUtilizationRates") else None

    def look(self, tasks: Mapping[str, tuple[int, ...]]) -> list[TaskIdle]:
        """Idle times to report for the running tasks (name to positions of their GPUs); empty between two
        measurements."""
        now = clock()
        if self._nvml is None or now < self._due:
            return []
        passed, self._before, self._due = min(now - self._before, 2 * LOOK_S), now, now + LOOK_S
        used = {slot: self._used(slot) for slot in sorted({slot for slots in tasks.values() for slot in slots})}
        out = []
        self._busy_at = {task: at for task, at in self._busy_at.items() if task in tasks}
        for task, slots in tasks.items():
            known = [used[slot] for slot in slots]
            if None in known:
                continue
            new = task not in self._busy_at
            before = [now] * len(slots) if new else self._busy_at[task]
            self._busy_at[task] = [now if busy else at for busy, at in zip(known, before)]
            idle = 0.0 if new else sum(passed for busy in known if not busy)
            out.append(TaskIdle(task=task, gpu_seconds=idle, each_s=tuple(now - at for at in self._busy_at[task])))
        return out

    def _used(self, slot: int) -> bool | None:
        """True if a kernel ran; None where NVML does not know, as of a part of a GPU (MIG)."""
        if slot >= len(self.devices):
            return None
        try:
            handle = self._nvml.nvmlDeviceGetHandleByUUID(self.devices[slot])
            return bool(self._nvml.nvmlDeviceGetUtilizationRates(handle).gpu > 0)
        except self._nvml.NVMLError:
            return None
