"""The node agent: one process on each machine, between the arbiter and the supervisors.

It dials the arbiter, reports what it keeps, renews its lease and passes the new deadline on to its supervisors, and carries
out what the arbiter asks for. It decides nothing and remembers nothing that is not in the tasks' folders: killed and
started again it finds its gangs running, and those that ended meanwhile with how they ended. When the arbiter stays
away, the supervisors stop their gangs at the deadline by themselves; an agent without a lease starts nothing.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import math
import os
import signal
import sys
import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from themis.errors import InputError
from themis.limits import IDS
from themis.machines.agent.channel import Channel, ChannelClosed
from themis.machines.agent.foreign import Foreign
from themis.machines.agent.health import Health
from themis.machines.agent.idle_gpus import Idleness
from themis.machines.agent.job_files import Arrivals
from themis.machines.agent.means import UNCONTAINED, Means
from themis.machines.agent.messages import (
    PROTOCOL,
    CopyFound,
    Forget,
    Go,
    GpusOccupied,
    Hello,
    Intrusion,
    Intrusions,
    Lease,
    Leaving,
    Message,
    Occupied,
    Part,
    Piece,
    Prepare,
    Rejected,
    Renew,
    Stop,
    TaskRuns,
    TaskSpec,
    TaskState,
    Tell,
    Uploaded,
)
from themis.machines.agent.removal import remove_later
from themis.machines.agent.rooms import sweep_rooms, trim_environments
from themis.machines.agent.saving import Saving, note
from themis.machines.agent.system import SYSTEM, System
from themis.machines.agent.tasks import Task
from themis.machines.agent.usage import Usage

MACHINES_OWN = frozenset(
    (errno.ENOSPC, errno.EDQUOT, errno.EROFS, errno.EIO, errno.EAGAIN, errno.ENOMEM, errno.EMFILE, errno.ENFILE)
)
"""Errors that no job has to answer for: the agent writes to its own folder, and starts supervisors as its own user."""

BURST_S = 0.5
"""Seconds for arriving files before tasks are checked again."""
TRIM_S = 600.0
"""Between two looks at how large the packages of jobs are together."""
Dial = Callable[[], Channel | None]


@dataclass(frozen=True, slots=True, kw_only=True)
class AgentSettings:
    """Settings of an agent.

    Attributes
    ----------
    node : name of the machine in the cluster. ``root`` : folder of its tasks and logs, one agent each.
    renew_s : seconds between renewals of its lease, well below the lease itself.
    poll_s : seconds between looks at its tasks.
    allow_root : let jobs run as root. ``leave`` : end once the lease is over and nothing runs (agents started by an arbiter).
    notice_s : seconds that the machine has after SIGTERM: its jobs save and continue elsewhere, then the agent ends. 0: it ends at
        once, and its jobs stay for the next agent, as after SIGINT.
    claims : open files that the agent and its supervisors keep open (``machines.agent.gpus``).
    means : how gangs are contained and limited on this machine.
    devices : UUIDs of the machine's GPUs by position, where they are real.
    cache_bytes : of the bundles and environments that are kept here.
    reaper : orphans of the process come to it (PR_SET_CHILD_SUBREAPER), and all its children are supervisors or such orphans.
    """

    node: str
    root: Path
    renew_s: float = 10.0
    poll_s: float = 0.1
    allow_root: bool = False
    leave: bool = False
    notice_s: float = 0.0
    claims: tuple[int, ...] = ()
    means: Means = UNCONTAINED
    reaper: bool = False
    devices: tuple[str, ...] = ()
    cache_bytes: int = 50 << 30

    def __post_init__(self) -> None:
        if not self.renew_s > 0 or not self.poll_s > 0:
            raise InputError(
                f"node {self.node!r} has renew_s {self.renew_s}, poll_s {self.poll_s}, expected more than 0."
            )


@dataclass(slots=True)
class NodeAgent:
    """One machine's agent; ``dial`` returns a channel to the arbiter or None."""

    settings: AgentSettings
    dial: Dial
    channel: Channel | None = None
    deadline: float = 0.0
    """End of the lease, on ``clock``."""
    tasks: dict[str, Task] = field(default_factory=dict)
    reported: dict[str, TaskState] = field(default_factory=dict)
    """The state of each task that the arbiter received last."""
    failed: dict[str, TaskState] = field(default_factory=dict)
    """Tasks that could not be prepared."""
    sent: dict[int, float] = field(default_factory=dict)
    """When each unanswered ``Renew`` went out."""
    heard: int = 0
    """Sequence of the last ``Lease`` received."""
    occupied: tuple[Occupied, ...] = ()
    """The value that the arbiter received last."""
    intrusions: tuple[Intrusion, ...] = ()
    """Likewise."""
    forgotten: set[str] = field(default_factory=set)
    """Tasks that may be dropped once nothing of them lives."""
    sequence: int = 0
    renew_at: float = 0.0
    ending: bool = False
    leaves_at: float = math.inf
    """Time at which the machine is taken away, on ``clock``."""
    told: bool = False
    """The arbiter was told so on this connection."""
    system: System = SYSTEM
    runs_sent: dict[str, tuple[str, ...]] = field(default_factory=dict)
    """Runs of each task that the arbiter received last."""
    arrivals: Arrivals = field(init=False)
    """Tasks with files on their way."""
    trim_at: float = 0.0
    trimming: threading.Thread = field(default_factory=threading.Thread)
    saving: Saving = field(init=False)
    """Copies of checkpoints."""
    foreign: Foreign = field(init=False)
    idleness: Idleness = field(init=False)
    health: Health = field(init=False)
    usage: Usage = field(init=False)

    def __post_init__(self) -> None:
        self.foreign = Foreign(self.settings.devices, self._tasks_of)
        self.idleness = Idleness(self.settings.devices)
        self.health = Health(self.settings.root, self.settings.devices, self.system)
        self.usage = Usage(self.settings.root, self.system)
        self.saving = Saving(self.system)
        self.arrivals = Arrivals(self.settings.root, self.settings.cache_bytes, self.system)

    def run(self) -> None:
        """Run until asked to end; jobs stay for the next agent as long as the lease lasts."""
        with_lock = hold(self.settings.root)
        try:
            self.adopt()
            for number in (signal.SIGTERM, signal.SIGINT):
                signal.signal(number, self._told_to_end)
            while not self.ending:
                self.turn()
                if (self.settings.leave and self._idle()) or self._left():
                    break
            # Gangs that ended a moment ago: what copies their checkpoints outlives the agent.
            self._save({state.task: state for state in self.states()})
        finally:
            os.close(with_lock)

    def adopt(self) -> None:
        """Adopt all tasks that earlier agents left."""
        folder = self.settings.root / "tasks"
        folder.mkdir(parents=True, exist_ok=True)
        for path in sorted(folder.iterdir()):
            if path.name.startswith("."):
                remove_later(path)  # half made, or half removed
                continue
            try:
                self._keep(Task(self.settings.root, path.name, system=self.system))
            except (OSError, ValueError, KeyError, TypeError, InputError) as error:
                # Power was lost while it was written: nothing of it lives, or another version's supervisor, until its lease ends.
                if self.system.locked(path / "lock"):
                    raise InputError(
                        f"{path} cannot be read ({error}), and its job still runs; wait until the job ends."
                    ) from None
                print(f"themis node: {path} cannot be read ({error}); it is dropped.", file=sys.stderr, flush=True)
                remove_later(path)
        sweep_rooms(self.settings.root, self.tasks)
        # The lease of a machine is not remembered; one that is granted again serves these tasks too.
        self.deadline = self.system.clock()

    def turn(self) -> None:
        """Handle the arbiter's messages, renew the lease when it is time, report what changed."""
        try:
            if self.channel is None:
                self._connect()
            if self.channel is None:
                # What a dead supervisor left is ended, and written down, whether or not an arbiter is there.
                self._save({state.task: state for state in self.states()})
                self.system.sleep(self.settings.poll_s)
                return
            if self.system.clock() >= self.renew_at:
                self._renew()
            for message in self.channel.receive(self.settings.poll_s):
                self.handle(message)
            if self.leaves_at < math.inf and not self.told:
                self.channel.send(Leaving(within_s=max(self.leaves_at - self.system.clock(), 0.0)))
                self.told = True
            self._arrive()
            # Pieces of files follow each other without all that a turn looks at, but a renewal is never late for them.
            until = min(self.system.clock() + BURST_S, self.renew_at)
            while (self.arrivals.waiting or self.saving.sending) and self.system.clock() < until:
                for message in self.channel.receive(self.settings.poll_s):
                    self.handle(message)
                self._arrive()
            self._report()
        except (ChannelClosed, InputError):
            self._hang_up()

    def handle(self, message: Message) -> None:
        """Carry out one message; repeated ones change nothing."""
        match message:
            case Lease():
                self.heard = max(self.heard, message.sequence)
                if self.system.clock() >= self.deadline:
                    # The arbiter took the machine for failed, and waits for this acknowledgement.
                    self.renew_at = 0.0
                since = self.sent.get(message.sequence)
                if since is not None:
                    self.deadline = max(self.deadline, since + message.lease_s)
                    self.sent = {n: t for n, t in self.sent.items() if n > message.sequence}
                    self._each({"lease": self.deadline})
            case Prepare(spec=spec):
                if spec.task in self.tasks:
                    return
                if spec.bundle or spec.copied:
                    self.arrivals.want(spec)
                else:
                    self._prepare(spec)
            case Piece():
                self.arrivals.take(message)
            case CopyFound():
                self.arrivals.found(message)
            case Uploaded():
                self.saving.take(message)
            case Go():
                self._say(message.task, {"go": dict(message.env)})
            case Stop():
                if (dropped := self.arrivals.drop(message.task)) is not None:
                    self._refuse(dropped, message.cause, "")
                self._say(message.task, {"stop": message.cause, "grace_s": message.grace_s, "message": message.message})
            case Tell():
                self._say(message.task, {"tell": message.message})
            case Forget():
                self._forget(message.task)
            case Rejected(reason=reason):
                print(
                    f"themis node: the service accepts nothing of this machine: {reason}", file=sys.stderr, flush=True
                )
            case _:
                pass

    def states(self) -> tuple[TaskState, ...]:
        """States of all tasks."""
        arriving = (TaskState(task=name, phase="preparing") for name in self.arrivals.waiting)
        return (*(task.state() for task in self.tasks.values()), *self.failed.values(), *arriving)

    def _prepare(self, spec: TaskSpec, parts: Sequence[Part] = (), noted: str = "") -> None:
        settings = self.settings
        try:
            if self.system.clock() >= self.deadline:
                self._refuse(spec, "lease", f"machine {settings.node!r} holds no lease")
                return
            task = Task.prepare(
                settings.root,
                spec,
                self.deadline,
                allow_root=settings.allow_root,
                claims=settings.claims,
                means=settings.means,
                system=self.system,
                parts=parts,
            )
            if noted:
                note(task, noted)
            self._keep(task)
            self.failed.pop(spec.task, None)
            if spec.packages:
                self._trim()
        except (InputError, OSError) as error:
            self._refuse(spec, "machine" if of_machine(error) else "not_started", str(error))

    def _arrive(self) -> None:
        """Request missing files of waiting tasks, start tasks with complete files, and send copies."""
        assert self.channel is not None
        for spec, parts, noted in self.arrivals.ready():
            self._prepare(spec, parts, noted)
        for spec, sentence in self.arrivals.failed():
            self._refuse(spec, "machine", sentence)
        for ask in (self.arrivals.copy_question, self.arrivals.question, self.saving.question):
            if (question := ask()) is not None:
                self.channel.send(question)

    def _save(self, states: Mapping[str, TaskState]) -> None:
        """Copy checkpoints that are due; a machine that cannot start a process for it tries again."""
        with contextlib.suppress(OSError):
            self.saving.look(self.tasks, states)

    def _trim(self) -> None:
        """Drop unused packages if they are too large together; one thread at a time."""
        if self.system.clock() >= self.trim_at and not self.trimming.is_alive():
            self.trim_at = self.system.clock() + TRIM_S
            self.trimming = trim_environments(self.settings.root, self.settings.cache_bytes)

    def _refuse(self, spec: TaskSpec, cause: str, message: str) -> None:
        self.failed[spec.task] = TaskState(task=spec.task, phase="ended", cause=cause, message=message)
        if spec.copied:
            self.saving.nothing(spec.task)

    def _keep(self, task: Task) -> None:
        self.tasks[task.name] = task
        if self.settings.reaper:
            task.orphans = self._orphans

    def _forget(self, name: str) -> None:
        self.failed.pop(name, None)
        if name in self.tasks and self.tasks[name].state().phase == "ended":
            self.forgotten.add(name)
            self._drop()
        else:
            self.reported.pop(name, None)

    def _drop(self) -> None:
        """Forget finished tasks once the arbiter has received their end: it may wait for that."""
        ended = {name for name, state in self.reported.items() if state.phase == "ended"}
        for name in [
            name
            for name in self.forgotten & ended
            if not self.tasks[name].left and not self.saving.busy(self.tasks[name])
        ]:
            self.forgotten.remove(name)
            self.tasks.pop(name).remove()
            self.runs_sent.pop(name, None)
            self.reported.pop(name, None)

    def _orphans(self) -> set[int]:
        """Orphans of gangs with dead supervisors, if they became this process's children; ended ones are reaped."""
        supervisors = {task.process.pid for task in self.tasks.values() if task.process is not None}
        found: set[int] = set()
        for pid in self.system.children(self.system.getpid()) - supervisors:
            with contextlib.suppress(ChildProcessError):
                if self.system.waitpid(pid)[0] == 0:
                    found |= {pid} | self.system.descendants(pid)
        return found

    def _occupied(self, states: Iterable[TaskState]) -> tuple[Occupied, ...]:
        """GPUs that are not safe to use, and why; ``states`` : of the tasks, as they were just found."""
        ended = {state.task for state in states if state.phase == "ended"}
        left = tuple(
            Occupied(gpus=task.spec.slots, pids=tuple(sorted(task.left))[: IDS.most], reason=f"{name} left it")
            for name, task in sorted(self.tasks.items())
            if task.left and name in ended
        )
        held = tuple(
            sorted({slot for name, task in self.tasks.items() if name not in ended for slot in task.spec.slots})
        )
        # A running gang needs no free disk space: a full disk revokes no GPUs.
        sick = tuple(replace(one, gpus=held) if one.whole else one for one in self.health.look())
        return left + self.foreign.look() + sick

    def _tasks_of(self, pids: set[int]) -> dict[int, TaskSpec]:
        """The processes, of those given, that belong to a gang of this machine or were left by it, each with its task."""
        parents = {pid: parent for pid, parent, _ in self.system.processes()}
        above = {pid: task.spec for task in self.tasks.values() if (pid := task.supervisor_pid())}
        inside = {pid: task.spec for task in self.tasks.values() for pid in task.cell.pids() | task.left}
        found = {pid: inside[pid] for pid in pids & inside.keys()}
        for pid in pids - inside.keys():
            ancestor = pid
            while ancestor in parents and ancestor not in above:
                ancestor = parents[ancestor]
            if ancestor in above:
                found[pid] = above[ancestor]
        return found

    def _say(self, name: str, word: dict[str, object]) -> None:
        if name in self.tasks:
            self.tasks[name].send(word)

    def _each(self, word: dict[str, object]) -> None:
        for task in self.tasks.values():
            task.send(word)

    def _connect(self) -> None:
        self.channel = self.dial()
        if self.channel is not None:
            states = self.states()
            # The arbiter may have missed what was sent on the last connection, or have forgotten it.
            reports = tuple(report for task in self.tasks.values() if (report := task.whole_report()) is not None)
            own = trust(self.settings.allow_root)
            nice = os.getpriority(os.PRIO_PROCESS, 0)
            self.occupied, means = self._occupied(states), self.settings.means
            self.intrusions = self.foreign.intrusions
            self.channel.send(
                Hello(
                    node=self.settings.node,
                    trust=own,
                    tasks=states,
                    reports=reports,
                    niceness=nice,
                    containment=means.containment,
                    limits=means.limits,
                    occupied=self.occupied,
                    intrusions=self.intrusions,
                    protocol=PROTOCOL,
                )
            )
            self.reported = {state.task: state for state in states}
            self.runs_sent.clear()
            self.renew_at, self.told = 0.0, False

    def _renew(self) -> None:
        assert self.channel is not None
        self.sequence += 1
        # Timed from before it is sent: the arbiter's lease of this machine always ends later than the machine's own.
        self.sent[self.sequence] = self.system.clock()
        self.renew_at = self.system.clock() + self.settings.renew_s
        self.channel.send(Renew(sequence=self.sequence, heard=self.heard))

    def _report(self) -> None:
        assert self.channel is not None
        self._drop()
        states = {name: task.state() for name, task in self.tasks.items()}
        self._save(states)
        # Send this before the gangs' endings: their GPUs are free then, except for these.
        if (occupied := self._occupied(states.values())) != self.occupied:
            self.channel.send(GpusOccupied(items=occupied))
            self.occupied = occupied
        if self.foreign.intrusions != self.intrusions:
            self.channel.send(Intrusions(items=self.foreign.intrusions))
            self.intrusions = self.foreign.intrusions
        for name, task in self.tasks.items():
            # The state first: what a rank reported before it ended then never arrives after its end.
            state = states[name]
            if (report := task.report()) is not None:
                self.channel.send(report)
            runs = tuple(f"{tracker}:{run}" for tracker, run in sorted(task.runs.items()))
            if runs != self.runs_sent.get(name, ()):
                self.channel.send(TaskRuns(task=name, runs=runs))
                self.runs_sent[name] = runs
            if state != self.reported.get(name):
                self.channel.send(state)
                self.reported[name] = state
        training = {name: self.tasks[name].spec.slots for name, state in states.items() if state.phase == "running"}
        for idle in self.idleness.look(training):
            self.channel.send(idle)
        alive = [name for name, state in states.items() if state.phase in ("prepared", "running", "stopping")]
        if (use := self.usage.look(self.tasks, alive)) is not None:
            self.channel.send(use)
        for name in self.arrivals.waiting:
            if name not in self.reported:
                self.reported[name] = TaskState(task=name, phase="preparing")
                self.channel.send(self.reported[name])
        for name, state in self.failed.items():
            if self.reported.get(name) != state:
                self.channel.send(state)
                self.reported[name] = state

    def _hang_up(self) -> None:
        if self.channel is not None:
            self.channel.close()
        self.channel = None
        self.arrivals.interrupted()
        self.saving.interrupted()
        self.sent.clear()
        self.system.sleep(self.settings.poll_s)

    def _idle(self) -> bool:
        """True without an arbiter and without tasks."""
        over = self.channel is None and self.system.clock() >= self.deadline
        return over and all(not task.alive() and not self.saving.working(task) for task in self.tasks.values())

    def _left(self) -> bool:
        """True for a machine that leaves once nothing is on it that the arbiter has not recorded, or its time is up."""
        clear = self.told and not self.tasks and not self.failed and not self.arrivals.waiting
        return self.leaves_at < math.inf and (clear or self.system.clock() >= self.leaves_at)

    def _told_to_end(self, number: int, *_: object) -> None:
        if number != signal.SIGTERM or not self.settings.notice_s:
            self.ending = True
        elif self.leaves_at == math.inf:
            self.leaves_at = self.system.clock() + self.settings.notice_s


def hold(root: Path) -> int:
    """The lock that makes this the folder's only agent.

    Raises
    ------
    InputError : another agent has it.
    """
    root.mkdir(parents=True, exist_ok=True)
    lock = os.open(root / "agent.lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        fcntl.lockf(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(lock)
        raise InputError(f"a node agent already runs on {root}; stop it first, or use another folder.") from None
    os.truncate(lock, 0)
    os.write(lock, str(os.getpid()).encode())
    return lock


def of_machine(error: BaseException) -> bool:
    """True if an operation failed because the machine lacks disk space, processes, files or memory, for any user."""
    number = getattr(error, "errno", None) or getattr(error.__cause__, "errno", None)
    return number in MACHINES_OWN


def trust(allow_root: bool = False) -> str:
    """Trust level that decides under which account jobs run, see ``Hello``."""
    if os.geteuid() != 0:
        return "single"
    return "root" if allow_root else "per_user"
