"""Containment of one gang's processes on one machine: what no process of the gang can leave, and the kernel's own count of them.

    cgroup      a cgroup (v2) of the gang: ``cgroup.kill`` ends everything in it, ``cgroup.events`` says when it is empty
    namespace   a PID namespace of the gang: when its first process ends, the kernel ends all others before
    none        neither; members are found by parent, and by a variable in their environment

Memory, CPU and the number of processes are limited by the controllers that the machine has: files of cgroup v2 in the gang's
cgroup, or a cgroup of the gang in the v1 hierarchy of the controller.

Standard library alone, and no other file of this package: the supervisor of a gang (``keeper.py``) loads it by its path.
Linux man pages cgroups(7), pid_namespaces(7), user_namespaces(7); the kernel's admin-guide/cgroup-v2 and cgroup-v1/memory.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import signal
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import NoReturn

CGROUP, NAMESPACE, NONE = "cgroup", "namespace", "none"
KINDS = (CGROUP, NAMESPACE, NONE)
KILL = "cgroup.kill"
"""Since Linux 5.14; before, a cgroup is frozen and its processes are killed individually."""
PERIOD_US = 100_000
"""Period of CPU quotas in microseconds, the default of the kernel."""
MOST_PROCESSES = 1 << 22
"""Largest process limit that the kernel accepts."""
CLONE_NEWNS, CLONE_NEWUSER, CLONE_NEWPID = 0x00020000, 0x10000000, 0x20000000
MS_NOSUID, MS_NODEV, MS_NOEXEC, MS_REC, MS_SLAVE = 2, 4, 8, 0x4000, 0x80000
PR_SET_PDEATHSIG = 1
REMOVE_S = 0.5
"""Seconds for which a cgroup can be busy after its last process has ended."""


@dataclass(frozen=True, slots=True)
class Cell:
    """Container of one gang's processes on one machine.

    Attributes
    ----------
    kind : one of ``KINDS``.
    group : folder of the gang's cgroup v2; empty for other kinds.
    limits : folders of the gang's cgroups in v1 hierarchies, which hold limits only.
    memory : file in which the kernel counts processes that it killed because the gang exceeded its memory; empty without a limit.
    processes : file in which it counts those that it did not start because the gang had too many; empty without a limit.
    """

    kind: str = NONE
    group: str = ""
    limits: tuple[str, ...] = ()
    memory: str = ""
    processes: str = ""

    @property
    def folders(self) -> tuple[str, ...]:
        """All cgroups of the gang."""
        return (*filter(None, (self.group,)), *self.limits)

    def enter(self) -> None:
        """Put the calling process in; its children follow. Raises OSError where the kernel refuses."""
        for folder in self.folders:
            Path(folder, "cgroup.procs").write_text("0")

    def pids(self) -> set[int]:
        """Processes in the gang's cgroups and those below; empty for gangs without one."""
        found: set[int] = set()
        for folder in self.folders:
            for group in tree(folder):
                with contextlib.suppress(OSError):
                    found |= {int(line) for line in Path(group, "cgroup.procs").read_text().split()}
        return found

    def empty(self) -> bool:
        """True if the kernel counts no process in the gang's cgroup, or the cgroup does not exist."""
        try:
            events = Path(self.group, "cgroup.events").read_text() if self.group else "populated 0"
        except OSError:
            return True  # removed, which the kernel does not allow before
        return "populated 0" in events

    def kill(self) -> None:
        """SIGKILL to every process of the gang's cgroup, including processes that are being forked."""
        if not self.group:
            return
        with contextlib.suppress(OSError):
            if os.path.exists(f"{self.group}/{KILL}"):
                Path(self.group, KILL).write_text("1")
                return
        freeze = Path(self.group, "cgroup.freeze")
        with contextlib.suppress(OSError):
            freeze.write_text("1")
        try:
            for pid in self.pids():
                with contextlib.suppress(OSError):
                    os.kill(pid, signal.SIGKILL)
        finally:
            with contextlib.suppress(OSError):
                freeze.write_text("0")

    def out_of_memory(self) -> int:
        """Processes that the kernel killed so far because the gang exceeded its memory."""
        return _count(self.memory, "oom_kill")

    def out_of_processes(self) -> int:
        """Processes and threads that the kernel did not start so far because the gang had as many as it may."""
        return _count(self.processes, "max")

    def remove(self) -> None:
        """Drop the gang's cgroups; those that still hold a process stay."""
        for folder in self.folders:
            until = time.monotonic() + REMOVE_S
            for group in reversed([*tree(folder)]):
                while True:
                    try:
                        os.rmdir(group)
                    except FileNotFoundError:
                        break
                    except OSError:
                        if time.monotonic() >= until or not self.empty():
                            break
                        time.sleep(0.01)
                    else:
                        break


def tree(folder: str) -> Iterator[str]:
    """A cgroup and those below it, parents first."""
    for base, _, _ in os.walk(folder):
        yield base


def _count(path: str, wanted: str) -> int:
    """A number in a file of names and numbers; 0 without such a file."""
    with contextlib.suppress(OSError, ValueError):
        for line in Path(path).read_text().splitlines() if path else ():
            name, _, count = line.partition(" ")
            if name == wanted:
                return int(count)
    return 0


# ---- limits -----------------------------------------------------------------------------------------------------------


def limit_memory(folder: str, limit: int) -> str:
    """Limit a cgroup's memory to this many bytes, swap included where it is accounted; returns the file with the count of kills.

    Raises
    ------
    OSError : the cgroup has no memory controller.
    """
    if os.path.exists(f"{folder}/memory.max"):
        Path(folder, "memory.max").write_text(str(limit))
        with contextlib.suppress(OSError):
            Path(folder, "memory.swap.max").write_text("0")
        with contextlib.suppress(OSError):
            Path(folder, "memory.oom.group").write_text("1")
        return f"{folder}/memory.events"
    Path(folder, "memory.limit_in_bytes").write_text(str(limit))
    with contextlib.suppress(OSError):
        Path(folder, "memory.memsw.limit_in_bytes").write_text(str(limit))
    return f"{folder}/memory.oom_control"


def limit_cpus(folder: str, cpus: float) -> None:
    """Limit a cgroup to this many CPUs' time.

    Raises
    ------
    OSError : the cgroup has no CPU controller.
    """
    quota = max(int(cpus * PERIOD_US), 1000)
    if os.path.exists(f"{folder}/cpu.max"):
        Path(folder, "cpu.max").write_text(f"{quota} {PERIOD_US}")
        return
    Path(folder, "cpu.cfs_period_us").write_text(str(PERIOD_US))
    Path(folder, "cpu.cfs_quota_us").write_text(str(quota))


def limit_processes(folder: str, count: int) -> str:
    """Limit a cgroup to this many processes and threads; returns the file with the count of those that were not started.

    Raises
    ------
    OSError : the cgroup has no pids controller.
    """
    Path(folder, "pids.max").write_text(str(min(count, MOST_PROCESSES)))
    return f"{folder}/pids.events"


# ---- PID namespaces ---------------------------------------------------------------------------------------------------


def unshare_pids() -> None:
    """Let the processes that the caller forks from now on be in a new PID namespace; the first of them is its init.

    A caller that is not root gets a user namespace too, in which it keeps its user and group. One thread only.

    Raises
    ------
    OSError : the kernel, or the machine's settings, do not allow it.
    """
    uid, gid = os.geteuid(), os.getegid()
    _call("unshare", CLONE_NEWPID | (CLONE_NEWUSER if uid else 0))
    if uid:
        Path("/proc/self/setgroups").write_text("deny")
        Path("/proc/self/uid_map").write_text(f"{uid} {uid} 1")
        Path("/proc/self/gid_map").write_text(f"{gid} {gid} 1")


def fork_init() -> int:
    """Fork the first process of the new PID namespace; returns its pid.

    It collects orphans, and dies with the caller: then the kernel ends the whole namespace.
    """
    pid = os.fork()
    if pid == 0:
        _be_init()
    return pid


def _be_init() -> NoReturn:
    try:
        signal.set_wakeup_fd(-1)
        for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGCHLD):
            signal.signal(number, signal.SIG_DFL)
        _call("prctl", PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
        signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGCHLD})
        os.setsid()
        os.closerange(3, 65536)
        while True:
            with contextlib.suppress(ChildProcessError):
                while os.waitpid(-1, os.WNOHANG)[0]:
                    pass
            signal.sigwait({signal.SIGCHLD})
    finally:
        os._exit(1)


def mount_proc() -> None:
    """Show the caller and its children the processes of their own PID namespace in /proc; mounts of the machine still come through.

    Raises
    ------
    OSError : the kernel, or the machine's settings, do not allow it.
    """
    _call("unshare", CLONE_NEWNS)
    _call("mount", b"none", b"/", None, MS_REC | MS_SLAVE, None)
    _call("mount", b"proc", b"/proc", b"proc", MS_NOSUID | MS_NODEV | MS_NOEXEC, None)


def _call(name: str, *arguments: bytes | int | None) -> None:
    libc = ctypes.CDLL(None, use_errno=True)
    if getattr(libc, name)(*(ctypes.c_ulong(a) if isinstance(a, int) else a for a in arguments)) != 0:
        number = ctypes.get_errno()
        raise OSError(number, f"{name}: {os.strerror(number)}")


# ---- trying what the machine allows -----------------------------------------------------------------------------------


def try_namespace() -> None:
    """Use a PID namespace as a gang does; raises OSError where that fails."""
    unshare_pids()
    init, ready = fork_init(), os.pipe()
    rank = os.fork()
    if rank == 0:
        try:
            mount_proc()
            os.write(
                ready[1], b"ok" if Path("/proc/self").readlink().name == str(os.getpid()) else b"/proc is another's"
            )
        except OSError as error:
            os.write(ready[1], str(error).encode())
        finally:
            os._exit(0)
    os.close(ready[1])
    report = os.read(ready[0], 4096).decode(errors="replace")
    os.waitpid(rank, 0)
    os.kill(init, signal.SIGKILL)
    os.waitpid(init, 0)
    if report != "ok":
        raise OSError(report)


if __name__ == "__main__":  # python cells.py namespace | enter FOLDER ...
    try:
        if sys.argv[1] == NAMESPACE:
            try_namespace()
        else:
            Cell(CGROUP, "", tuple(sys.argv[2:])).enter()
    except OSError as problem:
        sys.exit(str(problem))
