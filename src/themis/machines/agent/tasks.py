"""The agent's side of a task: its folder, its supervisor, what can be read and written there.

    ROOT/tasks/TASK/    task.json  control  lock  status.json  stop  reports/reports.jsonl
    ROOT/logs/TASK/     rank-0.log ...

Everything is in the folder, so a restarted agent knows as much as the one that died.
"""

from __future__ import annotations

import contextlib
import dataclasses
import json
import math
import os
import pwd
import re
import signal
import stat
import sys
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

from themis import limits
from themis.errors import InputError, closest
from themis.machines.agent import checkpoint_copies, keeper
from themis.machines.agent.environment import exports, rank_env
from themis.machines.agent.keeper import STUCK_S
from themis.machines.agent.means import UNCONTAINED, Means
from themis.machines.agent.messages import Metric, Part, TaskReport, TaskSpec, TaskState, build
from themis.machines.agent.removal import remove, remove_later
from themis.machines.agent.rooms import Room
from themis.machines.agent.system import PORTS, SYSTEM, Child, System

READ_AT_MOST = 1 << 20
HUNG_S = 5.0
"""A supervisor counts as hung if its gang lives this long after even an unkillable process counts as left."""
TRACKERS = ("mlflow", "wandb", keeper.CODE)
"""Keys of a report that name a run: folders in which scripts record their runs, and the script that is not as it was submitted."""
RUN_ID = re.compile(r"[A-Za-z0-9][A-Za-z0-9._/-]{0,199}")
REPORTED = ("steps", "saved", "unsaved", "step_s", "loss", "reached", "epochs", "saved_epochs", "batch", "total")
"""Keys of a report that are read."""


class Task:
    """One gang's ranks on this machine, alive or ended, started by this agent or by one before it."""

    def __init__(self, root: Path, name: str, process: Child | None = None, system: System = SYSTEM) -> None:
        self.name, self.root, self.folder = name, root, root / "tasks" / name
        self.process, self.system = process, system
        raw = json.loads((self.folder / "task.json").read_text())
        self.spec: TaskSpec = build(TaskSpec, raw["spec"])
        self.port: int = raw["port"]
        self.cwd, self.log = Path(raw["cwd"]), Path(raw["logs"][0])
        # As the ranks have it in their environment: another installation on this machine may have a task of the same name.
        self._mark = f"THEMIS_RUN_DIR={raw['ranks'][0]['THEMIS_RUN_DIR']}".encode()
        self._read_up_to = 0
        self._reported: dict[str, Any] = {}
        """The last of each that was ever read."""
        self.runs: dict[str, str] = {}
        """The last run that rank 0 reported, by tracker."""
        self.cell = keeper.as_cell(raw)
        self._cleanup: list[list[str]] = raw.get("cleanup", [])
        """Commands that end a launcher's leftovers."""
        self.left: set[int] = set()
        """Processes that outlived the end of the gang."""
        self._left_recorded: dict[int, int] = {}
        """Those that are on disk, with when each started."""
        self.orphans: Callable[[], set[int]] = set
        """Processes without a supervisor, for the agent whose children they became."""
        self._lease_over = self._stop_over = math.inf
        """Deadlines of the supervisor, by its lease and by the requested stop."""
        self._lost_at = math.inf
        """Time at which its supervisor was found dead."""
        self._swept = False
        if process is not None:
            self._lease(raw["deadline"])

    # ---- processing ----------------------------------------------------------------------------------------------

    @classmethod
    def prepare(
        cls,
        root: Path,
        spec: TaskSpec,
        deadline: float,
        *,
        allow_root: bool = False,
        claims: tuple[int, ...] = (),
        means: Means = UNCONTAINED,
        system: System = SYSTEM,
        parts: Sequence[Part] = (),
    ) -> Task:
        """Write the task's folder and start its supervisor, which brings the ranks to the barrier.

        ``parts`` : archives of the copy that it begins with. ``claims`` : open files that its supervisor keeps open, and no rank
        gets (``machines.agent.gpus``). ``means`` : how gangs are contained and limited on this machine.

        Raises
        ------
        InputError : a user that is not there, a checkpoint folder that cannot be made.
        """
        spec = dataclasses.replace(spec, user=user_for(spec.user, allow_root=allow_root))
        if spec.checkpoint_url:
            own = root / "checkpoints" / spec.task
            spec = dataclasses.replace(spec, checkpoint_dir=str(own), make_checkpoint_dir=True)
        room = Room.make(root, spec)
        folder, logs = root / "tasks" / spec.task, root / "logs" / spec.task
        draft = folder.with_name(f".{spec.task}.new")
        remove(draft)
        (draft / "reports").mkdir(parents=True)
        (draft / "reports").chmod(0o700)
        _give(draft / "reports", spec.user)
        _show(draft, spec.user)
        logs.mkdir(parents=True, exist_ok=True)
        _show(logs, spec.user)
        if spec.make_checkpoint_dir:
            # A folder that the user named is made by the rank itself: root would hand over whatever was named.
            _make_for(Path(spec.checkpoint_dir), spec)
        room.link(spec, draft, parts)
        os.mkfifo(draft / "control", 0o600)
        if not (port := system.free_port()):
            raise InputError(f"none of 200 ports between {PORTS.start} and {PORTS.stop} is free on this machine.")
        cell = means.cell(folder, spec.memory, spec.cpus, spec.processes, spec.devices)
        envs = [rank_env(spec, i, str(folder)) for i in range(len(spec.ranks))]
        task = {
            "spec": dataclasses.asdict(spec),
            "port": port,
            "deadline": deadline,
            "argv": spec.argv,
            "cwd": room.cwd,
            **room.written(spec, folder, envs, parts),
            "user": spec.user,
            "grace_s": spec.grace_s,
            "stop_signal": spec.stop_signal,
            "log_bytes": spec.log_bytes,
            "ranks": envs,
            "exports": exports(spec, envs[0]),
            "secrets": spec.secrets,
            "logs": [str(logs / f"rank-{rank}.log") for rank in spec.ranks],
            "checkpoint_dir": spec.checkpoint_dir,
            "cell": dataclasses.asdict(cell),
            "memory": spec.memory if cell.memory else 0,
            "processes": spec.processes if cell.processes else 0,
        }
        # It may hold the submitter's secrets.
        with open(os.open(draft / "task.json", os.O_WRONLY | os.O_CREAT, 0o600), "w") as file:
            json.dump(task, file)
        # In one step: a folder that is there is whole.
        draft.rename(folder)
        try:
            with open(folder / "keeper.log", "wb") as errors:
                process = system.start([sys.executable, "-I", "-S", keeper.__file__, str(folder)], errors, claims)
        except OSError:
            remove(folder)
            cell.remove()
            room.remove()
            raise
        return cls(root, spec.task, process, system)

    def send(self, word: dict[str, Any]) -> None:
        """A line to the supervisor; lost when that has ended."""
        if "lease" in word:
            self._lease(float(word["lease"]))
        elif "stop" in word:
            self._stop_over = min(self._stop_over, self.system.clock() + float(word["grace_s"]) + STUCK_S + HUNG_S)
        with contextlib.suppress(OSError):
            control = os.open(self.folder / "control", os.O_WRONLY | os.O_NONBLOCK)
            try:
                os.write(control, json.dumps(word).encode() + b"\n")
            finally:
                os.close(control)

    def remove(self) -> None:
        """Drop the folder; logs and checkpoints stay."""
        self.cell.remove()
        Room.of(self.root, self.name).remove()
        if self.spec.checkpoint_url and checkpoint_copies.succeeded(self.folder):
            remove_later(Path(self.spec.checkpoint_dir))
        remove_later(self.folder)

    # ---- what can be seen ----------------------------------------------------------------------------------------

    def alive(self) -> bool:
        """True if its supervisor is."""
        return self.system.locked(self.folder / "lock") if self.process is None else self.process.poll() is None

    def state(self) -> TaskState:
        """The task's current state. A supervisor that is gone without an end takes its ranks along: cause ``lost``."""
        alive = self.alive()
        raw = self._status()
        phase = str(raw.get("phase", "preparing"))
        if phase != "ended" and not alive:
            self._sweep(raw)
            # A process that survives this hangs in the kernel: the gang has ended, but its GPUs are not free.
            over = not self.left or self.system.clock() >= self._lost_at + STUCK_S
            first, cause = raw.get("first"), raw.get("cause", "")
            return TaskState(
                task=self.name,
                phase="ended" if over else "stopping",
                # Ranks that were left behind did not end well, even if no ended rank failed.
                cause="lost" if first is None and cause in ("", "peer") else cause,
                first=first,
                port=self.port,
                message="the process that kept this job died",
            )
        if phase != "ended" and self.system.clock() >= min(self._lease_over, self._stop_over):
            self._end_supervisor()
        self.left = self._living(raw.get("left", ()))
        began, ended = float(raw.get("began", 0.0)), float(raw.get("ended", 0.0))
        return TaskState(
            task=self.name,
            phase=phase,
            port=self.port,
            cause=raw.get("cause", ""),
            first=raw.get("first"),
            codes=tuple(code if code is not None else -signal.SIGKILL for code in raw.get("codes", ()))
            if ended
            else (),
            killed=raw.get("killed", False),
            saved=raw.get("saved", False),
            message=raw.get("message", ""),
            seconds=max(round(ended - began, 3), 0.0) if began and ended else 0.0,
        )

    def _status(self) -> dict[str, Any]:
        with contextlib.suppress(OSError, ValueError):
            status: dict[str, Any] = json.loads((self.folder / "status.json").read_text())
            return status
        return {}

    def _lease(self, deadline: float) -> None:
        self._lease_over = deadline + self.spec.grace_s + STUCK_S + HUNG_S

    def _end_supervisor(self) -> None:
        """Kill a supervisor that should have ended its gang long ago: a stopped one, say, respects no lease."""
        if (pid := self.supervisor_pid()) and self.system.descendants(pid):
            with contextlib.suppress(OSError):
                self.system.kill(pid, signal.SIGKILL)

    def supervisor_pid(self) -> int:
        """Process id of the supervisor; 0 if it does not live."""
        with contextlib.suppress(OSError, ValueError):
            if self.alive():
                return self.process.pid if self.process else int((self.folder / "lock").read_text())
        return 0

    def processes(self) -> set[int]:
        """All processes of the gang here, including those that it left."""
        pid = self.supervisor_pid()
        return (self.system.descendants(pid) if pid else set()) | self.cell.pids() | self.left

    def _sweep(self, raw: dict[str, Any]) -> None:
        """End what a dead supervisor's gang left; ``left`` is what still lives.

        Its ranks died with it. Others are found by the gang's cgroup; by the first process of its PID namespace, with which all
        end; by the supervisor's record of its descendants; as orphans that became the agent's children; and by the path of its
        folder in their environment.
        """
        if self._swept:
            return
        self._lost_at = min(self._lost_at, self.system.clock())
        self.cell.kill()
        table = [*self.system.processes()]
        found = self.cell.pids() | self.orphans()
        for pid, start in self._recorded(raw):
            found |= self.system.kill_started(pid, start)
        for _ in range(len(table)):
            below = {pid for pid, parent, _ in table if parent in found} - found
            if not below:
                break
            found |= below
        found |= {pid for pid, _, _ in table if self._mark in self.system.environment(pid)}
        found.discard(self.system.getpid())
        for pid in found:
            with contextlib.suppress(OSError):
                self.system.kill(pid, signal.SIGKILL)
        self.left = {pid for pid, _, state in table if pid in found and state not in "ZX"}
        self._record_left()
        self._swept = not found and self.cell.empty()
        if self._swept:
            self.cell.remove()
            for command in self._cleanup:
                with contextlib.suppress(OSError):
                    self.system.start(command, sys.stderr.buffer, ())

    def _record_left(self) -> None:
        """Record leftover processes, as the supervisor did: the next agent is not the parent of these orphans."""
        left = {pid: start for pid in sorted(self.left) if (start := self.system.started(pid))}
        if left and left != self._left_recorded:
            draft = self.folder / "members.json.new"
            with contextlib.suppress(OSError):
                draft.write_text(json.dumps(left))
                draft.replace(self.folder / "members.json")
                self._left_recorded = left

    def _recorded(self, raw: dict[str, Any]) -> list[tuple[int, int]]:
        """Processes that the supervisor recorded, each with its start time."""
        init = raw.get("init") or (0, 0)
        out = [(int(init[0]), int(init[1]))] if init[0] else []
        with contextlib.suppress(OSError, ValueError):
            out += [(int(pid), start) for pid, start in json.loads((self.folder / "members.json").read_text()).items()]
        return out

    def _living(self, pids: Iterable[int]) -> set[int]:
        wanted = set(pids)
        return (
            {pid for pid, _, state in self.system.processes() if pid in wanted and state not in "ZX"}
            if wanted
            else set()
        )

    def report(self) -> TaskReport | None:
        """The latest value of each field that rank 0 reported since the last call; None without a report. The job owns
        the file, so its content is not trusted."""
        try:
            # The folder is the job's: it may have put a pipe or a link to anywhere in the file's place.
            handle = os.open(self.folder / "reports" / "reports.jsonl", os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
            with open(handle, "rb") as file:
                found = os.fstat(handle)
                if not stat.S_ISREG(found.st_mode):
                    return None
                # The last of each is enough, also for an agent that starts next to a job of weeks.
                self._read_up_to = max(self._read_up_to, found.st_size - READ_AT_MOST)
                file.seek(self._read_up_to)
                data = file.read(READ_AT_MOST)
        except OSError:
            return None
        # Half a line waits for its other half, unless it is longer than any of ours.
        whole = data.rfind(b"\n") + 1 or (len(data) if len(data) == READ_AT_MOST else 0)
        self._read_up_to += whole
        values: dict[str, Any] = {}
        for line in data[:whole].splitlines():
            # Brackets within brackets within brackets are no ValueError but end the reader's stack.
            with contextlib.suppress(ValueError, RecursionError):
                if isinstance(row := json.loads(line), dict):
                    values |= {name: row[name] for name in REPORTED if isinstance(row.get(name), int | float)}
                    if isinstance(row.get("metrics"), dict):
                        values["metrics"] = {**values.get("metrics", {}), **row["metrics"]}
                    self.runs |= {name: row[name] for name in TRACKERS if _is_run_id(row.get(name))}
        self._reported |= values
        return as_report(self.name, values) if values else None

    def whole_report(self) -> TaskReport | None:
        """All reports of rank 0, for an arbiter that may have missed some; None without any report.

        Without a pace, which is that since the last report and was sent, or is too old.
        """
        self.report()
        return as_report(self.name, {**self._reported, "step_s": 0}) if self._reported else None


def as_report(task: str, values: dict[str, Any]) -> TaskReport:
    """A report from a job's output: numbers within the limits of a report, nothing else."""

    def within(name: str, limit: limits.Number) -> float | None:
        value = values.get(name)
        if isinstance(value, bool) or not isinstance(value, int | float) or not limit.holds(value):
            return None
        return float(value)

    def done(name: str) -> float:
        return within(name, limits.DONE) or 0.0

    return TaskReport(
        task=task,
        steps=done("steps"),
        saved=done("saved"),
        step_s=within("step_s", limits.STEP_S) or 0.0,
        loss=within("loss", limits.LOSS),
        reached=values.get("reached") is True,
        epochs=done("epochs"),
        saved_epochs=done("saved_epochs"),
        batch=int(min(done("batch"), limits.BATCH.most)),
        unsaved=done("unsaved"),
        total=done("total"),
        metrics=_metrics(values.get("metrics", {})),
    )


def _metrics(values: dict[str, Any]) -> tuple[Metric, ...]:
    """Metrics within the limits of a report; a value that is no number stays as None, so that it is seen."""
    found = [
        Metric(name=name, value=float(value) if limits.LOSS.holds(value) else None)
        for name, value in values.items()
        if limits.METRIC.holds(name) and isinstance(value, int | float) and not isinstance(value, bool)
    ]
    return tuple(found[: limits.METRICS.most])


def _is_run_id(value: object) -> bool:
    return isinstance(value, str) and RUN_ID.fullmatch(value) is not None


def user_for(name: str, *, allow_root: bool) -> str:
    """The system user to change to; empty for none, as where the agent is not root and all jobs run as its own user.

    Raises
    ------
    InputError : no such user; nobody, or an account with uid 0, named to an agent that runs as root without ``allow_root``.
    """
    if os.geteuid() != 0:
        return ""
    try:
        # By its number: an account of any name may be root's.
        root = not name or pwd.getpwnam(name).pw_uid == 0
    except KeyError:
        close = closest(name, [entry.pw_name for entry in pwd.getpwall() if entry.pw_uid])
        raise InputError(f"user {name!r} does not exist on this machine.{close} Create it, or name another.") from None
    if not root:
        return name
    if allow_root:
        return ""
    if name:
        also = "" if name == "root" else f": user {name!r} has uid 0"
        raise InputError(
            f"the job would run as root{also}. Submit it as another system user, or start the service with --allow-root where "
            "everybody may be root."
        )
    raise InputError(
        "the job would run as the service's own user, which is root. Start it as another user, or with --allow-root "
        "where everybody may be root."
    )


def _make_for(path: Path, spec: TaskSpec) -> None:
    """The folder, owned by the job's user from the moment that it is made."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.mkdir(mode=0o700)
        _give(path, spec.user)
    except FileExistsError:
        return
    except OSError as error:
        raise InputError(f"job {spec.job}: cannot make its folder {path}: {error.strerror}.") from error


def _show(path: Path, user: str) -> None:
    """Make a folder readable by the user alone, but keep it root's: root writes there."""
    if os.geteuid() == 0 and user:
        os.chown(path, 0, pwd.getpwnam(user).pw_gid)
        path.chmod(0o750)


def _give(path: Path, user: str) -> None:
    if os.geteuid() == 0 and user:
        entry = pwd.getpwnam(user)
        os.chown(path, entry.pw_uid, entry.pw_gid)
