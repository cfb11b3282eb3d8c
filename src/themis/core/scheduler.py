"""The only door into the core: ``step(event, now)`` changes the state and returns commands.

No clock, no I/O, no threads. Within one instant the events come first, each with its own consequences; then ``Wake``
settles the instant: leases that end now and whatever else is free are one offer, and the policy is asked once
(``Solve``). Its answer comes back as ``Allocated`` and takes one road: intend -> place -> lease.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import replace

import numpy as np

from themis.core import app_lifecycle, changes, fairness_unit, phases, quota_limits, reference, regimes, rungs
from themis.core import take_snapshot as snapshots
from themis.core.conserve import left_over
from themis.core.contention import paced
from themis.core.intend import falls_short, intend, plan_from
from themis.core.leases import Freed, Leases
from themis.core.offer import FreeGpus
from themis.core.packed import unpack
from themis.core.place import place
from themis.core.placed_gangs import Placed, WantedGang
from themis.core.state import EPS, State
from themis.core.tables import OUTCOMES, Status
from themis.core.validate import validate
from themis.fairness.forecasts.rules import FORECASTER, Forecaster
from themis.model.answers import Answer, Ask, GpuGrant, RoundPlan, Solved, TimeShare
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
    CollectBids,
    Command,
    Compacted,
    CurveStopped,
    Event,
    FairnessSet,
    GpusIdle,
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
    ProfilesSet,
    QuotaSet,
    SettingsChanged,
    Solve,
    SpeedMeasured,
    UserWeightsSet,
    Wake,
    WakeAt,
)
from themis.model.settings import Settings
from themis.model.snapshot import Kind, Snapshot
from themis.model.speed import ProfileBook
from themis.model.units import NONE, Seconds
from themis.model.workload import CurveStopping
from themis.policies.api import Cadence, Policy
from themis.policies.tuning.curves import Verdict
from themis.policies.tuning.split import choose_job


class Scheduler:
    """State and rules; the caller that answers ``Solve`` runs the policy."""

    def __init__(
        self,
        book: ProfileBook,
        settings: Settings,
        pace: Cadence,
        needs: frozenset[str] = frozenset(),
        forecaster: Forecaster = FORECASTER,
    ) -> None:
        self.state = State(book, settings, forecaster)
        self.state.keeps_reference = "reference" in needs
        self.settings, self.pace, self.needs = settings, pace, needs
        self.out: list[Command] = []
        self.leases = Leases(self.state, self._wake)
        self.solving: Snapshot | None = None
        self.offer: FreeGpus | None = None
        """What ``solving`` is about, as long as no event but the answers to it came since."""
        self.memo = snapshots.Memo()
        self.wakes: set[Seconds] = set()
        """Instants for which a ``Wake`` is already on its way."""

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
            # Answers to what was asked: the offer that they are about stands.
            case Allocated():
                self._allocated(event)
                return
            case BidsCollected():
                self._bids(event)
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
                self._settle()
                return
            case AgentBid() | Compacted() | AccountingSet() | GpusIdle():
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
                app_lifecycle.add_app(s, event.app, event.weight)
                s.plan = None
            case AppCancelled():
                self._cancel(event.app)
            case AppHeld():
                self._hold(event.app)
            case AppResumed():
                self._resume(event.app)
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
                s.plan = None
            case MachineJoined():
                reference.advance(s)
                s.add_machine(event.machine)
            case MachineFailed():
                self._machine_failed(event.machine)
            case MachineReturned():
                reference.advance(s)
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
                s.plan = None
            case UserWeightsSet():
                reference.advance(s)
                fairness_unit.set_weights(s, event)
                s.plan = None
        self._changed()

    def use(self, policy: Policy) -> None:
        """Be paced by another policy from now on, and show it what it asks for."""
        self.pace, self.needs = policy.pace, policy.needs
        self.drop_caches()

    def drop_caches(self) -> None:
        """Forget what earlier decisions computed: it may be dropped at any moment and changes no decision."""
        self.memo = snapshots.Memo()
        self.state.drop_caches()

    @property
    def stopping(self) -> Mapping[int, Seconds]:
        """Jobs whose gang was asked to stop and has not stopped yet, with the time of the request."""
        return self.leases.stopping

    def _changed(self) -> None:
        """Something happened that may free GPUs or want some: settle soon, together with what happens until then."""
        now, due = self.state.now, self.state.now + self.settings.gather_s
        self.state.version += 1
        if not any(now <= time <= due for time in self.wakes):
            self.wakes.add(due)
            self.out.append(WakeAt(time=due))

    def _wake(self, time: Seconds) -> None:
        if time not in self.wakes:
            self.wakes.add(time)
            self.out.append(WakeAt(time=time))

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
        cause, status, freed = ("finished", Status.ENDED, []) if complete else ("rung", Status.PAUSED, [])
        if s.jobs.status[j] == Status.RUNNING:
            freed = [self.leases.revoke(j, cause, status)]
        s.jobs.status[j] = status
        if complete:
            self._end(j, "completed")
        self._after(a, freed, self._poor(j, event.loss))
        if held:
            self._hold_again(a)

    def _reached_late(self, event: JobReached) -> bool:
        """Whether a gang had finished its work before it was asked to stop (live only): the work is not repeated.

        Until it has released its GPUs no other gang trains the job, so the report is of that gang.
        """
        t, j = self.state.jobs, event.job
        unfinished = t.status[j] in (Status.WAITING, Status.RUNNING, Status.HELD)
        return bool(j in self.leases.stopping and unfinished and event.steps >= t.target[j] - 1e-6)

    def _batch_changed(self, event: BatchChanged) -> None:
        """A dynamic job has another speed from now on; leases that run are left alone."""
        s = self.state
        changed = s.runs(event.job, event.attempt) and regimes.batch_changed(s, event.job, event.steps, event.batch)
        if changed and self.pace.replan_on_regime:
            s.plan = None

    def _progress(self, event: JobProgress) -> None:
        """Where plans follow changes of speed immediately, a new regime ends the plan in force."""
        s, j = self.state, event.job
        if not s.runs(j, event.attempt):
            return
        before = int(s.jobs.regime[j])
        regimes.report(s, j, event.steps)
        if self.pace.replan_on_regime and s.jobs.regime[j] != before:
            s.plan = None

    def _loss(self, event: LossReported) -> None:
        """A check of curve stopping: only if jobs are given up is anything to be settled."""
        s, j = self.state, event.job
        if not s.runs(j, event.attempt):
            return
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
        """Jobs ended, paused or are given up: the tuner goes on; when all jobs ended, so does the app."""
        s = self.state
        s.plan = None
        jobs = s.app_jobs(a)
        for verdict in poor:
            freed += self._give_up(int(jobs[verdict.row]), verdict)
        if poor:
            phases.revise(s, a)
        if s.apps.kind[a] == Kind.HALVING:
            for j in rungs.advance(s, a):
                self._end(j, "stopped")
        s.apps.stale[a] = 1
        if (s.jobs.status[jobs] == Status.ENDED).all():
            self._finish(a, "failed" if a in s.failed else "completed")
        else:
            for gpus, until, seat in freed:
                self._successor(a, gpus, until, seat)

    def _give_up(self, j: int, verdict: Verdict) -> list[Freed]:
        """Curve stopping ends a job; returns what it held."""
        s = self.state
        freed = [self.leases.revoke(j, "stopped", Status.ENDED)] if s.jobs.status[j] == Status.RUNNING else []
        s.jobs.status[j] = Status.ENDED
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

    def _end(self, j: int, outcome: str) -> None:
        s = self.state
        s.jobs_in_system -= 1
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
            if s.jobs.status[j] == Status.ENDED:
                continue
            if s.jobs.status[j] == Status.RUNNING:
                self.leases.revoke(j, "cancelled", Status.ENDED)
            s.jobs.status[j] = Status.ENDED
            self._end(j, "cancelled")
        s.plan = None
        self._finish(a, "cancelled")

    def _given_up(self, j: int, cause: str) -> None:
        """The job ends as failed; its app's other jobs go on."""
        s, a = self.state, int(self.state.jobs.app[j])
        if s.jobs.status[j] == Status.ENDED:
            return
        held = bool(s.apps.held[a])
        if held:
            app_lifecycle.take_back(s, a)
        freed = [self.leases.revoke(j, cause, Status.ENDED)] if s.jobs.status[j] == Status.RUNNING else []
        s.jobs.status[j] = Status.ENDED
        s.curves.forget_job(j)
        s.failed.add(a)
        self._end(j, "failed")
        self._after(a, freed, [])
        if held:
            self._hold_again(a)

    def _hold_again(self, a: int) -> None:
        """After something happened to a held app: it stays held, and so do jobs that a rung's end let go on."""
        s = self.state
        if s.apps.active[a]:
            jobs = s.app_jobs(a)
            s.jobs.status[jobs[s.jobs.status[jobs] == Status.WAITING]] = Status.HELD
            app_lifecycle.set_aside(s, a)

    def _set_quota(self, event: QuotaSet) -> None:
        s = self.state
        s.quotas.pop(event.name, None)
        if event.gpus is not None:
            s.quotas[event.name] = (event.users, event.gpus)
        s.plan = None

    def _resume(self, a: int) -> None:
        s = self.state
        if not s.apps.held[a]:
            return
        app_lifecycle.take_back(s, a)
        jobs = s.app_jobs(a)
        s.jobs.status[jobs[s.jobs.status[jobs] == Status.HELD]] = Status.WAITING
        s.plan = None

    def _hold(self, a: int) -> None:
        s = self.state
        if s.apps.held[a] or not s.apps.active[a]:
            return
        for j in s.app_jobs(a).tolist():
            if s.jobs.status[j] == Status.RUNNING:
                self.leases.revoke(j, "held", Status.HELD)
            elif s.jobs.status[j] == Status.WAITING:
                s.jobs.status[j] = Status.HELD
        s.apps.stale[a] = 1
        s.plan = None
        app_lifecycle.set_aside(s, a)

    def _ordered(self, event: JobsOrdered) -> None:
        """The app's own order of its jobs, from now on; the decision under way is carried out by it too."""
        s = self.state
        s.jobs.order[s.app_jobs(event.app)] = 0
        s.jobs.order[list(event.jobs)] = np.arange(len(event.jobs)) - len(event.jobs)
        if self.solving is not None:
            self.solving = replace(self.solving, job_order=s.jobs.order[self.solving.job_id])

    def _repaired(self, event: JournalRepaired) -> None:
        """Nothing is known to run as it is believed to; what does is stopped and waits for another lease."""
        s = self.state
        for j in sorted(s.job_gpus):
            self.leases.revoke(j, "expired", Status.WAITING)
        for j, attempt in event.attempts:
            if j < s.jobs.size:
                s.jobs.attempt[j] = max(int(s.jobs.attempt[j]), attempt)
        s.plan = None

    def _machine_failed(self, machine: int) -> None:
        s = self.state
        for j in s.running_on(machine):
            self.leases.revoke(j, "failed", Status.WAITING)
        reference.advance(s)
        s.set_machine_up(machine, False)
        s.plan = None

    def _machine_draining(self, event: MachineDraining) -> None:
        s = self.state
        s.plan = None
        if event.until is None:
            s.draining.pop(event.machine, None)
            return
        s.draining[event.machine] = event.until
        for j in s.running_on(event.machine):
            if j in self.leases.held_back:
                self.leases.revoke(j, "failed", Status.WAITING)  # it has not started there
                continue
            # No other job can use these GPUs; those of other machines are not withheld for longer than was agreed.
            ends = [s.draining.get(n, -math.inf) for n in s.gpu_machine[list(s.job_gpus[j])].tolist()]
            self.leases.extend(j, min(ends))

    def _gpus_withheld(self, event: GpusWithheld) -> None:
        s = self.state
        s.plan = None
        s.withhold(event.machine, event.gpus, event.pids, event.reason)
        for j in s.running_on(event.machine):
            if j in self.leases.held_back and not set(event.gpus).isdisjoint(s.job_gpus[j]):
                self.leases.revoke(j, "failed", Status.WAITING)  # it has not started there

    # ---- what users change -------------------------------------------------------------------------------------------

    def _settings_changed(self, event: SettingsChanged) -> None:
        policy = changes.take(self.state, event)
        self.settings = self.state.settings
        if policy is not None:
            self.use(policy)
        if policy is not None or event.settings:
            # What was asked before is of no use now: it is asked again as soon as this instant is settled.
            self.solving = None

    def _machine_resized(self, event: MachineResized) -> None:
        s, n = self.state, event.machine
        reference.advance(s)
        gone = set(s.gpus_of[n][event.gpus :])
        for j in s.running_on(n):
            if not gone.isdisjoint(s.job_gpus[j]):
                self.leases.revoke(j, "moved", Status.WAITING)
        s.resize_machine(n, event.gpus)
        s.plan = None

    # ---- decisions --------------------------------------------------------------------------------------------------

    def _settle(self) -> None:
        """The instant is over: if GPUs are free and somebody could use them, one decision on all of them."""
        s = self.state
        self.wakes = {time for time in self.wakes if time > s.now}
        s.delayed = {j for j in s.delayed if s.jobs.ready[j] > s.now + EPS}
        if self.solving is None and not self._idles():
            planned = self._plan_answer() or self._shares_in_force()
            offer = FreeGpus(state=s, by=s.now)
            if isinstance(planned, RoundPlan) and falls_short(planned, offer):
                planned = None
            if offer.free.any() and offer.wanted():
                if planned is not None:
                    self._carry_out(planned, offer)
                else:
                    self._solve(self._picture(offer))
                    self.offer = offer
        self._wake_for_expiry()

    def _picture(self, offer: FreeGpus) -> Snapshot:
        """What the policy decides on; forecasts that had to be remade for it are recorded."""
        s = self.state
        view, renewed = snapshots.take_renewing(
            s, needs=self.needs, free=offer.free, present=offer.present, memo=self.memo
        )
        for a, finish in renewed.items():
            s.apps.finish[a], s.apps.stale[a] = finish, 0
        return view

    def _solve(self, view: Snapshot) -> None:
        self.solving = view
        self.out.append(Solve(version=view.version, snapshot=view))

    def _wake_for_expiry(self) -> None:
        until = self.state.lease_ends()
        ahead = until[until > self.state.now + EPS]
        if len(ahead) and np.isfinite(first := float(ahead.min())):
            self._wake(first)

    def _plan_answer(self) -> RoundPlan | None:
        s = self.state
        if s.plan is None:
            return None
        column = round((s.round_end(s.plan.round_s) - s.plan_start) / s.plan.round_s) - 1
        return plan_from(s.plan, column) if column < s.plan.run.shape[1] else None

    def _idles(self) -> bool:
        """Without backfilling, what falls free in mid-round waits for the round's end."""
        s, pace = self.state, self.pace
        if pace.backfill or pace.round_s is None:
            return False
        end = s.round_end(pace.round_s)
        if end - s.now > pace.round_s - EPS:
            return False
        self._wake(end)
        return True

    def _shares_in_force(self) -> TimeShare | None:
        """Time shares that need no new solve: nothing changed since, or not long enough ago."""
        rounds, pace, now = self.state.rounds, self.pace, self.state.now
        if rounds.answer is None or pace.resolve_interval is None or rounds.version == self.state.version:
            return rounds.answer if pace.resolve_interval is not None else None
        if now >= rounds.solved + pace.resolve_interval - EPS:
            return None
        # An app that arrived since waits, maybe as the only one in the system: the rounds continue.
        self._wake(self.state.round_end(rounds.answer.round_s))
        return rounds.answer

    def _bids(self, event: BidsCollected) -> None:
        if self.solving is None or event.version != self.solving.version:
            return
        self._solve(self.solving.with_bids(event.bids))

    def _allocated(self, event: Allocated) -> None:
        s = self.state
        if isinstance(event.solved.answer, Ask):
            view = self.solving if self.solving is not None else snapshots.take(s)
            self.out.append(CollectBids(version=event.version, ask=event.solved.answer, snapshot=view))
            return
        solving, self.solving = self.solving, None
        asked, by = (s.version, s.now) if solving is None else (solving.version, solving.now)
        stale = asked != s.version or self._ran_out(by)
        if stale:
            # Time passed while the solve ran (live only): what still fits is placed. Leases that ran out since were not on
            # offer; they, and whatever else happened, are for the next decision.
            self._wake(s.now)
        self._remember(event.solved, asked)
        offer, self.offer = self.offer, None
        # If the answer came at the same instant, nothing happened since: it is the same offer.
        still = offer is not None and solving is not None and offer.by == by == s.now and asked == s.version
        offer = offer if offer is not None and still else FreeGpus(state=s, by=by)
        self._carry_out(event.solved.answer, offer, stale=stale)
        s.round += 1
        self._wake_for_expiry()

    def _ran_out(self, since: Seconds) -> bool:
        """Whether leases expired after ``since`` on which no decision was made yet."""
        until = self.state.lease_ends()
        return bool(((until > since + EPS) & (until <= self.state.now + EPS)).any())

    def _remember(self, solved: Solved, asked: int) -> None:
        s, answer = self.state, solved.answer
        if isinstance(answer, TimeShare):
            s.rounds.adopt(answer, s.now, asked)
        elif isinstance(answer, RoundPlan):
            s.plan, s.plan_start = answer, s.round_end(answer.round_s) - answer.round_s

    def _carry_out(self, answer: Answer, offer: FreeGpus, *, stale: bool = False) -> None:
        gangs = intend(self.state, answer, offer, self.pace.spare)
        found = place(self.state, gangs, offer)
        if self.pace.spare and self.settings.renew_idle:
            found += left_over(self.state, answer, offer, found, stale=stale)
        placed = quota_limits.within_quotas(self.state, found)
        if isinstance(answer, GpuGrant) and (shortest := self.settings.shortest_lease_s or answer.shortest_s):
            placed = paced(self.state, placed, offer, shortest)
        if isinstance(answer, TimeShare):
            self._start_round(gangs, placed)
            if not placed and (answer.x[offer.idle(answer.combos).all(axis=1)] > 0).any():
                # No job has a deficit yet; by the next round one may have.
                self._wake(self.state.round_end(answer.round_s))
        self.leases.change(placed, offer.by, self.settings.tick_s if isinstance(answer, GpuGrant) else 0.0)
        if isinstance(answer, RoundPlan) and answer.run[:, 1:].any():
            # A plan may leave GPUs idle until its next round.
            self._wake(self.state.round_end(answer.round_s))
        if placed and len(placed) < len(found):
            # What a quota forbids is offered again at the same instant; a user who has reached it takes no part any more.
            self.state.version += 1
            self._wake(self.state.now)

    def _start_round(self, gangs: list[WantedGang], placed: list[Placed]) -> None:
        """Gangs that found room count as served until their round ends."""
        there, machine_of = {p.job: p.gpus for p in placed}, self.state.machine_of
        for gang in gangs:
            if gang.job not in there or gang.combo == NONE:
                continue
            if gang.worth:
                self.state.rounds.make_up(gang.combo, gang.until - self.state.now, gang.worth)
            else:
                near = gang.near is not None and len({machine_of[g] for g in there[gang.job]}) == 1
                self.state.rounds.add_received(gang.combo, gang.gpu_type, gang.until - self.state.now, near=near)
