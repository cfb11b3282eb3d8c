"""Means of containing gangs that this machine supports: detected by trial, and set up for each gang."""

from __future__ import annotations

import contextlib
import hashlib
import os
import subprocess
import sys
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path

from themis.errors import InputError, UnknownName
from themis.machines.agent import cells, fence
from themis.machines.agent.cells import CGROUP, KINDS, NAMESPACE, NONE, Cell
from themis.machines.agent.fence import DENY, Node

AUTO = "auto"
WANTED = (AUTO, *KINDS)
TRY_S = 30.0
"""A trial takes tens of milliseconds."""
DELEGATED = ("user.delegate", "trusted.delegate")
"""Extended attributes by which systemd marks a cgroup that a service may divide as it likes."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Means:
    """Means of containment of gangs on this machine.

    Attributes
    ----------
    containment : cgroup | namespace | none. ``why_not`` : why nothing stronger was possible; empty if it was not needed.
    group : cgroup v2 folder below which gangs get theirs. ``memory``, ``cpu``, ``processes``, ``devices`` : likewise for limits
        and the fence around a gang's GPUs, v1 or v2; empty if none.
    nodes : device node of each GPU of the machine, by UUID, those of other services among them; empty where GPUs are virtual.
    """

    containment: str = NONE
    why_not: str = ""
    group: str = ""
    memory: str = ""
    cpu: str = ""
    processes: str = ""
    devices: str = ""
    nodes: Mapping[str, Node] = field(default_factory=dict)

    @property
    def limits(self) -> tuple[str, ...]:
        """Resources of a job that are limited: memory, cpus, processes, devices (it can open no GPUs other than its
        own)."""
        found = {"memory": self.memory, "cpus": self.cpu, "processes": self.processes, "devices": self.devices}
        return tuple(name for name, folder in found.items() if folder)

    def fenced_off(self, devices: Collection[str]) -> set[Node]:
        """Device nodes of the GPUs that a gang with these must not open; none where one of its own is unknown."""
        if not all(device in self.nodes for device in devices):
            return set()
        return {*self.nodes.values()} - {self.nodes[device] for device in devices}

    def cell(
        self, folder: Path, memory: int = 0, cpus: float = 0.0, processes: int = 0, devices: Collection[str] = ()
    ) -> Cell:
        """Make the cell of the gang whose task has this folder.

        Parameters
        ----------
        memory : bytes that the gang may use on this machine. ``cpus`` : CPUs. ``processes`` : with their threads. 0 for no limit
            of ours.
        devices : UUIDs of its GPUs here; it can open no other.

        Raises
        ------
        OSError : a cgroup cannot be made; nothing is left of it then.
        """
        name, made = name_of(folder), list[str]()
        group = f"{self.group}/{name}" if self.containment == CGROUP else ""

        def of(base: str) -> str:
            # v2 controllers limit the gang's own cgroup; a v1 hierarchy has a separate one.
            path = group if group and base == self.group else f"{base}/{name}"
            _make(path, made)
            return path

        killed = refused = ""
        try:
            if group:
                _make(group, made)
            if memory and self.memory:
                killed = cells.limit_memory(of(self.memory), memory)
            if cpus and self.cpu:
                cells.limit_cpus(of(self.cpu), cpus)
            if processes and self.processes:
                refused = cells.limit_processes(of(self.processes), processes)
            if self.devices and (others := self.fenced_off(devices)):
                fence.deny(of(self.devices), others)
        except OSError:
            Cell(CGROUP, "", tuple(made)).remove()
            raise
        return Cell(self.containment, group, tuple(path for path in made if path != group), killed, refused)


UNCONTAINED = Means()
"""No containment: nothing is permitted."""


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
    """The strongest containment that this machine allows, up to the requested one.

    Parameters
    ----------
    wanted : auto | cgroup | namespace | none.

    Raises
    ------
    UnknownName : another word. InputError : it is wanted by name and not possible here.
    """
    if wanted not in WANTED:
        raise UnknownName("containment", wanted, WANTED)
    found = Means(
        memory=_v1("memory", "memory.limit_in_bytes"),
        cpu=_v1("cpu", "cpu.cfs_quota_us"),
        processes=_v1("pids", "pids.max"),
        devices=_v1("devices", DENY, "c 195:254 m"),
    )
    problems = []
    if wanted in (AUTO, CGROUP):
        group, problem = _unified()
        if not problem:
            has = _controllers(group)
            return Means(
                containment=CGROUP,
                group=group,
                memory=group if "memory" in has else found.memory,
                cpu=group if "cpu" in has else found.cpu,
                processes=group if "pids" in has else found.processes,
                devices=found.devices or ("" if _tried_group(group, "fence") else group),
            )
        problems.append(f"cgroup: {problem}")
    if wanted in (AUTO, NAMESPACE):
        problem = _tried(NAMESPACE)
        if not problem:
            return replace(found, containment=NAMESPACE, why_not="; ".join(problems))
        problems.append(f"namespace: {problem}")
    if wanted in (CGROUP, NAMESPACE):
        raise InputError(
            f"containment is {wanted!r}, which this machine does not allow ({'; '.join(problems)}); set containment: auto."
        )
    return replace(found, why_not="; ".join(problems))


def _unified() -> tuple[str, str]:
    """Folder of cgroup v2 that permits groups, or the reason why there is none."""
    own = own_group("")
    if own is None:
        return "", "cgroup v2 is not mounted"
    # A service of systemd may sit in a leaf of its delegated subtree, as cgroup v2 requires.
    base = next((str(f) for f in (own, *own.parents) if _delegated(f)), str(own))
    problem = _tried_group(base)
    return ("", problem) if problem else (base, "")


def _controllers(base: str) -> set[str]:
    """v2 controllers that groups below ``base`` have; they are switched on there where that is allowed."""
    for name in ("memory", "cpu", "pids"):
        with contextlib.suppress(OSError):
            Path(base, "cgroup.subtree_control").write_text(f"+{name}")
    try:
        return set(Path(base, "cgroup.subtree_control").read_text().split())
    except OSError:
        return set()


def _v1(controller: str, file: str, trial: str = "") -> str:
    """Folder of a v1 controller that permits groups; empty if there is none. ``trial`` : value for a group's file."""
    own = own_group(controller)
    return str(own) if own is not None and _writable(own, file, trial) else ""


def _writable(base: Path, file: str, trial: str) -> bool:
    """True if a group can be made below ``base``, and its members and this file be set."""
    folder = Path(_trial(str(base)))
    try:
        folder.mkdir()
    except OSError:
        return False
    try:
        if trial:
            (folder / file).write_text(trial)
        return all(os.access(folder / name, os.W_OK) for name in ("cgroup.procs", file))
    except OSError:
        return False
    finally:
        Cell(CGROUP, "", (str(folder),)).remove()


def _tried_group(base: str, what: str = "enter") -> str:
    """Why no group of v2 can be made, entered (``fence``: fenced) and removed below ``base``; empty if it can."""
    folder = _trial(base)
    try:
        os.mkdir(folder)
        try:
            if what == "fence":
                fence.deny(folder, ())
                return ""
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
    """Reason why a test process fails at it; empty on success."""
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
