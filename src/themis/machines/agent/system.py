"""System interface of agents and supervisors: clock, process table, locks.

``System`` is the one way to them, so that a simulation can put another in its place (``tests/simulation``). Files, pipes and
FIFOs are used directly: they are the same there.

Standard library alone, and no other file of this package: the supervisor of a gang (``keeper.py``) loads it by its path.
"""

from __future__ import annotations

import contextlib
import ctypes
import fcntl
import os
import select
import signal
import stat
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import IO, Any, NoReturn, Protocol

UMASK = 0o022
"""File mode mask of the service, its agents, supervisors and jobs, whatever umask they were started with: other
accounts cannot write to their files, and users can read the files of their jobs. Secret files get a mode of their
own."""
PORTS = range(20000, 32000)
"""Below what Linux hands out for outgoing connections, so that a port found free stays free."""


def clock() -> float:
    """Seconds since boot, never set back, also counting sleep: one clock for every process of this machine."""
    return time.clock_gettime(time.CLOCK_BOOTTIME)


def passable(folder: Path) -> None:
    """Make a folder, if it is missing, and set its mode: where root runs jobs, their accounts can pass through it."""
    folder.mkdir(parents=True, exist_ok=True, mode=0o700)
    folder.chmod(0o711 if os.geteuid() == 0 else 0o700)


class Child(Protocol):
    """A process that this one started."""

    pid: int

    def poll(self) -> int | None:
        """Its exit code, None while it lives."""
        ...


class System:
    """The machine that this process runs on."""

    # ---- time -----------------------------------------------------------------------------------------------------

    def clock(self) -> float:
        """Same as the function ``clock``."""
        return clock()

    def sleep(self, seconds: float) -> None:
        """Wait."""
        time.sleep(seconds)

    def poll(self, poll: select.poll, seconds: float) -> list[tuple[int, int]]:
        """Files with events, waiting up to this many seconds for the first."""
        return poll.poll(1000.0 * seconds)

    # ---- the process table ----------------------------------------------------------------------------------------

    def getpid(self) -> int:
        """Process id of the calling process."""
        return os.getpid()

    def fork(self, child: Callable[[], NoReturn], files: Sequence[int]) -> int:
        """Fork a process that runs ``child``; returns its pid. ``files`` : those of the caller's open files that the child uses."""
        pid = os.fork()
        if pid == 0:
            child()
        return pid

    def start(self, command: Sequence[str], errors: IO[bytes], files: Sequence[int]) -> Child:
        """Start a program in its own session; ``files`` stay open in it. Raises OSError on failure."""
        import subprocess  # only agents start programs; supervisors start in milliseconds

        null = subprocess.DEVNULL
        return subprocess.Popen(
            command, stdin=null, stdout=null, stderr=errors, start_new_session=True, cwd="/", pass_fds=files
        )

    def kill(self, pid: int, number: int) -> None:
        """Send a signal."""
        os.kill(pid, number)

    def kill_started(self, pid: int, start: int) -> set[int]:
        """SIGKILL to the process of this pid if it is the one that started then; it, or nothing where that is gone."""
        try:
            held = os.pidfd_open(pid)
        except OSError:
            return set()
        try:
            if self.started(pid) != start:
                return set()
            with contextlib.suppress(OSError):
                signal.pidfd_send_signal(held, signal.SIGKILL)
            return {pid}
        finally:
            os.close(held)

    def waitpid(self, pid: int) -> tuple[int, int]:
        """Collect a child that ended, any with -1: its pid and how it ended; zeros while it lives. Raises ChildProcessError."""
        return os.waitpid(pid, os.WNOHANG)

    def processes(self) -> Iterator[tuple[int, int, str]]:
        """(pid, parent, state) of every process."""
        for name in os.listdir("/proc"):
            if name.isdigit():
                with contextlib.suppress(OSError, ValueError, IndexError):
                    # The command's name may hold spaces and parentheses; what follows the last one does not.
                    rest = Path(f"/proc/{name}/stat").read_text(errors="replace").rpartition(")")[2].split()
                    yield int(name), int(rest[1]), rest[0]

    def descendants(self, *roots: int) -> set[int]:
        """All living descendants of these; complete for subreapers, which inherit every orphan below them."""
        children: dict[int, list[tuple[int, str]]] = {}
        for pid, parent, state in self.processes():
            children.setdefault(parent, []).append((pid, state))
        found: set[int] = set()
        todo = [*roots]
        while todo:
            for pid, state in children.get(todo.pop(), []):
                todo.append(pid)
                if state not in "ZX":
                    found.add(pid)
        return found

    def started(self, pid: int) -> int:
        """Start time of a process, in clock ticks since boot: with its pid it is permanently unique; 0 if none."""
        with contextlib.suppress(OSError, ValueError, IndexError):
            return int(Path(f"/proc/{pid}/stat").read_text(errors="replace").rpartition(")")[2].split()[19])
        return 0

    def children(self, pid: int) -> set[int]:
        """Living and dead children of a process, as far as they are not collected; empty where it is gone."""
        found: set[int] = set()
        try:
            for thread in os.listdir(f"/proc/{pid}/task"):
                with contextlib.suppress(ProcessLookupError):
                    found |= {int(child) for child in Path(f"/proc/{pid}/task/{thread}/children").read_text().split()}
        except FileNotFoundError:
            # It is gone, or this kernel does not list children (CONFIG_PROC_CHILDREN).
            return {child for child, parent, _ in self.processes() if parent == pid}
        return found

    def environment(self, pid: int) -> list[bytes]:
        """The environment that a process was started with; empty where it cannot be read."""
        try:
            return Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")
        except OSError:
            return []

    # ---- the rest -------------------------------------------------------------------------------------------------

    def locked(self, path: Path) -> bool:
        """Whether another process holds the lock on this file; the kernel drops it with the process, however that ends."""
        with contextlib.suppress(OSError), open(path, "rb+") as lock:
            try:
                fcntl.lockf(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                return True
        return False

    def disk(self, path: Path) -> tuple[int, int, int | None]:
        """Free bytes for ordinary users, total bytes and free inodes (None: not counted) of the disk that holds a
        path."""
        found = os.statvfs(path)
        inodes = found.f_favail if found.f_files else None
        return found.f_bavail * found.f_frsize, found.f_blocks * found.f_frsize, inodes

    def unlinked(self, pids: Iterable[int], path: Path) -> int:
        """Bytes of files without a name that these processes have open on the disk of a path."""
        found: dict[int, int] = {}
        with contextlib.suppress(OSError):
            device = os.stat(path).st_dev
            for pid in pids:
                with contextlib.suppress(OSError), os.scandir(f"/proc/{pid}/fd") as files:
                    for file in files:
                        with contextlib.suppress(OSError):
                            there = os.stat(file.path)
                            if stat.S_ISREG(there.st_mode) and not there.st_nlink and there.st_dev == device:
                                found[there.st_ino] = 512 * there.st_blocks
        return sum(found.values())

    def free_port(self) -> int:
        """A port of this machine that no process listens on now; 0 where 200 of them are taken."""
        import random
        import socket

        for port in random.sample(PORTS, 200):
            with socket.socket() as probe, contextlib.suppress(OSError):
                probe.bind(("", port))
                return port
        return 0


SYSTEM = System()


def prctl(option: int, value: int) -> None:
    """Linux' prctl(2)."""
    libc: Any = ctypes.CDLL(None, use_errno=True)
    if libc.prctl(option, ctypes.c_ulong(value), 0, 0, 0) != 0:
        raise OSError(ctypes.get_errno(), f"prctl({option}) failed")
