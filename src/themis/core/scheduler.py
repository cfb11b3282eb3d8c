"""The only door into the core: ``step(event, now)`` changes the state and returns commands.

No clock, no I/O, no threads. Within one instant the events come first, each with its own consequences; then ``Wake``
settles the instant with one decision (``core.decision``).
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import replace

import numpy as np

from themis.core import app_lifecycle, changes, fairness_unit, goodput, least_lease, phases, reference, regimes, rungs
from themis.core import take_snapshot as snapshots
from themis.core.decision import Decider
from themis.core.job_lifecycle import END, RELEASE, JobChange, move
from themis.core.leases import Freed
from themis.core.packed import unpack
from themis.core.placed_gangs import Placed
from themis.core.state import EPS, State
from themis.core.tables import ENDED, OUTCOMES, RUNNING, Status
from themis.core.validate import validate
from themis.fairness.forecasts.rules import FORECASTER, Forecaster
from themis.model.answers import Ask
from themis.model.events import (
    AccountingSet,
    AgentBid,
    Allocated,
    AppCancelled,
    AppHeld,
    AppResumed,
    AppSubmitted,
    BatchChanged,
    BidsCollected,
    Command,
    Compacted,
    CurveStopped,
    Event,
    FairnessSet,
    GoodputReported,
    GpusIdle,
    GpusIntruded,
    GpusWithheld,
    JobDelayed,
    JobEnded,
    JobGivenUp,
    JobProgress,
    JobReached,
    JobsOrdered,
    JobStarted,
    JobStopped,
    JournalRepaired,
    LossReported,
    MachineDraining,
    MachineFailed,
    MachineJoined,
    MachineResized,
    MachineReturned,
    MetricsReported,
    ProfilesSet,
    Quarantined,
    QuotaSet,
    SettingsChanged,
    SpeedMeasured,
    UserWeightsSet,
    Wake,
)
from themis.model.settings import Settings
from themis.model.snapshot import Kind, Snapshot
from themis.model.speed import ProfileBook
from themis.model.units import NONE, Seconds
from themis.model.workload import CurveStopping
from themis.policies.api import Cadence, Policy
from themis.policies.tuning.curves import Verdict
from themis.policies.tuning.split import choose_job


class Scheduler(Decider):
    """State and rules; the caller that answers ``Solve`` runs the policy."""

    def __init__(
        self,
        book: ProfileBook,
        settings: Settings,
        pace: Cadence,
        needs: frozenset[str] = frozenset(),
        forecaster: Forecaster = FORECASTER,
    ) -> None:
        super().__init__(State(book, settings, forecaster), pace, needs)
        self.state.keeps_reference = "reference" in needs
        self.settings = settings

    def step(self, event: Event, now: Seconds) -> list[Command]:
        """Take one event in and return what is to be done about it.

        An event that no log holds (a policy's request for bids, the bids) changes nothing of the state, not even its clock: a
        fold of the log does not see it, and the integrals are sums of floats that depend on where they are split.
        """
        self.out = self.leases.out = []
        unlogged = type(event) is BidsCollected or (type(event) is Allocated and isinstance(event.solved.answer, Ask))
        if not unlogged:
            self.state.advance(now)
        self._handle(event)
        if self.settings.validate:
            validate(self.state)
        return self.out

    def _handle(self, event: Event) -> None:
        s = self.state
        match event:
            # Answers to the pending question: their offer is still valid.
            case Allocated():
                self.allocated(event)
                return
            case BidsCollected():
                self.collected(event)
                return
        self.offer = None
        match event:
            # What happens most comes first.
            case JobStarted():
                if s.runs(event.job, event.attempt):
                    s.start(event.job)
                return
            case JobStopped():
                if self.leases.stopped(event):
                    self._changed()
                return
            case Wake():
                self.settle()
                return
            case AgentBid() | Compacted() | AccountingSet() | GpusIdle() | GpusIntruded() | MetricsReported():
                return
            case JobsOrdered():
                self._ordered(event)
                return
            case JobProgress():
                self._progress(event)
                return
            case BatchChanged():
                self._batch_changed(event)
                return
            case GoodputReported():
                goodput.reported(s, event)
                return
            case LossReported():
                self._loss(event)
                return
            case SpeedMeasured():
                # No reason to decide immediately, but the next decision is solved again.
                reference.advance(s)
                s.learn_speed(event)
                s.version += 1
                return
            case JobReached():
                self._reached(event)
            case AppSubmitted():
                app_lifecycle.add_app(s, event.app, event.weight, unknown=event.unknown)
                s.drop_plan()
            case AppCancelled():
                self._cancel(event.app)
            case AppHeld():
                self._hold(event.app)
            case AppResumed():
                s.quarantined_apps.discard(event.app)
                self._resume(event.app)
            case Quarantined():
                self._quarantine(event)
            case JobDelayed():
                s.jobs.ready[event.job] = event.until
                s.delayed.add(event.job)
                self._wake(event.until)
            case JobGivenUp():
                self._given_up(event.job, event.cause)
            case QuotaSet():
                self._set_quota(event)
            case JournalRepaired():
                self._repaired(event)
            case FairnessSet():
                reference.advance(s)
                fairness_unit.set_unit(s, event)
                s.drop_plan()
            case MachineJoined():
                reference.advance(s)
                s.add_machine(event.machine)
            case MachineFailed():
                self._machine_failed(event)
            case MachineReturned():
                reference.advance(s)
                s.quarantined_machines.discard(event.machine)
                s.set_machine_up(event.machine, True)
            case MachineDraining():
                self._machine_draining(event)
            case GpusWithheld():
                self._gpus_withheld(event)
            case SettingsChanged():
                self._settings_changed(event)
            case MachineResized():
                self._machine_resized(event)
            case ProfilesSet():
                reference.advance(s)
                s.set_profiles([unpack(profile) for profile in event.profiles])
                s.apps.stale[: s.apps.size] = 1
                s.drop_plan()
            case UserWeightsSet():
                reference.advance(s)
                fairness_unit.set_weights(s, event)
                s.drop_plan()
        self._changed()

    def use(self, policy: Policy) -> None:
        """Switch to another policy's cadence and give it what it asks for."""
        self.pace, self.needs = policy.pace, policy.needs
        self.drop_caches()

    def drop_caches(self) -> None:
        """Forget what earlier decisions computed: it may be dropped at any moment and changes no decision."""
        self.memo = snapshots.Memo()
        self.state.drop_caches()

    @property
    def stopping(self) -> Mapping[int, Seconds]:
        """Jobs whose gang has a pending stop request, with the time of the request."""
        return self.leases.stopping

    # ---- jobs and apps ----------------------------------------------------------------------------------------------

    def _reached(self, event: JobReached) -> None:
        s, j = self.state, event.job
        if not s.runs(j, event.attempt) and not self._reached_late(event):
            return
        a = int(s.jobs.app[j])
        held = bool(s.apps.held[a])
        if held:
            app_lifecycle.take_back(s, a)
        regimes.report(s, j, event.steps)
        s.jobs.loss[j] = event.loss
        complete = event.steps >= s.jobs.total[j] - 1e-6
        freed = self._move(j, "finished", END) if complete else self._move(j, "rung", JobChange.PAUSE)
        if complete:
            self._end(j, "completed")
        self._after(a, freed, self._poor(j, event.loss))
        if held:
            self._hold_again(a)

    def _reached_late(self, event: JobReached) -> bool:
        """True if a gang had finished its work before it was asked to stop (live only): the work is not repeated.

        Until it has released its GPUs no other gang trains the job, so the report is of that gang.
        """
        t, j = self.state.jobs, event.job
        unfinished = t.status[j] in (Status.WAITING, Status.RUNNING, Status.HELD)
        return bool(j in self.leases.stopping and unfinished and event.steps >= t.target[j] - 1e-6)

    def _batch_changed(self, event: BatchChanged) -> None:
        """Change a dynamic job's speed from now on; running leases stay."""
        s = self.state
        changed = s.runs(event.job, event.attempt) and regimes.batch_changed(s, event.job, event.steps, event.batch)
        if changed and self.pace.replan_on_regime:
            s.drop_plan()

    def _progress(self, event: JobProgress) -> None:
        """In plans that react to speed changes immediately, a new regime ends the plan in force."""
        s, j = self.state, event.job
        if not s.runs(j, event.attempt):
            return
        self.out += least_lease.reported(s, j, event.steps)
        before = int(s.jobs.regime[j])
        regimes.report(s, j, event.steps)
        if self.pace.replan_on_regime and s.jobs.regime[j] != before:
            s.drop_plan()

    def _loss(self, event: LossReported) -> None:
        """A check of curve stopping: only if jobs are given up is anything to be settled."""
        s, j = self.state, event.job
        if not s.runs(j, event.attempt):
            return
        self.out += least_lease.reported(s, j, event.steps)
        regimes.report(s, j, event.steps)
        s.jobs.loss[j] = event.loss
        poor = self._poor(j, event.loss)
        if poor:
            self._after(int(s.jobs.app[j]), [], poor)
            self._changed()

    def _poor(self, j: int, loss: float) -> list[Verdict]:
        """Jobs that curve stopping ends now that job ``j`` reported this loss at the steps that it has done."""
        s, a = self.state, int(self.state.jobs.app[j])
        tuner = s.app_specs[a].tuner
        return s.curves.report(s.jobs, s.app_jobs(a), tuner, j, loss) if isinstance(tuner, CurveStopping) else []

    def _after(self, a: int, freed: list[Freed], poor: list[Verdict]) -> None:
        """After jobs ended, paused or failed: the tuner continues; when all jobs have ended, the app ends too."""
        s = self.state
        s.drop_plan()
        jobs = s.app_jobs(a)
        for verdict in poor:
            freed += self._give_up(int(jobs[verdict.row]), verdict)
        if poor:
            phases.revise(s, a)
        if s.apps.kind[a] == Kind.HALVING:
            for j in rungs.advance(s, a):
                self._end(j, "stopped")
        s.apps.stale[a] = 1
        if (s.jobs.status[jobs] == ENDED).all():
            self._finish(a, "failed" if a in s.failed else "completed")
        else:
            for gpus, until, seat in freed:
                self._successor(a, gpus, until, seat)

    def _give_up(self, j: int, verdict: Verdict) -> list[Freed]:
        """End a job by curve stopping; returns its GPUs."""
        s = self.state
        freed = self._move(j, "stopped", END)
        s.curves.forget_job(j)
        self.out.append(
            CurveStopped(
                app=int(s.jobs.app[j]),
                job=j,
                steps=float(s.jobs.done[j]),
                forecast=verdict.forecast,
                deviation=verdict.deviation,
                standard=verdict.standard,
                chance=verdict.chance,
            )
        )
        self._end(j, "stopped")
        return freed

    def _finish(self, a: int, outcome: str) -> None:
        self.state.quarantined_apps.discard(a)
        self.out.append(app_lifecycle.finish_app(self.state, a, outcome))
        if isinstance(self.state.app_specs[a].tuner, CurveStopping):
            self.state.curves.forget_app(self.state.app_jobs(a).tolist())

    def _successor(self, a: int, gpus: tuple[int, ...], until: Seconds, seat: int) -> None:
        """A finished job's GPUs stay with its app until their lease ends, if another of its jobs can use them."""
        s = self.state
        shared = bool((s.gpu_job[list(gpus), 1 - seat] != NONE).any())
        if shared or until <= s.now + EPS or not s.open_gpus()[list(gpus)].all():
            return
        jobs, t = s.app_jobs(a), s.jobs
        gpu_type = int(s.machine_type[s.gpu_machine[gpus[0]]])
        fits = (t.status[jobs] == Status.WAITING) & (t.gpus_min[jobs] <= len(gpus)) & (len(gpus) <= t.gpus_max[jobs])
        fits &= s.allowed(jobs)[:, gpu_type] & (t.ready[jobs] <= s.now + EPS)
        job = choose_job(jobs, s.work_left(jobs), np.zeros(len(jobs), dtype=bool), fits, t.order[jobs])
        if job != NONE:
            self.leases.grant(Placed(job=job, gpus=gpus, seat=seat, until=until))

    def _move(self, j: int, cause: str, change: JobChange) -> list[Freed]:
        """Change a job's status; a running job loses its lease for this cause. Returns its GPUs."""
        s = self.state
        if s.jobs.one.status[j] == RUNNING:
            return [self.leases.revoke(j, cause, change)]
        move(s.jobs, j, change, s.now)
        return []

    def _move_all(self, a: int, those: tuple[Status, ...], change: JobChange, cause: str = "") -> None:
        """The same for an app's jobs in these statuses."""
        for j in self.state.app_jobs(a).tolist():
            if self.state.jobs.status[j] in those:
                self._move(j, cause, change)

    def _end(self, j: int, outcome: str) -> None:
        s = self.state
        s.jobs_in_system -= 1
        s.starts.pop(j, None)
        steps = float(s.jobs.done[j])
        alone = regimes.isolated_s(s, j, steps)
        s.jobs.outcome[j] = OUTCOMES.index(outcome)
        if outcome == "completed" and s.job_specs[j].dynamic is not None:
            regimes.remember(s, j)
        self.out.append(
            JobEnded(
                app=int(s.jobs.app[j]),
                job=j,
                outcome=outcome,
                steps=steps,
                isolated_s=alone,
                gpu_seconds=float(s.jobs.attained[j]),
            )
        )

    def _cancel(self, a: int) -> None:
        s = self.state
        if not s.apps.active[a]:
            return
        if s.apps.held[a]:
            app_lifecycle.take_back(s, a)
        for j in s.app_jobs(a).tolist():
            if s.jobs.status[j] != Status.ENDED:
                self._move(j, "cancelled", END)
                self._end(j, "cancelled")
        s.drop_plan()
        self._finish(a, "cancelled")

    def _given_up(self, j: int, cause: str) -> None:
        """Fail the job; its app's other jobs continue."""
        s, a = self.state, int(self.state.jobs.app[j])
        if s.jobs.status[j] == Status.ENDED:
            return
        held = bool(s.apps.held[a])
        if held:
            app_lifecycle.take_back(s, a)
        freed = self._move(j, cause, END)
        s.curves.forget_job(j)
        s.failed.add(a)
        self._end(j, "failed")
        self._after(a, freed, [])
        if held:
            self._hold_again(a)

    def _hold_again(self, a: int) -> None:
        """Reapply the hold to an app after an event, also to jobs that the end of a rung released."""
        s = self.state
        if s.apps.active[a]:
            self._move_all(a, (Status.WAITING,), JobChange.HOLD)
            app_lifecycle.set_aside(s, a)

    def _set_quota(self, event: QuotaSet) -> None:
        s = self.state
        s.quotas.pop(event.name, None)
        if event.gpus is not None:
            s.quotas[event.name] = (event.users, event.gpus)
        s.drop_plan()

    def _resume(self, a: int) -> None:
        s = self.state
        if not s.apps.held[a]:
            return
        app_lifecycle.take_back(s, a)
        self._move_all(a, (Status.HELD,), JobChange.RESUME)
        s.drop_plan()

    def _hold(self, a: int) -> None:
        s = self.state
        if s.apps.held[a] or not s.apps.active[a]:
            return
        self._move_all(a, (Status.WAITING, Status.RUNNING), JobChange.HOLD, "held")
        s.apps.stale[a] = 1
        s.drop_plan()
        app_lifecycle.set_aside(s, a)

    def _quarantine(self, event: Quarantined) -> None:
        """Quarantine an app or a machine; the app's reports and its part in the reference stay: they may be faulty."""
        s = self.state
        if event.app is not None:
            s.quarantined_apps.add(event.app)
            reference.leave(s, event.app)
            self._hold(event.app)
        elif event.machine is not None and event.machine not in s.quarantined_machines:
            s.quarantined_machines.add(event.machine)
            for j in s.running_on(event.machine):
                self.leases.revoke(j, "moved", RELEASE)
            s.drain(event.machine, None)
            reference.advance(s)
            if s.machine_up[event.machine]:
                s.set_machine_up(event.machine, False)
            s.drop_plan()

    def _ordered(self, event: JobsOrdered) -> None:
        """The app's own order of its jobs, from now on; the decision under way is carried out by it too."""
        s = self.state
        s.jobs.order[s.app_jobs(event.app)] = 0
        s.jobs.order[list(event.jobs)] = np.arange(len(event.jobs)) - len(event.jobs)
        if isinstance(self.solving, Snapshot):
            self.solving = replace(self.solving, job_order=s.jobs.order[self.solving.job_id])

    def _repaired(self, event: JournalRepaired) -> None:
        """Distrust the state of running jobs: they are stopped and wait for new leases."""
        s = self.state
        for j in sorted(s.job_gpus):
            self.leases.revoke(j, "expired", RELEASE)
        for j, attempt in event.attempts:
            if j < s.jobs.size:
                s.jobs.attempt[j] = max(int(s.jobs.attempt[j]), attempt)
        s.drop_plan()

    def _machine_failed(self, event: MachineFailed) -> None:
        s = self.state
        for j in s.running_on(event.machine):
            self.leases.revoke(j, "failed", RELEASE)
        reference.advance(s)
        s.set_machine_up(event.machine, False)
        if event.drained:
            s.away.add(event.machine)
        s.drop_plan()

    def _machine_draining(self, event: MachineDraining) -> None:
        s = self.state
        s.drop_plan()
        s.drain(event.machine, event.until)
        if event.until is None:
            return
        for j in s.running_on(event.machine):
            if j in self.leases.held_back:
                self.leases.revoke(j, "failed", RELEASE)  # it has not started there
                continue
            # No other job can use these GPUs; those of other machines are not withheld for longer than was agreed.
            ends = [s.draining.get(n, -math.inf) for n in s.gpu_machine[list(s.job_gpus[j])].tolist()]
            self.leases.extend(j, min(ends))

    def _gpus_withheld(self, event: GpusWithheld) -> None:
        s = self.state
        s.drop_plan()
        s.withhold(event.machine, event.gpus, event.pids, event.reason)
        for j in s.running_on(event.machine):
            if j in self.leases.held_back and not set(event.gpus).isdisjoint(s.job_gpus[j]):
                self.leases.revoke(j, "failed", RELEASE)  # it has not started there

    # ---- what users change -------------------------------------------------------------------------------------------

    def _settings_changed(self, event: SettingsChanged) -> None:
        policy = changes.take(self.state, event)
        self.settings = self.state.settings
        if policy is not None:
            self.use(policy)
        if policy is not None or event.settings:
            # Drop the pending question: it is asked again at the end of this instant.
            self.solving = None

    def _machine_resized(self, event: MachineResized) -> None:
        s, n = self.state, event.machine
        reference.advance(s)
        gone = set(s.gpus_of[n][event.gpus :])
        for j in s.running_on(n):
            if not gone.isdisjoint(s.job_gpus[j]):
                self.leases.revoke(j, "moved", RELEASE)
        s.resize_machine(n, event.gpus)
        s.drop_plan()
