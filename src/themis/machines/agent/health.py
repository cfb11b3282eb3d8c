"""Health of this machine: GPUs that NVML reports as lost or faulty, and a full disk. Sick GPUs get no job.

A GPU is sick while NVML does not find it, while it has uncorrectable ECC errors since the driver was loaded or rows of memory to
remap at its next reset, and for ``XID_S`` after a critical XID error that a program cannot cause by itself (NVIDIA's guide to XID
errors). NVML may hang on a sick GPU, so a separate thread asks it.

Where the file ``ROOT/simulated-faults`` is, each of its lines is a simulated fault, for tests and drills: a GPU's position, or
``disk``, and the words for it.
"""

from __future__ import annotations

import contextlib
import math
import threading
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from themis.machines.agent.messages import Occupied
from themis.machines.agent.system import System, clock

LOOK_S = 5.0
"""Between two looks."""
XID_S = 3600.0
SILENT_S = 120.0
"""Seconds without an answer after which NVML counts as hung."""
FROM_PROGRAMS = frozenset({13, 31, 43, 45, 68, 109})
"""XID errors that a program's own mistake or end causes."""
ROOM, PART, INODES = 64 << 20, 50, 200
"""A disk is full with less than this, and less than a part of its size (1 / PART), or with fewer free inodes."""
FAULTS = "simulated-faults"
MOST_WORDS = 200


def is_full(free: int, size: int) -> bool:
    """True if a disk with this many free and total bytes counts as full."""
    return free < min(ROOM, size // PART)


class Health:
    """Health checks of a machine.

    Parameters
    ----------
    root : the agent's folder; its disk is checked. ``devices`` : UUIDs of the machine's GPUs, empty if virtual.
    nvml : the module ``pynvml``, or its substitute in a test.
    """

    def __init__(self, root: Path, devices: Sequence[str], system: System, nvml: Any = None) -> None:
        self.root, self.system = root, system
        self.found: tuple[Occupied, ...] = ()
        self._due = -math.inf
        self._watch = _Watch(tuple(devices), nvml) if devices else None

    def look(self) -> tuple[Occupied, ...]:
        """GPUs that should get no job, with the reason; refreshed every ``LOOK_S``."""
        if self.system.clock() < self._due:
            return self.found
        self._due = self.system.clock() + LOOK_S
        sick = dict(self._watch.sick()) if self._watch is not None else {}
        whole = self._disk()
        for word, words in self._simulated():
            if word == "disk":
                whole = words
            elif word.isdecimal():
                sick[int(word)] = words
        out = [Occupied(gpus=(slot,), pids=(), reason=reason) for slot, reason in sorted(sick.items())]
        if whole:
            out.append(Occupied(gpus=(), pids=(), reason=whole, whole=True))
        self.found = tuple(out)
        return self.found

    def _disk(self) -> str:
        with contextlib.suppress(OSError):
            free, size, inodes = self.system.disk(self.root)
            if is_full(free, size):
                return f"the disk of {self.root} is full"
            if inodes is not None and inodes < INODES:
                return f"the disk of {self.root} has no free inodes"
        return ""

    def _simulated(self) -> list[tuple[str, str]]:
        try:
            lines = (self.root / FAULTS).read_text(errors="replace").splitlines()[:MOST_WORDS]
        except OSError:
            return []
        parts = [line.partition(" ") for line in lines if line.strip()]
        return [(word, f"simulated: {words.strip()[:MOST_WORDS] or 'fault'}") for word, _, words in parts]


class _Watch:
    """NVML, asked by a thread."""

    def __init__(self, devices: tuple[str, ...], nvml: Any) -> None:
        self.devices = devices
        self._sick: dict[int, str] = {}
        self._xids: dict[int, tuple[int, float]] = {}
        """By position: the last error and its time."""
        self._at = math.inf
        self._nvml, self._events = nvml, None
        self._watched: set[int] = set()
        if nvml is None:
            with contextlib.suppress(Exception):  # no package: virtual GPUs
                import pynvml

                self._nvml = pynvml
        if self._nvml is not None:
            try:
                self._nvml.nvmlInit()
            except Exception:  # no driver
                return
            self._at = clock()
            threading.Thread(target=self._run, name="themis-health", daemon=True).start()

    def sick(self) -> dict[int, str]:
        """Reasons why GPUs should get no job, by position."""
        if clock() > self._at + SILENT_S:
            return {slot: f"NVML does not answer on {device}" for slot, device in enumerate(self.devices)}
        return self._sick

    def _run(self) -> None:
        while True:
            sick = {slot: why for slot, device in enumerate(self.devices) if (why := self._look(slot, device))}
            self._sick, self._at = sick, clock()
            self._wait()

    def _look(self, slot: int, device: str) -> str:
        nvml = self._nvml
        try:
            handle = nvml.nvmlDeviceGetHandleByUUID(device)
        except nvml.NVMLError as error:
            lost = (nvml.NVML_ERROR_GPU_IS_LOST, nvml.NVML_ERROR_NOT_FOUND)
            return f"{device} is lost ({error})" if getattr(error, "value", None) in lost else ""
        self._listen(slot, handle)
        with contextlib.suppress(nvml.NVMLError):
            kinds = (nvml.NVML_MEMORY_ERROR_TYPE_UNCORRECTED, nvml.NVML_VOLATILE_ECC)
            if nvml.nvmlDeviceGetTotalEccErrors(handle, *kinds) > 0:
                return f"{device} has uncorrectable ECC errors; reset it"
        with contextlib.suppress(nvml.NVMLError):
            pending, failed = nvml.nvmlDeviceGetRemappedRows(handle)[2:4]
            if pending or failed:
                return f"{device} has rows of memory to remap; {'replace' if failed else 'reset'} it"
        xid, at = self._xids.get(slot, (0, -math.inf))
        return f"{device} had XID error {xid} within the last hour" if clock() < at + XID_S else ""

    def _listen(self, slot: int, handle: Any) -> None:
        """Listen for this GPU's XID errors."""
        nvml = self._nvml
        if slot in self._watched:
            return
        with contextlib.suppress(nvml.NVMLError):
            if self._events is None:
                self._events = nvml.nvmlEventSetCreate()
            nvml.nvmlDeviceRegisterEvents(handle, nvml.nvmlEventTypeXidCriticalError, self._events)
            self._watched.add(slot)

    def _wait(self) -> None:
        """Wait until the next check or XID error."""
        nvml, start = self._nvml, clock()
        if self._events is not None:
            try:
                event = nvml.nvmlEventSetWait_v2(self._events, int(1000 * LOOK_S))
            except nvml.NVMLError:  # the time is over, or a GPU is lost
                pass
            else:
                if (xid := int(event.eventData)) not in FROM_PROGRAMS:
                    for slot in self._of(event.device):
                        self._xids[slot] = (xid, clock())
                return
        time.sleep(max(start + LOOK_S - clock(), 0.0))

    def _of(self, handle: Any) -> list[int]:
        """The position of the GPU of an event; all where NVML does not say which it was."""
        with contextlib.suppress(self._nvml.NVMLError):
            found = self._nvml.nvmlDeviceGetUUID(handle)
            name = found.decode() if isinstance(found, bytes) else str(found)
            return [slot for slot, device in enumerate(self.devices) if device == name]
        return list(range(len(self.devices)))
