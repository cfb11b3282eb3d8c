"""Gangs over node agents: commands and agents' messages in; messages, events and notes out. No clock, no sockets.

A gang's states and transitions are the table in ``lifecycle``. For every part of a gang (its ranks on one machine) there is the
goal of the gang's state, and what its agent reported last; after each change, and on each new connection, the agent is sent what
is missing. So a lost connection, an agent that was killed and a restarted arbiter need no case of their own. A gang starts in two
phases: all machines bring their ranks to the barrier (``Prepare``), then all ranks pass it (``Go``); if one cannot, none runs.

A machine holds a lease of ``lease_s``. When it lapses, the machine counts as failed immediately, but the GPUs of its gangs are
free only after the grace period, when their supervisors have ended all processes.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TypeAlias

from themis import limits
from themis.errors import InvariantBroken
from themis.machines.agent.environment import gang_env
from themis.machines.agent.keeper import PEERS_S
from themis.machines.agent.messages import (
    DiskUse,
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
    Prepare,
    ProtocolError,
    Renew,
    Stop,
    TaskIdle,
    TaskReport,
    TaskRuns,
    TaskSpec,
    TaskState,
    Tell,
)
from themis.machines.engines.disks import Disks
from themis.machines.engines.endings import Pace, how_it_ended
from themis.machines.engines.gang import Gang, GangPart, Node, too_old, went_wrong
from themis.machines.engines.gang_lifecycle import MISSING, Action, GangEvent, GangState, Goal, PartState, transition
from themis.machines.engines.hosts import NO_TARGET, TASK, Host, NodeSettings, task_name, task_specs
from themis.machines.engines.program import (
    DISK,
    AttemptEnded,
    DiskWarning,
    Ending,
    GangIntrudes,
    MachineRejected,
    Note,
    Programs,
    RunReported,
)
from themis.machines.engines.progress import measurement, metrics_events, progress_events
from themis.model.events import (
    Command,
    Event,
    GpusWithheld,
    Grant,
    JobReached,
    JobStarted,
    JobStopped,
    MachineFailed,
    MachineReturned,
    Revoke,
)
from themis.model.units import Seconds
from themis.model.workload import App

BAR_S, REJECTIONS, FORGET_S = 10.0, 3, 3600.0
"""Seconds for which nothing is read of a machine after a rejected message; number of rejections within ``FORGET_S``
after which it stays out of service.
"""
ORPHANS = 1024
"""Tasks of one machine unknown to the service: those of a restored older journal."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Send:
    """Send this message to the agent of a machine, if it is connected."""

    machine: int
    message: Message


Out: TypeAlias = Send | Event | Note


class Gangs:
    """All gangs and machines; every method returns what is to be done."""

    def __init__(
        self,
        hosts: Sequence[Host],
        programs: Programs,
        settings: NodeSettings,
        *,
        now: Seconds,
        checkpoints: str,
        pace: Pace | None = None,
        lease_before_s: Seconds = 0.0,
    ) -> None:
        """``lease_before_s`` : length of the leases that an arbiter before this one gave; some of them may still run."""
        self.first_lease_s = max(settings.lease_s, lease_before_s)
        self.settings, self.programs, self.checkpoints, self.pace = settings, programs, checkpoints, pace
        self.hosts = list(hosts)
        self.nodes = [Node(host=host, lease_until=now + self.first_lease_s) for host in hosts]
        self.places = [(n, i) for n, host in enumerate(hosts) for i in range(host.machine.gpus)]
        """Machine and position of each GPU. GPUs that left keep their entries, and use them again when they return."""
        self.jobs: dict[int, tuple[App, int]] = {}
        self.saved: dict[int, float] = {}
        """Steps in each job's checkpoint."""
        self.gangs: dict[int, Gang] = {}
        """By job; finished ones are removed, so that the table does not grow with all jobs that ever ran."""
        self.of_task: dict[str, Gang] = {}
        """By the name of the gang's tasks, until its end is recorded."""
        self.out: list[Out] = []
        self.now = now
        self.disks = Disks(settings.user_disk, settings.disk_reserve, lambda n: self.hosts[n].machine.name)

    def join(self, host: Host, now: Seconds) -> None:
        """One more machine, with the next id."""
        self.places += [(len(self.hosts), i) for i in range(host.machine.gpus)]
        self.hosts.append(host)
        self.nodes.append(Node(host=host, lease_until=now + self.first_lease_s))

    def resize(self, machine: int, host: Host | None, now: Seconds) -> list[Out]:
        """A machine has other GPUs from now on; None: it is removed, as soon as its gangs ended, and nothing is said of it."""
        self.now, node = now, self.nodes[machine]
        if host is None:
            node.leaving = node.failed = True
            return self._done()
        known = sum(n == machine for n, _ in self.places)
        self.places += [(machine, i) for i in range(known, host.machine.gpus)]
        self.hosts[machine] = node.host = host
        if node.leaving:
            # It returns when its agent renews its lease, having said what is still on its GPUs.
            node.leaving, node.failed = False, True
            node.awaited = -1 if node.connected else None
            node.lease_until = max(node.lease_until, now + self.settings.lease_s)
        occupied, node.occupied = node.occupied, None
        if occupied:
            self._occupied(machine, occupied)
        return self._done()

    def is_empty(self, machine: int) -> bool:
        """True if no gang, nor what an earlier arbiter left, is on a machine."""
        here = any(machine in gang.parts and not gang.parts[machine].ended for gang in self.gangs.values())
        return not here and not self.nodes[machine].orphan_tasks

    def specs_on(self, machine: int) -> list[TaskSpec]:
        """The parts of gangs on a machine that have not ended."""
        parts = (gang.parts[machine] for gang in self.gangs.values() if machine in gang.parts)
        return [part.spec for part in parts if not part.ended]

    def found(self, machine: int, host: Host) -> None:
        """A machine is where its engine reports it: for gangs that are granted from now on."""
        node = self.nodes[machine]
        self.hosts[machine] = node.host = host
        node.leaving, node.ends_at = False, math.inf

    def leaves(self, machine: int, now: Seconds, *, dead: bool, within_s: Seconds = 0.0) -> list[Out]:
        """A machine was lost, or will be taken away: nothing more is placed on it; what is there ends, or ends with its lease."""
        self.now, node = now, self.nodes[machine]
        if not dead:
            node.leaving, node.ends_at = True, now + within_s if within_s > 0 else math.inf
        self._empty(machine, drained=not dead)
        return self._done()

    def _takes_leave(self, machine: int, message: Leaving) -> None:
        """A machine's agent was told that the machine is taken away."""
        node = self.nodes[machine]
        node.away, node.ends_at = True, self.now + message.within_s
        self._empty(machine, drained=True)

    def _empty(self, machine: int, *, drained: bool) -> None:
        """Take a machine out of service; jobs on one that is still present (``drained``) save before its removal."""
        if not self.nodes[machine].failed:
            self.nodes[machine].failed = True
            self.out.append(MachineFailed(machine=machine, drained=drained))

    def reject(self, machine: int, reason: str, now: Seconds) -> list[Out]:
        """Take a machine that sent invalid data out of service; its gangs end as those of a silent machine do.

        Its data is not read for ``BAR_S`` seconds, twice as long after each rejection; after ``REJECTIONS`` rejections not
        until an administrator pardons it.
        """
        self.now, node = now, self.nodes[machine]
        node.rejections = node.rejections + 1 if now < node.rejected_at + FORGET_S else 1
        final = node.rejections >= REJECTIONS
        node.rejected, node.rejected_at = limits.REASON.cut(reason), now
        node.barred_until = math.inf if final else now + BAR_S * 2 ** (node.rejections - 1)
        if not node.failed:
            node.failed, node.ready = True, False
            self.out.append(MachineFailed(machine=machine, reason=node.rejected))
        if final:
            self.out.append(MachineRejected(machine=machine, reason=node.rejected))
        return self._done()

    def pardon(self, machine: int) -> None:
        """An administrator returns a machine to service: its messages are read again."""
        node = self.nodes[machine]
        node.rejected, node.rejections, node.barred_until = "", 0, -math.inf

    def admit(self, first_job: int, app: App) -> None:
        """Learn about an app's jobs."""
        for i in range(len(app.jobs)):
            self.jobs[first_job + i] = (app, i)

    def dismiss(self, jobs: Sequence[int]) -> None:
        """Nothing of these jobs will start again."""
        for job in jobs:
            self.jobs.pop(job, None)
            self.saved.pop(job, None)

    # ---- from the core --------------------------------------------------------------------------------------------

    def command(self, command: Command, now: Seconds) -> list[Out]:
        """Start or stop a gang; renewals need no action, other commands are not ours."""
        self.now = now
        if isinstance(command, Grant):
            self._grant(command, now, known=False)
        elif isinstance(command, Revoke):
            self._revoke(command)
        return self._done()

    def restore(self, grant: Grant, steps: float, now: Seconds, *, started: bool = True) -> list[Out]:
        """A gang that an arbiter before this one granted: its agents know whether it runs; ``steps`` as last saved.

        ``started`` : its ``JobStarted`` is known already.
        """
        self.saved[grant.job] = steps
        self._grant(grant, now, known=True, started=started)
        return self._done()

    def recorded(self, job: int, attempt: int, now: Seconds) -> list[Out]:
        """The arbiter will not forget how this attempt ended: its machines may."""
        self.now = now
        gang = self.of_task.pop(task_name(job, attempt), None)
        for n, part in gang.parts.items() if gang is not None else ():
            self._send(n, Forget(task=part.spec.task))
        return self._done()

    def restore_lost(self, machine: int) -> None:
        """A machine that an arbiter before this one took for failed: it returns when it renews its lease."""
        self.nodes[machine].failed = True

    def restore_withheld(self, machine: int) -> None:
        """GPUs of this machine are withheld by an arbiter before this one: its agent reports whether that is still so."""
        self.nodes[machine].occupied = None

    def _grant(self, grant: Grant, now: Seconds, *, known: bool, started: bool = False) -> None:
        if grant.job not in self.jobs:
            raise InvariantBroken(f"job {grant.job} was granted GPUs but never admitted.")
        app, index = self.jobs[grant.job]
        program = self.programs(app, index)
        # What a dynamic job is to do is counted in epochs, which its program's own steps are not.
        given = replace(grant, target=NO_TARGET) if app.jobs[index].dynamic else grant
        parts = {
            n: GangPart(spec=spec, known=known)
            for n, spec in task_specs(
                given,
                program,
                self.hosts,
                self.checkpoints,
                self.settings.log_bytes,
                self.places,
                self.settings,
            ).items()
        }
        self.gangs[grant.job] = Gang(
            app=app,
            job=app.jobs[index],
            grant=grant,
            program=program,
            parts=parts,
            since=now,
            base=self.saved.get(grant.job, 0.0),
            started=started,
        )
        self.of_task[task_name(grant.job, grant.attempt)] = self.gangs[grant.job]
        for gang in self._neighbours(self.gangs[grant.job]):
            gang.neighbours_at = now
        self._reconcile(self.gangs[grant.job])

    def _revoke(self, revoke: Revoke) -> None:
        gang = self.gangs.get(revoke.job)
        if gang is None or gang.grant.attempt != revoke.attempt:
            return
        self._happens(gang, GangEvent.STOP_ASKED, revoke.cause)
        self._reconcile(gang)

    # ---- from the machines ----------------------------------------------------------------------------------------

    def handle_message(self, machine: int, message: Message, now: Seconds) -> list[Out]:
        """Take in an agent's message.

        Raises
        ------
        ProtocolError : it says what this machine cannot say, or may not.
        """
        self.now = now
        match message:
            case Hello():
                self._check_own(machine, message)
                self._check_gpus(machine, [item.gpus for item in message.occupied])
                self._check_gpus(machine, [(item.gpu,) for item in message.intrusions])
                self._hello(machine, message, now)
            case Renew():
                self._renewed(machine, message, now)
            case TaskState():
                self._state(machine, message)
            case GpusOccupied():
                self._check_gpus(machine, [item.gpus for item in message.items])
                self._occupied(machine, message.items)
            case TaskReport():
                self._report(machine, message, now)
            case Intrusions():
                self._check_gpus(machine, [(item.gpu,) for item in message.items])
                self._intrusions(machine, message.items)
            case TaskIdle():
                self._idle(machine, message)
            case TaskRuns():
                self._runs(machine, message)
            case DiskUse():
                self._disk_use(machine, message, now)
            case Leaving():
                self._takes_leave(machine, message)
            case _:
                raise ProtocolError(f"it sends {type(message).__name__}, which no machine may.")
        return self._done()

    def disconnected(self, machine: int) -> None:
        """The connection is lost; the machine's lease continues."""
        self.nodes[machine].ready = self.nodes[machine].connected = False
        self.disks.forget(machine)
        for gang in self.gangs.values():
            if machine in gang.parts:
                gang.parts[machine].sent = None

    def _check_own(self, machine: int, hello: Hello) -> None:
        if hello.node != self.hosts[machine].machine.name:
            raise ProtocolError(f"it speaks for machine {hello.node!r}, which it may not.")

    def _check_gpus(self, machine: int, named: Sequence[Sequence[int]]) -> None:
        """GPUs of a message are the machine's, those included that it had, and each is named once."""
        known = sum(n == machine for n, _ in self.places) if named else 0
        for gpus in named:
            wrong = sorted(gpu for gpu in set(gpus) if gpu >= known or gpus.count(gpu) > 1)
            if wrong:
                raise ProtocolError(
                    f"it names GPUs {', '.join(map(str, gpus[:8]))}, expected each once, from 0 to {known - 1}."
                )

    def _hello(self, machine: int, hello: Hello, now: Seconds) -> None:
        node = self.nodes[machine]
        node.awaited = None
        if node.away:
            node.away, node.ends_at = False, math.inf
        node.connected, node.niceness, node.trust = True, hello.niceness, hello.trust
        node.containment, node.limits, node.protocol = hello.containment, hello.limits, hello.protocol
        node.orphan_tasks.clear()
        # Before the ended gangs release these GPUs.
        self._occupied(machine, hello.occupied)
        kept = {state.task for state in hello.tasks}
        # Before the states: how a task ended depends on its last report.
        for report in hello.reports:
            self._report(machine, report, now)
        for state in hello.tasks:
            self._state(machine, state)
        self._intrusions(machine, hello.intrusions)
        for gang in [g for g in self.gangs.values() if machine in g.parts and not g.ended]:
            part = gang.parts[machine]
            if part.known and not part.ended and part.spec.task not in kept:
                part.state = TaskState(
                    task=part.spec.task, phase="ended", cause="lost", message="its machine forgot it"
                )
                self._reconcile(gang)

    def _occupied(self, machine: int, items: tuple[Occupied, ...]) -> None:
        """GPUs that cannot be used as long as these processes live, or these faults last."""
        node = self.nodes[machine]
        if node.occupied == items:
            return
        node.occupied = items
        here = self._gpus_of(machine)
        parts = [set(range(len(here))) - set(item.gpus) if item.whole else item.gpus for item in items]
        slots = sorted({slot for part in parts for slot in part if slot < len(here)})
        pids = sorted({pid for item in items for pid in item.pids})[: limits.IDS.most]
        reason = limits.REASON.cut("; ".join(item.reason for item in items))
        self.out.append(
            GpusWithheld(machine=machine, gpus=tuple(here[s] for s in slots), pids=tuple(pids), reason=reason)
        )

    def _gpus_of(self, machine: int) -> list[int]:
        """Ids of a machine's GPUs, by position there."""
        return [g for g, (n, _) in enumerate(self.places) if n == machine][: self.nodes[machine].host.machine.gpus]

    def _intrusions(self, machine: int, items: tuple[Intrusion, ...]) -> None:
        """Gangs on GPUs that they do not hold; reported where that changed."""
        here, found = self._gpus_of(machine), dict[str, dict[int, set[int]]]()
        for item in items:
            if item.gpu < len(here):
                found.setdefault(item.task, {}).setdefault(here[item.gpu], set()).update(item.pids)
        for gang in self.gangs.values():
            if machine not in gang.parts or gang.ended:
                continue
            on = {
                g: pids for g, pids in found.get(gang.parts[machine].spec.task, {}).items() if g not in gang.grant.gpus
            }
            if gang.intrudes.get(machine, ()) == (gpus := tuple(sorted(on))):
                continue
            gang.intrudes[machine] = gpus
            grant, pids = gang.grant, tuple(sorted(set().union(*on.values())))
            self.out.append(
                GangIntrudes(app=grant.app, job=grant.job, attempt=grant.attempt, machine=machine, gpus=gpus, pids=pids)
            )

    def _renewed(self, machine: int, renew: Renew, now: Seconds) -> None:
        node = self.nodes[machine]
        node.lease_until = max(node.lease_until, now + self.settings.lease_s)
        self.out.append(Send(machine=machine, message=Lease(sequence=renew.sequence, lease_s=self.settings.lease_s)))
        if node.awaited is not None and renew.heard is not None:
            node.awaited = renew.sequence if node.awaited < 0 else node.awaited
            if renew.heard < node.awaited:
                return
        node.awaited = None
        if node.failed or not node.ready:
            node.ready = True
            self._readmit(machine)

    def _state(self, machine: int, state: TaskState) -> None:
        gang = self.of_task.get(state.task)
        if gang is None or machine not in gang.parts or gang.ended:
            self._orphan(machine, state, recorded=gang is None)
            return
        part = gang.parts[machine]
        if not part.ended:
            part.state, part.known = state, True
            if gang.goal is part.sent is Goal.STOP and part.phase in MISSING[Goal.STOP]:
                # Its supervisor did not listen yet; where it did, a second Stop changes nothing.
                part.sent = None
            self._reconcile(gang)

    def _orphan(self, machine: int, state: TaskState, *, recorded: bool) -> None:
        """An attempt that is already recorded here, or one of an arbiter with another journal."""
        orphan_tasks = self.nodes[machine].orphan_tasks
        if state.phase != "ended":
            if state.task not in orphan_tasks and (len(orphan_tasks) >= ORPHANS or not TASK.fullmatch(state.task)):
                raise ProtocolError(
                    f"it has a task {state.task!r} that it was never given, after {len(orphan_tasks)} others; expected the "
                    f"names of attempts, and at most {ORPHANS} of them."
                )
            orphan_tasks.add(state.task)
            self._send(machine, Stop(task=state.task, cause="unknown", grace_s=60.0))
            return
        if recorded:
            self._send(machine, Forget(task=state.task))
        if state.task in orphan_tasks:
            orphan_tasks.remove(state.task)
            self._readmit(machine)

    def _readmit(self, machine: int) -> None:
        """Return a machine with a valid lease to service, as soon as no orphan is on it."""
        node = self.nodes[machine]
        if not node.ready or node.orphan_tasks:
            return
        if node.failed and not node.leaving and not node.away:
            node.failed, node.rejected = False, ""
            self.out.append(MachineReturned(machine=machine))
        for gang in [g for g in self.gangs.values() if machine in g.parts]:
            self._reconcile(gang)

    def _report(self, machine: int, report: TaskReport, now: Seconds) -> None:
        gang = self.of_task.get(report.task)
        if gang is None or machine not in gang.parts or gang.ended:
            return
        gang.last = report
        self.out += metrics_events(gang, report, now, every_s=self.settings.progress_s)
        gang.idle.reported(report, now)
        if not gang.program.own_steps:
            return
        gang.report = report
        _, saved = gang.progress(report)
        if saved > 0:
            self.saved[gang.grant.job] = saved
        measured = measurement(gang, report, now, sharing=self._neighbours(gang), gpu_type=self._gpu_type(gang))
        if measured is not None:
            self.out.append(measured)
        if gang.started and gang.state is not GangState.PREEMPTED:
            self.out += progress_events(gang, report, now, every_s=self.settings.progress_s)

    def _neighbours(self, gang: Gang) -> list[Gang]:
        """Gangs that are on one of its GPUs too."""
        mine = set(gang.grant.gpus)
        return [g for g in self.gangs.values() if g is not gang and not g.ended and not mine.isdisjoint(g.grant.gpus)]

    def _idle(self, machine: int, message: TaskIdle) -> None:
        gang = self.of_task.get(message.task)
        if gang is not None and gang.state is GangState.RUNNING and machine in gang.parts:
            gang.idle.measured(machine, message)

    def _disk_use(self, machine: int, use: DiskUse, now: Seconds) -> None:
        for notice in self.disks.take(machine, use, self.of_task, now):
            gang, grant = notice.gang, notice.gang.grant
            if notice.stop:
                gang.why = notice.sentence
                self._happens(gang, GangEvent.PART_FAILED, DISK)
                self._reconcile(gang)
                continue
            note = DiskWarning(app=grant.app, job=grant.job, attempt=grant.attempt, sentence=notice.sentence)
            self.out.append(note)
            if notice.sentence:
                self._send(
                    next(iter(gang.parts)), Tell(task=task_name(grant.job, grant.attempt), message=notice.sentence)
                )

    def _runs(self, machine: int, message: TaskRuns) -> None:
        gang = self.of_task.get(message.task)
        for run in message.runs if gang is not None and machine in gang.parts else ():
            assert gang is not None
            if run in gang.runs or len(gang.runs) >= limits.RUNS.most:
                continue
            gang.runs.add(run)
            tracker, _, name = run.partition(":")
            app, job, attempt = gang.grant.app, gang.grant.job, gang.grant.attempt
            self.out.append(RunReported(app=app, job=job, attempt=attempt, tracker=tracker, run=name))

    # ---- time -----------------------------------------------------------------------------------------------------

    def tick(self, now: Seconds) -> list[Out]:
        """Handle what is due: expired leases of machines, and gangs that did not get ready in time."""
        self.now = now
        for n, node in enumerate(self.nodes):
            if now >= node.lease_until and not node.failed:
                node.failed, node.ready = True, False
                node.awaited = -1 if node.connected else None
                self.out.append(MachineFailed(machine=n))
        for gang in [g for g in self.gangs.values() if not g.ended]:
            # Fetching and preparing have their own limits on the machines, whose messages are more specific.
            setup_s = 2 * max(part.spec.setup_s for part in gang.parts.values())
            if gang.state is GangState.PREPARING and now >= gang.since + self.settings.prepare_s + setup_s:
                self._happens(gang, GangEvent.TIMEOUT, "lost")
                self._reconcile(gang)
            if gang.state is GangState.RUNNING:
                idle = gang.idle.look(
                    gang.grant, now, after_s=self.settings.idle_after_s, every_s=self.settings.idle_every_s
                )
                self.out += [idle] if idle is not None else []
            for n, part in gang.parts.items():
                dead_at = self.nodes[n].lease_until + gang.program.grace_s + self.settings.margin_s
                if self.nodes[n].failed and not part.ended and now >= dead_at:
                    part.state = TaskState(
                        task=part.spec.task, phase="ended", cause="lost", message="the lease of its machine lapsed"
                    )
                    self._reconcile(gang)
        return self._done()

    @property
    def running(self) -> int:
        """Gangs that still hold GPUs."""
        return sum(not gang.ended for gang in self.gangs.values())

    def stop_all(self, cause: str) -> list[Out]:
        """Stop every gang, as if the scheduler asked for it."""
        for gang in [g for g in self.gangs.values() if not g.ended]:
            self._happens(gang, GangEvent.STOP_ASKED, cause)
            self._reconcile(gang)
        return self._done()

    # ---- what should be, against what is ---------------------------------------------------------------------------

    def _happens(self, gang: Gang, event: GangEvent, cause: str = "", ended: AttemptEnded | None = None) -> None:
        """Follow the table: the gang's next state, and the records of this transition.

        ``cause`` : why it stops, where it does. ``ended`` : how it ended, once nothing of it is left.
        """
        then = transition(gang.state, event)
        if then.state.goal is Goal.STOP and gang.goal is not Goal.STOP:
            gang.cause = cause
        gang.state = then.state
        for action in then.actions:
            match action:
                case Action.STARTED:
                    self._started(gang)
                case Action.ATTEMPT_ENDED:
                    assert ended is not None
                    self._leave(gang, ended)
                case Action.REACHED:
                    self._reached(gang)
                case Action.STOPPED:
                    self._stopped(gang, own=ended is not None and ended.ending.is_own)

    def _reconcile(self, gang: Gang) -> None:
        """Notice what happened to the gang since, and send its agents what is missing."""
        if gang.ended:
            return
        for n, part in gang.parts.items():
            node = self.nodes[n]
            if gang.goal is Goal.PREPARE and not part.known and node.connected and node.protocol < part.spec.protocol:
                part.state = TaskState(
                    task=part.spec.task, phase="ended", cause="machine", message=too_old(node, part.spec)
                )
        phases = [part.phase for part in gang.parts.values()]
        ready = all(p is PartState.PREPARED for p in phases) or PartState.RUNNING in phases
        if gang.state is GangState.PREPARING and ready:
            self._happens(gang, GangEvent.ALL_PREPARED)
        if any(went_wrong(state) for state in gang.part_states):
            self._happens(gang, GangEvent.PART_FAILED, "gang")
        if gang.state is GangState.LAUNCHING and all(p.began for p in phases):
            self._happens(gang, GangEvent.ALL_BEGAN)
        for n, part in gang.parts.items():
            self._send_goal(gang, n, part)
        if all(part.ended for part in gang.parts.values()):
            ended = self._ended(gang)
            finished = ended.ending is Ending.FINISHED
            self._happens(gang, GangEvent.FINISHED if finished else GangEvent.ENDED, ended=ended)

    def _send_goal(self, gang: Gang, n: int, part: GangPart) -> None:
        """Send an agent the target state of its part of the gang, unless it was sent on this connection."""
        goal, node, phase = gang.goal, self.nodes[n], part.phase
        if goal is Goal.STOP and phase is PartState.UNREPORTED and not part.known and part.sent is None:
            # Its machine never received it.
            part.state = TaskState(task=part.spec.task, phase="ended", cause="gang")
        if goal is part.sent or not node.connected or phase not in MISSING[goal]:
            return
        if goal is Goal.PREPARE and (part.known or not node.ready or node.orphan_tasks):
            return
        self._send(n, self._message(gang, part))
        part.sent = goal

    def _message(self, gang: Gang, part: GangPart) -> Message:
        """The command that brings a part to the gang's goal."""
        match gang.goal:
            case Goal.PREPARE:
                return Prepare(spec=part.spec)
            case Goal.RUN:
                first, lead = next(iter(gang.parts.items()))
                assert lead.state is not None
                env = gang_env(self.nodes[first].host.address, lead.state.port, part.spec.per_machine)
                return Go(task=part.spec.task, env=env)
            case Goal.STOP:
                grace = min(gang.program.grace_s, max(self._ends_at(gang) - self.now, 0.0))
                grace = min(grace, PEERS_S) if gang.cause in ("gang", DISK) else grace
                return Stop(task=part.spec.task, cause=gang.cause, grace_s=grace, message=gang.why)

    def _ends_at(self, gang: Gang) -> Seconds:
        """Time at which the first of its machines is removed."""
        return min(self.nodes[n].ends_at for n in gang.parts)

    def _send(self, machine: int, message: Message) -> None:
        if self.nodes[machine].connected:
            self.out.append(Send(machine=machine, message=message))

    # ---- the records of transitions ---------------------------------------------------------------------------------

    def _started(self, gang: Gang) -> None:
        if not gang.started:
            gang.started = True
            self.out.append(JobStarted(job=gang.grant.job, attempt=gang.grant.attempt))

    def _ended(self, gang: Gang) -> AttemptEnded:
        saved = self.saved.get(gang.grant.job, gang.base)
        return how_it_ended(gang, saved=saved, pace=self.pace, gpu_type=self._gpu_type(gang))

    def _leave(self, gang: Gang, ended: AttemptEnded) -> None:
        """Finish a gang of which nothing is left on any machine."""
        if gang.last is not None:
            self.out += metrics_events(gang, gang.last, self.now, every_s=0.0)
        for other in self._neighbours(gang):
            other.neighbours_at = self.now
        self.saved[gang.grant.job] = ended.steps
        self.out.append(ended)

    def _reached(self, gang: Gang) -> None:
        job, loss = gang.grant.job, gang.report.loss if gang.report else None
        # A job that names no loss is the worst of its rung.
        loss = math.inf if loss is None else loss
        self.out.append(JobReached(job=job, attempt=gang.grant.attempt, steps=self.saved[job], loss=loss))

    def _stopped(self, gang: Gang, *, own: bool) -> None:
        job = gang.grant.job
        del self.gangs[job]
        self.out.append(JobStopped(job=job, attempt=gang.grant.attempt, steps=self.saved[job], own=own))

    def _gpu_type(self, gang: Gang) -> str:
        return self.nodes[next(iter(gang.parts))].host.machine.gpu_type

    def _done(self) -> list[Out]:
        out, self.out = self.out, []
        return out
