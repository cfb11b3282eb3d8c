"""Disk usage of this machine's tasks: free space is checked often, because it is cheap, and folders only when needed.

A round measures every task, a few folder entries at a time, so that no renewal waits for it. It is due when a task is new, when
free space falls fast or is nearly used up, and otherwise the more rarely the more there is to read. What a gang wrote into files
that have no name any more counts too. A folder that the user named counts as far as it grows.
"""

from __future__ import annotations

import contextlib
import math
import os
import stat
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from themis.machines.agent.messages import DiskUse, TaskUse
from themis.machines.agent.system import System
from themis.machines.agent.tasks import Task

WATCH_S = 0.5
"""Between two looks at free space."""
AHEAD_S = 60.0
"""Seconds: a disk that fills up within this time at its present rate is measured immediately."""
SCARCE = 10
"""A disk with less than a part of it free (1 / SCARCE) is measured all the time."""
ENTRIES = 2000
"""Folder entries that are read in one look."""
REST_S, REST = 10.0, 50e-6
"""Between two rounds: at least, and for each entry of the last one, seconds."""
NAMES = 100_000
UNIT = 512
"""Bytes of a block, as stat counts them."""


@dataclass(slots=True)
class _Round:
    """One measurement of all tasks that is under way."""

    walks: list[tuple[str, bool, Iterator[int]]]
    """For each folder: its task, whether the service owns it, and an iterator over the bytes of its entries."""
    own: dict[str, int]
    all: dict[str, int]
    entries: int = 0


@dataclass(slots=True)
class Usage:
    """Disk usage of the tasks below a folder; ``root`` : the agent's folder."""

    root: Path
    system: System
    at: dict[str, tuple[float, int]] = field(default_factory=dict)
    """Time of each task's last measurement, and its bytes then."""
    free: int = 0
    watched_at: float = -math.inf
    rest_until: float = -math.inf
    under_way: _Round | None = None
    hasty: bool = False

    def look(self, tasks: Mapping[str, Task], alive: Collection[str]) -> DiskUse | None:
        """The result of a measurement round that ends now, or None; ``alive`` : the tasks that can write."""
        now = self.system.clock()
        if now >= self.watched_at + WATCH_S:
            self._watch(now)
        if self.under_way is None:
            fresh = any(name not in self.at for name in alive)
            if not alive or not (self.hasty or fresh or now >= self.rest_until):
                return None
            self.under_way = self._begin([tasks[name] for name in alive if name in tasks])
        if not self._go_on(self.under_way):
            return None
        done, self.under_way, self.hasty = self.under_way, None, False
        self.rest_until = now + max(REST_S, REST * done.entries)
        return self._found(done, now)

    def _watch(self, now: float) -> None:
        with contextlib.suppress(OSError):
            free, size, _ = self.system.disk(self.root)
            fall = (self.free - free) / max(now - self.watched_at, WATCH_S)
            self.hasty = self.hasty or free < size // SCARCE or fall * AHEAD_S > free
            self.free, self.watched_at = free, now

    def _begin(self, tasks: list[Task]) -> _Round:
        walks = [(task.name, own, bytes_below(folder)) for task in tasks for folder, own in folders_of(self.root, task)]
        found = _Round(walks, {task.name: 0 for task in tasks}, {task.name: 0 for task in tasks})
        if self.hasty:
            for task in tasks:
                found.own[task.name] = self.system.unlinked(task.processes(), self.root)
        return found

    def _go_on(self, under_way: _Round) -> bool:
        """Read some more; whether all was read."""
        for _ in range(ENTRIES):
            if not under_way.walks:
                return True
            name, own, walk = under_way.walks[-1]
            size = next(walk, None)
            if size is None:
                under_way.walks.pop()
                continue
            under_way.entries += 1
            (under_way.own if own else under_way.all)[name] += size
        return not under_way.walks

    def _found(self, done: _Round, now: float) -> DiskUse | None:
        uses = []
        for name, own in done.own.items():
            whole = own + done.all[name]
            at, before = self.at.get(name, (now, whole))
            uses.append(TaskUse(task=name, bytes=own, grew=max(whole - before, 0), seconds=max(now - at, 0.0)))
            self.at[name] = now, whole
        for name in self.at.keys() - done.own.keys():
            del self.at[name]
        try:
            free, size, _ = self.system.disk(self.root)
            return DiskUse(disk=disk_id(self.root), free=free, size=size, tasks=tuple(uses))
        except OSError:
            return None


def folders_of(root: Path, task: Task) -> list[tuple[Path, bool]]:
    """The folders that a task may fill, on the disk of ``root``; whether the service made them."""
    own = [task.folder, root / "logs" / task.name, root / "work" / task.name]
    out = [(folder, True) for folder in own]
    checkpoints = Path(task.spec.checkpoint_dir)
    with contextlib.suppress(OSError):
        if checkpoints.stat().st_dev == root.stat().st_dev:
            out.append((checkpoints, task.spec.make_checkpoint_dir))
    return out


def bytes_below(folder: Path) -> Iterator[int]:
    """Bytes on disk of each entry below a folder, links not followed, other disks left out; whatever cannot be read is nothing.

    A file of several names counts once, as far as ``NAMES`` of them are remembered.
    """
    todo, device, seen = [str(folder)], None, set[int]()
    while todo:
        try:
            handle = os.open(todo.pop(), os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
        except OSError:
            continue
        try:
            path = os.readlink(f"/proc/self/fd/{handle}")
            device = os.fstat(handle).st_dev if device is None else device
            with os.scandir(handle) as entries:
                for entry in entries:
                    try:
                        found = entry.stat(follow_symlinks=False)
                    except OSError:
                        continue
                    if found.st_dev != device:
                        continue
                    if stat.S_ISDIR(found.st_mode):
                        todo.append(f"{path}/{entry.name}")
                        yield found.st_blocks * UNIT
                    elif found.st_ino not in seen:
                        if found.st_nlink > 1 and len(seen) < NAMES:
                            seen.add(found.st_ino)
                        yield found.st_blocks * UNIT
                    else:
                        yield 0
        except OSError:
            continue
        finally:
            os.close(handle)


def disk_id(path: Path) -> str:
    """The disk that a folder is on: the same for every process of this machine until it starts again."""
    boot = ""
    with contextlib.suppress(OSError):
        boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    return f"{boot}/{path.stat().st_dev}"
