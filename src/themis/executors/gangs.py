"""Gangs over node agents: commands and agents' messages in; messages, events and notes out. No clock, no sockets.

For every part of a gang (its ranks on one machine) there is what should be and what the agent last said that is; after
each change what is missing is said again. So a lost connection, an agent that was killed, or an arbiter that starts
anew need no case of their own. A gang starts in two phases: all machines bring their ranks to the barrier
(``Prepare``), then all are let go; if one cannot, none runs.

A machine holds a lease of ``lease_s``. When it lapses the machine counts as failed at once, but its gangs have let go
of their GPUs only after the grace that its keepers give them.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import TypeAlias

from themis.errors import InvariantBroken
from themis.executors.gang import Gang, Node, Part, could_not_save, lost_work, went_wrong
from themis.executors.hosts import NO_TARGET, Host, NodeSettings, task_name, task_specs
from themis.executors.program import AttemptEnded, Ending, Measurement, Programs, ending_of
from themis.model.events import (
    BatchChanged,
    Command,
    Event,
    GpusWithheld,
    Grant,
    JobProgress,
    JobReached,
    JobStarted,
    JobStopped,
    LossReported,
    MachineFailed,
    MachineReturned,
    Revoke,
)  # fmt: skip
from themis.model.units import Locality, Seconds
from themis.model.workload import App, CurveStopping, Job
from themis.node.environment import gang_env
from themis.node.keeper import PEERS_S
from themis.node.messages import (
    Forget,
    Go,
    GpusOccupied,
    Hello,
    Lease,
    Message,
    Occupied,
    Prepare,
    Renew,
    Stop,
    TaskReport,
    TaskState,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Send:
    """Say this to the agent of a machine, if it is there."""

    machine: int
    message: Message


Out: TypeAlias = Send | Event | AttemptEnded | Measurement
Pace = Callable[[Job, Grant, str], float]
"""Believed steps per second of a job under a grant on a GPU type, for jobs that report nothing."""


class Gangs:
    """All gangs and machines; every method returns what is to be done."""

    def __init__(
        self, hosts: Sequence[Host], programs: Programs, settings: NodeSettings, *, now: Seconds, checkpoints: str,
        pace: Pace | None = None,
    ) -> None:  # fmt: skip
        self.settings, self.programs, self.checkpoints, self.pace = settings, programs, checkpoints, pace
        self.hosts = list(hosts)
        self.nodes = [Node(host=host, lease_until=now + settings.lease_s) for host in hosts]
        self.jobs: dict[int, tuple[App, int]] = {}
        self.saved: dict[int, float] = {}
        """Steps in each job's checkpoint."""
        self.gangs: dict[int, Gang] = {}
        """By job; those that are settled are gone from here, so that nothing grows with the jobs that ever ran."""
        self.of_task: dict[str, Gang] = {}
        """By the name of its tasks, until its end is recorded."""
        self.out: list[Out] = []
        self.now = now

    def join(self, host: Host, now: Seconds) -> None:
        """One more machine, with the next id."""
        self.hosts.append(host)
        self.nodes.append(Node(host=host, lease_until=now + self.settings.lease_s))

    def found(self, machine: int, host: Host) -> None:
        """A machine is where its engine says: for gangs that are granted from now on."""
        node = self.nodes[machine]
        self.hosts[machine] = node.host = host
        node.leaving, node.ends_at = False, math.inf

    def leaves(self, machine: int, now: Seconds, *, dead: bool, within_s: Seconds = 0.0) -> list[Out]:
        """A machine was lost, or will be taken away: nothing more is placed on it; what is there ends, or ends with its lease."""
        self.now, node = now, self.nodes[machine]
        if not dead:
            node.leaving, node.ends_at = True, now + within_s if within_s > 0 else math.inf
        if not node.failed:
            node.failed = True
            self.out.append(MachineFailed(machine=machine))
        return self._done()

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
        """GPUs of this machine are withheld by an arbiter before this one: its agent says whether that is still so."""
        self.nodes[machine].occupied = None

    def _grant(self, grant: Grant, now: Seconds, *, known: bool, started: bool = False) -> None:
        if grant.job not in self.jobs:
            raise InvariantBroken(f"job {grant.job} was granted GPUs but never admitted.")
        app, index = self.jobs[grant.job]
        program = self.programs(app, index)
        # What a dynamic job is to do is counted in epochs, which its program's own steps are not.
        told = replace(grant, target=NO_TARGET) if app.jobs[index].dynamic else grant
        parts = {
            n: Part(spec=spec, known=known)
            for n, spec in task_specs(told, program, self.hosts, self.checkpoints, self.settings.log_bytes).items()
        }
        self.gangs[grant.job] = Gang(
            app=app, job=app.jobs[index], grant=grant, program=program, parts=parts, since=now,
            base=self.saved.get(grant.job, 0.0), started=started,
        )  # fmt: skip
        self.of_task[task_name(grant.job, grant.attempt)] = self.gangs[grant.job]
        for gang in self._neighbours(self.gangs[grant.job]):
            gang.neighbours_at = now
        self._settle(self.gangs[grant.job])

    def _revoke(self, revoke: Revoke) -> None:
        gang = self.gangs.get(revoke.job)
        if gang is None or gang.grant.attempt != revoke.attempt:
            return
        # A gang that was going down by itself already goes on doing so.
        gang.asked = gang.want != "stop"
        if gang.over:
            self._stopped(gang)
        else:
            self._stop(gang, revoke.cause)
            self._settle(gang)

    # ---- from the machines ----------------------------------------------------------------------------------------

    def heard(self, machine: int, message: Message, now: Seconds) -> list[Out]:
        """Take in what an agent said."""
        self.now = now
        match message:
            case Hello():
                self._hello(machine, message, now)
            case Renew():
                self._renewed(machine, message, now)
            case TaskState():
                self._state(machine, message)
            case GpusOccupied():
                self._occupied(machine, message.items)
            case TaskReport():
                self._report(machine, message, now)
            case _:
                pass
        return self._done()

    def hung_up(self, machine: int) -> None:
        """The connection is lost; its lease goes on."""
        self.nodes[machine].ready = self.nodes[machine].connected = False
        for gang in self.gangs.values():
            if machine in gang.parts:
                gang.parts[machine].said = ""

    def _hello(self, machine: int, hello: Hello, now: Seconds) -> None:
        node = self.nodes[machine]
        node.connected, node.niceness, node.trust = True, hello.niceness, hello.trust
        node.containment, node.limits = hello.containment, hello.limits
        node.strangers.clear()
        # Before gangs that ended let go of these GPUs.
        self._occupied(machine, hello.occupied)
        kept = {state.task for state in hello.tasks}
        # Before how they ended: what a rank said counts then.
        for report in hello.reports:
            self._report(machine, report, now)
        for state in hello.tasks:
            self._state(machine, state)
        for gang in [g for g in self.gangs.values() if machine in g.parts and not g.over]:
            part = gang.parts[machine]
            if part.known and not part.over and part.spec.task not in kept:
                part.state = TaskState(
                    task=part.spec.task, phase="ended", cause="lost", message="its machine forgot it"
                )
                self._settle(gang)

    def _occupied(self, machine: int, items: tuple[Occupied, ...]) -> None:
        """GPUs that cannot be used as long as these processes live."""
        node = self.nodes[machine]
        if node.occupied == items:
            return
        node.occupied = items
        first = sum(host.machine.gpus for host in self.hosts[:machine])
        slots = sorted({slot for item in items for slot in item.gpus if slot < node.host.machine.gpus})
        pids = sorted({pid for item in items for pid in item.pids})
        reason = "; ".join(item.reason for item in items)
        self.out.append(
            GpusWithheld(machine=machine, gpus=tuple(first + s for s in slots), pids=tuple(pids), reason=reason)
        )

    def _renewed(self, machine: int, renew: Renew, now: Seconds) -> None:
        node = self.nodes[machine]
        node.lease_until = now + self.settings.lease_s
        self.out.append(Send(machine=machine, message=Lease(sequence=renew.sequence, lease_s=self.settings.lease_s)))
        if node.failed or not node.ready:
            node.ready = True
            self._welcome(machine)

    def _state(self, machine: int, state: TaskState) -> None:
        gang = self.of_task.get(state.task)
        if gang is None or machine not in gang.parts or gang.over:
            self._stranger(machine, state, recorded=gang is None)
            return
        part = gang.parts[machine]
        if not part.over:
            part.state, part.known = state, True
            if gang.want == part.said == "stop" and state.phase in ("preparing", "prepared", "running"):
                # Its keeper was not listening yet; saying it again changes nothing where it was.
                part.said = ""
            self._settle(gang)

    def _stranger(self, machine: int, state: TaskState, *, recorded: bool) -> None:
        """An attempt that is settled here already, or one of an arbiter whose journal is not ours."""
        strangers = self.nodes[machine].strangers
        if state.phase != "ended":
            strangers.add(state.task)
            self._send(machine, Stop(task=state.task, cause="unknown", grace_s=60.0))
            return
        if recorded:
            self._send(machine, Forget(task=state.task))
        if state.task in strangers:
            strangers.remove(state.task)
            self._welcome(machine)

    def _welcome(self, machine: int) -> None:
        """A machine whose lease runs may serve, as soon as nothing is on it that should not be."""
        node = self.nodes[machine]
        if not node.ready or node.strangers:
            return
        if node.failed and not node.leaving:
            node.failed = False
            self.out.append(MachineReturned(machine=machine))
        for gang in [g for g in self.gangs.values() if machine in g.parts]:
            self._settle(gang)

    def _report(self, machine: int, report: TaskReport, now: Seconds) -> None:
        gang = self.of_task.get(report.task)
        if gang is None or machine not in gang.parts or gang.over:
            return
        gang.last = report
        if not gang.program.own_steps:
            return
        gang.report = report
        _, saved = gang.progress(report)
        if saved > 0:
            self.saved[gang.grant.job] = saved
        # A mean over steps of two batch sizes is the pace of neither.
        if report.step_s > 0 and not (gang.batch and gang.training_batch != gang.batch):
            # Its pace is that since its last report.
            begun, gang.reported_at = max(gang.reported_at, gang.since), now
            if gang.neighbours_at <= begun:
                partner, rate = self._partner(gang), 1.0 / (report.step_s * gang.model_steps)
                self.out.append(
                    Measurement(
                        job=gang.grant.job, attempt=gang.grant.attempt, model=gang.job.model, gpu_type=self._gpu_type(gang),
                        gpus=len(gang.grant.gpus), locality=Locality(gang.grant.locality), steps_per_s=rate,
                        batch=gang.training_batch, partner=partner[0], partner_batch=partner[1],
                    )
                )  # fmt: skip
        if gang.started and not gang.asked:
            self._pass_on(gang, report, now)

    def _neighbours(self, gang: Gang) -> list[Gang]:
        """Gangs that are on one of its GPUs too."""
        mine = set(gang.grant.gpus)
        return [g for g in self.gangs.values() if g is not gang and not g.over and not mine.isdisjoint(g.grant.gpus)]

    def _partner(self, gang: Gang) -> tuple[str, int]:
        """Model and batch size of the job that shares its GPUs, or none."""
        beside = self._neighbours(gang)
        return (beside[0].job.model, beside[0].training_batch) if beside else ("", 0)

    def _pass_on(self, gang: Gang, report: TaskReport, now: Seconds) -> None:
        """To the core: a loss where its curve stopping wants one, else the steps, not too often."""
        job, attempt = gang.grant.job, gang.grant.attempt
        steps = min(gang.progress(report)[0], gang.grant.target)
        tuner, dynamic = gang.app.tuner, gang.job.dynamic
        if dynamic and dynamic.hidden and report.batch not in (0, gang.batch):
            # Each attempt says where it begins: the one before may have ended before its last change was heard.
            gang.batch = report.batch
            self.out.append(BatchChanged(job=job, attempt=attempt, steps=steps, batch=report.batch))
        if isinstance(tuner, CurveStopping) and report.loss is not None and steps < gang.grant.target:
            check = int(steps / tuner.check_steps + 1e-6)
            if check > gang.check:
                gang.check = check
                self.out.append(LossReported(job=job, attempt=attempt, steps=steps, loss=report.loss))
        elif now >= gang.progress_at + self.settings.progress_s and steps > 0:
            gang.progress_at = now
            self.out.append(JobProgress(job=job, attempt=attempt, steps=steps))

    # ---- time -----------------------------------------------------------------------------------------------------

    def tick(self, now: Seconds) -> list[Out]:
        """What has become due: leases of machines that lapsed, gangs that did not get ready."""
        self.now = now
        for n, node in enumerate(self.nodes):
            if now >= node.lease_until and not node.failed:
                node.failed, node.ready = True, False
                self.out.append(MachineFailed(machine=n))
        for gang in [g for g in self.gangs.values() if not g.over]:
            if gang.want == "prepare" and now >= gang.since + self.settings.prepare_s:
                self._stop(gang, "lost")
                self._settle(gang)
            for n, part in gang.parts.items():
                dead_at = self.nodes[n].lease_until + gang.program.grace_s + self.settings.margin_s
                if self.nodes[n].failed and not part.over and now >= dead_at:
                    part.state = TaskState(
                        task=part.spec.task, phase="ended", cause="lost", message="the lease of its machine lapsed"
                    )
                    self._settle(gang)
        return self._done()

    @property
    def running(self) -> int:
        """Gangs that still hold GPUs."""
        return sum(not gang.over for gang in self.gangs.values())

    def stop_all(self, cause: str) -> list[Out]:
        """Tell every gang to stop, as the scheduler's wish."""
        for gang in [g for g in self.gangs.values() if not g.over]:
            gang.asked = gang.want != "stop"
            self._stop(gang, cause)
            self._settle(gang)
        return self._done()

    # ---- what should be, against what is ---------------------------------------------------------------------------

    def _stop(self, gang: Gang, cause: str) -> None:
        if gang.want != "stop":
            gang.want, gang.cause = "stop", cause

    def _settle(self, gang: Gang) -> None:
        """Say what is missing; notice what is complete."""
        if gang.over:
            return
        phases = [part.state.phase if part.state else "" for part in gang.parts.values()]
        if gang.want == "prepare" and (all(p == "prepared" for p in phases) or "running" in phases):
            gang.want = "run"
        if any(part.state and went_wrong(part.state) for part in gang.parts.values()):
            self._stop(gang, "gang")
        if gang.want == "run" and not gang.started and all(p not in ("", "preparing", "prepared") for p in phases):
            gang.started = True
            self.out.append(JobStarted(job=gang.grant.job, attempt=gang.grant.attempt))
        for n, part in gang.parts.items():
            self._say(gang, n, part)
        if all(part.over for part in gang.parts.values()):
            self._end(gang)

    def _say(self, gang: Gang, n: int, part: Part) -> None:
        """Tell an agent what its part of the gang should do, unless it knows."""
        phase = part.state.phase if part.state else ""
        if gang.want == "stop" and not phase and not part.known and not part.said:
            # Its machine never heard of it.
            part.state = TaskState(task=part.spec.task, phase="ended", cause="gang")
        if gang.want == part.said or not self.nodes[n].connected:
            return
        if gang.want == "stop" and phase in ("", "preparing", "prepared", "running"):
            grace = min(gang.program.grace_s, max(self._ends_at(gang) - self.now, 0.0))
            grace = min(grace, PEERS_S) if gang.cause == "gang" else grace
            self._send(n, Stop(task=part.spec.task, cause=gang.cause, grace_s=grace))
        elif (
            gang.want == "prepare"
            and not phase
            and not part.known
            and self.nodes[n].ready
            and not self.nodes[n].strangers
        ):
            self._send(n, Prepare(spec=part.spec))
        elif gang.want == "run" and phase == "prepared":
            first, lead = next(iter(gang.parts.items()))
            assert lead.state is not None
            env = gang_env(self.nodes[first].host.address, lead.state.port, part.spec.per_machine)
            self._send(n, Go(task=part.spec.task, env=env))
        else:
            return
        part.said = gang.want

    def _ends_at(self, gang: Gang) -> Seconds:
        """When the first of its machines is taken away."""
        return min(self.nodes[n].ends_at for n in gang.parts)

    def _send(self, machine: int, message: Message) -> None:
        if self.nodes[machine].connected:
            self.out.append(Send(machine=machine, message=message))

    def _end(self, gang: Gang) -> None:
        """Nothing of it is left on any machine: say how it ended, once."""
        gang.over = True
        for other in self._neighbours(gang):
            other.neighbours_at = self.now
        grant, states = gang.grant, [part.state for part in gang.parts.values() if part.state]
        # Parts that were stopped because of another say nothing about why the gang ended.
        culprit = next((s for s in states if went_wrong(s) and s.cause != "gang"), None)
        code = culprit.first if culprit else None
        # Keepers say why before they signal. If none had to, the end is the gang's own, whatever it was asked meanwhile.
        untouched = all(state.cause in ("", "peer") for state in states)
        asked = gang.asked and not untouched
        own = (untouched or culprit is not None) and not asked and gang.cause != "lost"
        cause = (culprit.cause if culprit else "") if own else gang.cause
        unsaved = could_not_save(gang.last) if asked else ""
        ending = Ending.FAILED if unsaved else ending_of(asked=asked, cause=cause, code=code)
        if unsaved:
            code = next((s.first for s in states if s.first is not None), None)
        steps = self._steps(gang, states, ending)
        self.saved[grant.job] = steps
        self.out.append(
            AttemptEnded(
                app=grant.app, job=grant.job, attempt=grant.attempt, ending=ending, cause=cause, code=code,
                seconds=max(s.seconds for s in states), steps=steps, saved=any(s.saved for s in states),
                killed=any(s.killed for s in states),
                message=next((s.message for s in states if s.message), "") or unsaved or lost_work(asked, gang, states),
            )
        )  # fmt: skip
        if ending is Ending.FINISHED:
            if not gang.started:
                self.out.append(JobStarted(job=grant.job, attempt=grant.attempt))
            loss = gang.report.loss if gang.report else None
            # A job that names no loss is the worst of its rung.
            loss = math.inf if loss is None else loss
            self.out.append(JobReached(job=grant.job, attempt=grant.attempt, steps=steps, loss=loss))
            if gang.asked:
                self._stopped(gang)  # its Revoke came already
        else:
            self._stopped(gang, own=ending.is_own)

    def _stopped(self, gang: Gang, *, own: bool = False) -> None:
        job = gang.grant.job
        del self.gangs[job]
        self.out.append(JobStopped(job=job, attempt=gang.grant.attempt, steps=self.saved[job], own=own))

    def _steps(self, gang: Gang, states: list[TaskState], ending: Ending) -> float:
        """Steps that the next attempt begins with.

        A program that ends with 0 without having said that it reached its target did all of its work. One that reports
        nothing but saved something is taken to have trained at the believed pace.
        """
        target, report = gang.grant.target, gang.report
        if ending is Ending.FINISHED:
            return target if report is not None and report.reached else gang.job.steps
        if report is not None:
            return min(self.saved.get(gang.grant.job, gang.base), target)
        if self.pace is not None and any(s.saved for s in states):
            trained = max(s.seconds for s in states) * self.pace(gang.job, gang.grant, self._gpu_type(gang))
            return min(gang.base + trained, target)
        return gang.base

    def _gpu_type(self, gang: Gang) -> str:
        return self.nodes[next(iter(gang.parts))].host.machine.gpu_type

    def _done(self) -> list[Out]:
        out, self.out = self.out, []
        return out
