"""What this machine allows for the containment of gangs: found by trying, and made for each gang."""

from __future__ import annotations

import contextlib
import hashlib
import os
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

from themis.errors import InputError, UnknownName
from themis.machines.agent import cells
from themis.machines.agent.cells import CGROUP, KINDS, NAMESPACE, NONE, Cell

AUTO = "auto"
WANTED = (AUTO, *KINDS)
TRY_S = 30.0
"""A trial takes tens of milliseconds."""
DELEGATED = ("user.delegate", "trusted.delegate")
"""Extended attributes by which systemd marks a cgroup that a service may divide as it likes."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Means:
    """How gangs are contained on this machine.

    Attributes
    ----------
    containment : cgroup | namespace | none. ``why_not`` : why nothing stronger was possible; empty if it was not needed.
    group : cgroup v2 folder below which gangs get theirs. ``memory``, ``cpu`` : likewise for limits, v1 or v2; empty if none.
    """

    containment: str = NONE
    why_not: str = ""
    group: str = ""
    memory: str = ""
    cpu: str = ""

    @property
    def limits(self) -> tuple[str, ...]:
        """What of a job is limited: memory, cpus."""
        return (*("memory",) * bool(self.memory), *("cpus",) * bool(self.cpu))

    def cell(self, folder: Path, memory: int = 0, cpus: float = 0.0) -> Cell:
        """Make the cell of the gang whose task has this folder.

        Parameters
        ----------
        memory : bytes that the gang may use on this machine. ``cpus`` : CPUs. 0 for no limit of ours.

        Raises
        ------
        OSError : a cgroup cannot be made; nothing is left of it then.
        """
        name, made = name_of(folder), list[str]()
        group = f"{self.group}/{name}" if self.containment == CGROUP else ""
        counter, limits = "", list[str]()
        try:
            if group:
                _make(group, made)
            # v2 controllers limit the gang's own cgroup; a v1 hierarchy has one of its own.
            if memory and self.memory:
                folder_of = group if group and self.memory == self.group else f"{self.memory}/{name}"
                _make(folder_of, made)
                counter = cells.limit_memory(folder_of, memory)
                limits.append(folder_of)
            if cpus and self.cpu:
                folder_of = group if group and self.cpu == self.group else f"{self.cpu}/{name}"
                _make(folder_of, made)
                cells.limit_cpus(folder_of, cpus)
                limits.append(folder_of)
        except OSError:
            Cell(CGROUP, "", tuple(made)).remove()
            raise
        return Cell(self.containment, group, tuple(dict.fromkeys(f for f in limits if f != group)), counter)


UNCONTAINED = Means()
"""As where nothing is allowed."""


def _make(folder: str, made: list[str]) -> None:
    if folder not in made:
        # One of that name is left of an attempt to start this task that was cut off.
        Cell(CGROUP, "", (folder,)).remove()
        os.mkdir(folder)
        made.append(folder)


def name_of(folder: Path) -> str:
    """Name of the cgroups of the task with this folder; another installation's task of the same name has another one."""
    return f"themis-{folder.name}-{hashlib.sha256(os.fsencode(folder)).hexdigest()[:8]}"


def find(wanted: str = AUTO) -> Means:
    """The strongest containment that this machine allows, up to what is wanted.

    Parameters
    ----------
    wanted : auto | cgroup | namespace | none.

    Raises
    ------
    UnknownName : another word. InputError : it is wanted by name and not possible here.
    """
    if wanted not in WANTED:
        raise UnknownName("containment", wanted, WANTED)
    memory, cpu = _v1("memory", "memory.limit_in_bytes"), _v1("cpu", "cpu.cfs_quota_us")
    problems = []
    if wanted in (AUTO, CGROUP):
        group, problem = _unified()
        if not problem:
            has = _controllers(group)
            return Means(
                containment=CGROUP,
                group=group,
                memory=group if "memory" in has else memory,
                cpu=group if "cpu" in has else cpu,
            )
        problems.append(f"cgroup: {problem}")
    if wanted in (AUTO, NAMESPACE):
        problem = _tried(NAMESPACE)
        if not problem:
            return Means(containment=NAMESPACE, why_not="; ".join(problems), memory=memory, cpu=cpu)
        problems.append(f"namespace: {problem}")
    if wanted in (CGROUP, NAMESPACE):
        raise InputError(
            f"containment is {wanted!r}, which this machine does not allow ({'; '.join(problems)}); set containment: auto."
        )
    return Means(containment=NONE, why_not="; ".join(problems), memory=memory, cpu=cpu)


def _unified() -> tuple[str, str]:
    """Folder of cgroup v2 where groups can be made, or why there is none."""
    own = own_group("")
    if own is None:
        return "", "cgroup v2 is not mounted"
    # A service that systemd runs may sit in a leaf of what was delegated to it, as cgroup v2 wants it.
    base = next((str(f) for f in (own, *own.parents) if _delegated(f)), str(own))
    problem = _tried_group(base)
    return ("", problem) if problem else (base, "")


def _controllers(base: str) -> set[str]:
    """v2 controllers that groups below ``base`` have; they are switched on there where that is allowed."""
    for name in ("memory", "cpu"):
        with contextlib.suppress(OSError):
            Path(base, "cgroup.subtree_control").write_text(f"+{name}")
    try:
        return set(Path(base, "cgroup.subtree_control").read_text().split())
    except OSError:
        return set()


def _v1(controller: str, file: str) -> str:
    """Folder of a v1 controller where groups can be made; empty if there is none."""
    own = own_group(controller)
    return str(own) if own is not None and _writable(own, file) else ""


def _writable(base: Path, file: str) -> bool:
    """Whether a group can be made below ``base``, and its members and this file be set."""
    folder = Path(_trial(str(base)))
    try:
        folder.mkdir()
    except OSError:
        return False
    able = all(os.access(folder / name, os.W_OK) for name in ("cgroup.procs", file))
    Cell(CGROUP, "", (str(folder),)).remove()
    return able


def _tried_group(base: str) -> str:
    """Why no group of v2 can be made, entered and removed below ``base``; empty if it can."""
    folder = _trial(base)
    try:
        os.mkdir(folder)
        try:
            # Where only a part of the tree is delegated, processes cannot be moved into it from outside.
            return _tried("enter", folder)
        finally:
            Cell(CGROUP, "", (folder,)).remove()
    except OSError as error:
        return f"{error.strerror} ({base})"


def _trial(base: str) -> str:
    """A group of this process's own for a trial; those of processes that were killed in theirs are dropped."""
    for old in Path(base).glob("themis-try-*"):
        if not Path("/proc", old.name.rpartition("-")[2]).exists():
            with contextlib.suppress(OSError):
                old.rmdir()
    return f"{base}/themis-try-{os.getpid()}"


def _tried(*what: str) -> str:
    """Why a process of its own cannot do it; empty if it can."""
    try:
        trial = subprocess.run(
            [sys.executable, "-I", "-S", cells.__file__, *what],
            capture_output=True,
            text=True,
            timeout=TRY_S,
            stdin=subprocess.DEVNULL,
            cwd="/",
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        return str(error)
    lines = trial.stderr.strip().splitlines()
    return "" if trial.returncode == 0 else lines[-1] if lines else f"exit code {trial.returncode}"


def own_group(controller: str) -> Path | None:
    """The folder of the calling process's cgroup in the hierarchy of a v1 controller ("": v2); None where it is not mounted."""
    path = None
    with contextlib.suppress(OSError):
        for line in Path("/proc/self/cgroup").read_text().splitlines():
            _, names, own = line.split(":", 2)
            if controller in names.split(","):
                path = own
    if path is None:
        return None
    with contextlib.suppress(OSError):
        for line in Path("/proc/self/mountinfo").read_text().splitlines():
            fields, _, kind = line.partition(" - ")
            root, point = fields.split()[3:5]
            words = kind.split()
            if words[0] == ("cgroup" if controller else "cgroup2") and controller in (
                words[2].split(",") if controller else [""]
            ):
                inner = path if root == "/" else path.removeprefix(root)
                return Path(point) / inner.lstrip("/")
    return None


def _delegated(folder: Path) -> bool:
    for name in DELEGATED:
        with contextlib.suppress(OSError):
            if os.getxattr(folder, name) == b"1":
                return True
    return False
