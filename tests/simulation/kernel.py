"""One simulated machine: its clock since boot, and its process table with signals, orphans and zombies, as Linux has them."""

from __future__ import annotations

import errno
import math
import signal
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, NoReturn, Protocol

from themis.machines.agent.system import System

STRIDE = 0.01
"""Seconds that a signal takes its sender: loops that wait for the clock come to an end within one step."""


class Body(Protocol):
    """What a process does."""

    def step(self) -> int | None:
        """Run a while; the exit code, once it ends by itself."""
        ...

    def signal(self, number: int) -> None:
        """A signal that can be handled."""
        ...

    def close(self) -> None:
        """Its files are closed: it ended."""
        ...


@dataclass(slots=True, eq=False)
class Process:
    """One process; ``code`` is None while it lives, then it is a zombie until its parent collects it."""

    pid: int
    parent: int
    start: int
    body: Body
    name: str
    task: str = ""
    slots: tuple[int, ...] = ()
    """GPUs that it uses, by their positions on the machine; none before it was let go."""
    environment: list[bytes] = field(default_factory=list)
    reaper: bool = False
    dies_with_parent: bool = False
    stopped_until: float = 0.0
    """As after SIGSTOP, until somebody continues it."""
    stuck_until: float = 0.0
    """It hangs in the kernel: SIGKILL ends it only then."""
    doomed: bool = False
    born: float = 0.0
    orphaned_at: float = math.inf
    """When its supervisor ended; ``seen`` : the agent that became its parent looked at it since."""
    seen: bool = False
    code: int | None = None


@dataclass(slots=True)
class Handle:
    """What a parent holds of a child that it started."""

    kernel: Kernel
    process: Process

    @property
    def pid(self) -> int:
        return self.process.pid

    def poll(self) -> int | None:
        """Its exit code; collects it."""
        if self.process.code is not None:
            self.kernel.table.pop(self.process.pid, None)
        return self.process.code


class Kernel(System):
    """A machine; ``current`` is the process whose code runs now.

    Parameters
    ----------
    now : the world's time. ``killed`` : called with (sender, victim) for each SIGKILL.
    supervise, become_rank : make the body of a supervisor, from its task's folder, and of a rank.
    """

    def __init__(self, name: str, now: Callable[[], float], offset: float) -> None:
        self.name, self.now = name, now
        self.boot = now() - offset
        self.table: dict[int, Process] = {}
        self.current: Process | None = None
        self.spent = self.full_until = 0.0
        """``full_until`` : until then no process can be started."""
        self.killed: Callable[[Process | None, Process], None] = lambda sender, victim: None
        self.supervise: Callable[[Kernel, Path], Body]
        self.become_rank: Callable[[Kernel, Process, Sequence[int], Any], Body]
        self._next = 100

    # ---- running it -----------------------------------------------------------------------------------------------

    def step(self, runs: Callable[[Process], bool]) -> None:
        """Run every process a while, in the order of their pids, but those for which ``runs`` says no."""
        for process in [*self.table.values()]:
            if process.code is not None:
                continue
            if process.doomed and self.now() >= process.stuck_until:
                self.end(process, -signal.SIGKILL)
            elif self.now() >= max(process.stopped_until, process.stuck_until) and runs(process):
                self.run(process)
        self.spent = 0.0

    def run(self, process: Process) -> None:
        """Run one process a while."""
        self.current, before = process, self.current
        try:
            code = process.body.step()
        finally:
            self.current = before
        if process.name == "agent":
            for child in self.table.values():
                child.seen |= child.parent == process.pid
        if code is not None and process.code is None:
            self.end(process, code)

    def spawn(self, body: Body, name: str, *, parent: int = 1, **more: Any) -> Process:
        """A new process."""
        self._next += 1
        process = Process(
            pid=self._next, parent=parent, start=self._next, body=body, name=name, born=self.now(), **more
        )
        self.table[process.pid] = process
        return process

    def end(self, process: Process, code: int) -> None:
        """A process ends: its files are closed, its children get another parent."""
        process.code, process.slots = code, ()
        process.body.close()
        heir = self._reaper_above(process)
        for child in [c for c in self.table.values() if c.parent == process.pid]:
            if child.dies_with_parent and child.code is None:
                self._die(child)
            child.parent = heir
            if process.name == "supervisor":
                child.orphaned_at = self.now()
            self._collected_by_init(child)
        self._collected_by_init(process)

    def power_off(self, offset: float) -> None:
        """Every process is gone; the clock begins again."""
        for process in [*self.table.values()]:
            if process.code is None:
                process.code, process.slots = -signal.SIGKILL, ()
                process.body.close()
        self.table.clear()
        self.boot = self.now() - offset

    def living(self, name: str = "") -> list[Process]:
        """Processes that live, of this name where one is given."""
        return [p for p in self.table.values() if p.code is None and name in ("", p.name)]

    def _reaper_above(self, process: Process) -> int:
        parent = self.table.get(process.parent)
        while parent is not None:
            if parent.reaper and parent.code is None:
                return parent.pid
            parent = self.table.get(parent.parent)
        return 1

    def _collected_by_init(self, process: Process) -> None:
        if process.code is not None and process.parent not in self.table:
            self.table.pop(process.pid, None)

    def _die(self, process: Process) -> None:
        if self.now() < process.stuck_until:
            process.doomed = True
        else:
            self.end(process, -signal.SIGKILL)

    # ---- the system's calls ---------------------------------------------------------------------------------------

    def clock(self) -> float:
        return self.now() - self.boot + self.spent

    def sleep(self, seconds: float) -> None:
        """Its caller waits anyway, until its next step."""

    def poll(self, poll: Any, seconds: float) -> list[tuple[int, int]]:
        return poll.poll(0)  # type: ignore[no-any-return]

    def getpid(self) -> int:
        assert self.current is not None
        return self.current.pid

    def fork(self, child: Callable[[], NoReturn], files: Sequence[int]) -> int:
        self._room()
        assert isinstance(child, partial)
        task, env = child.args[:2]
        process = self.spawn(None, "rank", parent=self.getpid(), dies_with_parent=True)  # type: ignore[arg-type]
        process.task = env["THEMIS_TASK"]
        process.environment = [f"{name}={value}".encode() for name, value in env.items()]
        process.body = self.become_rank(self, process, files, (task, env))
        return process.pid

    def start(self, command: Sequence[str], errors: Any, files: Sequence[int]) -> Handle:
        self._room()
        folder = Path(command[-1])
        process = self.spawn(
            self.supervise(self, folder), "supervisor", parent=self.getpid(), task=folder.name, reaper=True
        )
        return Handle(self, process)

    def _room(self) -> None:
        if self.now() < self.full_until:
            raise BlockingIOError(errno.EAGAIN, "Resource temporarily unavailable")

    def disk(self, path: Path) -> tuple[int, int, int | None]:
        return 1 << 40, 1 << 40, None

    def unlinked(self, pids: Iterable[int], path: Path) -> int:
        return 0

    def kill(self, pid: int, number: int) -> None:
        self.spent += STRIDE
        process = self.table.get(pid)
        if process is None:
            raise ProcessLookupError(pid)
        if process.code is not None:
            return
        if number == signal.SIGKILL:
            self.killed(self.current, process)
            self._die(process)
        else:
            process.body.signal(number)

    def kill_started(self, pid: int, start: int) -> set[int]:
        if pid not in self.table or self.started(pid) != start:
            return set()
        self.kill(pid, signal.SIGKILL)
        return {pid}

    def waitpid(self, pid: int) -> tuple[int, int]:
        mine = [p for p in self.table.values() if p.parent == self.getpid() and pid in (-1, p.pid)]
        if not mine:
            raise ChildProcessError(pid)
        for process in mine:
            if process.code is not None:
                del self.table[process.pid]
                # As wait(2) encodes it.
                return process.pid, -process.code if process.code < 0 else process.code << 8
        return 0, 0

    def processes(self) -> Iterator[tuple[int, int, str]]:
        for process in [*self.table.values()]:
            yield process.pid, process.parent, "S" if process.code is None else "Z"

    def started(self, pid: int) -> int:
        process = self.table.get(pid)
        return process.start if process is not None else 0

    def children(self, pid: int) -> set[int]:
        return {p.pid for p in self.table.values() if p.parent == pid}

    def environment(self, pid: int) -> list[bytes]:
        process = self.table.get(pid)
        return process.environment if process is not None and process.code is None else []

    def locked(self, path: Path) -> bool:
        """Whether the supervisor of the task whose folder this file is in lives."""
        return any(p.name == "supervisor" and p.task == path.parent.name for p in self.living())

    def free_port(self) -> int:
        return 20000
