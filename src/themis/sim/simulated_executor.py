"""Simulated gangs: they progress at the speed model's rate, restart at a cost, and lose uncheckpointed work in a crash.

This is the simulation's ground truth. The core has its own estimate and learns only through the events sent here.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import cycle
from typing import Protocol

import numpy as np

from themis.core.executor import Executor
from themis.model.events import (
    BatchChanged,
    Command,
    Event,
    GoodputReported,
    Grant,
    JobProgress,
    JobReached,
    JobStarted,
    JobStopped,
    LossReported,
    Renew,
    Revoke,
    SpeedMeasured,
)
from themis.model.goodput import StepTimes, noise_of
from themis.model.settings import Settings
from themis.model.speed import ProfileBook
from themis.model.units import NONE, Locality, Seconds
from themis.model.workload import App, CurveStopping, Job, Regime
from themis.optimize.step_times import Iterations, fit
from themis.policies.tuning.curves import observation_noise

_STUCK = 1e-6


class Timer(Protocol):
    """The kernel's side: when is now, and deliver this event then, unless cancelled."""

    now: Seconds

    def schedule(self, time: Seconds, event: Event) -> Cancel:
        """Deliver the event at ``time``."""
        ...


class Cancel(Protocol):
    """Handle of a scheduled event."""

    def cancel(self) -> None:
        """Cancel the event: it will not be delivered."""
        ...


@dataclass(slots=True)
class _Gang:
    spec: Job
    done: float = 0.0
    """Steps when this attempt began to train, at ``began``."""
    began: Seconds = 0.0
    attempt: int = 0
    target: float = 0.0
    where: tuple[str, int, int] = ("", 0, 0)
    """GPU type, GPUs and locality."""
    gpus: tuple[int, ...] = ()
    partner: tuple[str, int] | None = None
    """Model and batch size of the job on the same GPUs, as of when it came."""
    pending: list[Cancel] = field(default_factory=list)
    checks: _Checks | None = None
    agent: _Agent | None = None
    """Of an adaptive job."""
    steady: bool = False
    """One regime and nothing to report on the way."""
    loss: tuple[float, float] = (-1.0, 0.0)
    """The last target and the loss there."""
    speed: float = 0.0
    """Steps/s of a steady gang where it is now; 0 of others. ``speeds`` : wherever it was, by place and partner."""
    speeds: dict[tuple[tuple[str, int, int], tuple[str, int] | None], float] = field(default_factory=dict)


LOOK_S = 20.0
"""Seconds after which a gang has measured its iterations."""
REFITS = frozenset({1, 2, 3, 4, 6, 8})
"""Numbers of measurements at which an adaptive job fits its step times; later, where it runs on other GPUs than before."""


@dataclass(slots=True)
class _Agent:
    """Knowledge of an adaptive job of itself: its measurements by GPUs, machines (2: more) and local batch size, and their fit."""

    seen: dict[tuple[int, int, float], tuple[float, float]] = field(default_factory=dict)
    times: StepTimes | None = None

    def measure(self, gpus: int, machines: int, found: tuple[float, float, float]) -> None:
        """Take in a measurement: local batch size, seconds to compute a gradient, and of an iteration."""
        local, *seconds = found
        elsewhere = (gpus, machines) not in {key[:2] for key in self.seen}
        if self.seen.setdefault((gpus, machines, local), (seconds[0], seconds[1])) and not (
            elsewhere or self.times is None or len(self.seen) in REFITS
        ):
            return
        k, n, m = np.array(list(self.seen), dtype=np.float64).T
        grad, step = np.array(list(self.seen.values())).T
        self.times = fit(Iterations(gpus=k, machines=n, local=m, grad_s=grad, iteration_s=step))


@dataclass(frozen=True, slots=True)
class _Checks:
    """Curve stopping: steps between two reports of the loss, and relative errors of the reports."""

    every: float
    errors: list[float]

    def __call__(self, spec: Job, number: int) -> float:
        """The loss that is reported at a check, counted from 1."""
        return spec.loss.at(number * self.every) * (1.0 + self.errors[number - 1])


class SimulatedExecutor(Executor):
    """Gangs without processes; ``start_s``, ``finish_s``, ``stop_s`` as in ``sim.runner.Simulation``."""

    def __init__(
        self,
        book: ProfileBook,
        settings: Settings,
        timer: Timer,
        gpu_types: list[str],
        *,
        measures: bool = False,
        start_s: Sequence[Seconds] = (),
        finish_s: Sequence[Seconds] = (),
        stop_s: Sequence[Seconds] = (),
    ) -> None:
        self.book, self.settings, self.timer = book, settings, timer
        self.start_s = cycle(start_s or (settings.container_s,))
        self.finish_s, self.stop_s = cycle(finish_s or (0.0,)), cycle(stop_s or (0.0,))
        self.late = any(finish_s)
        """True if a gang may be preempted between its last step and the report of it."""
        self.measures = measures
        """True if gangs report their speeds: of each model, batch, type, gang, place and partner once."""
        self._reported: set[tuple[object, ...]] = set()
        self.gpu_types = gpu_types
        """GPU type of each GPU id; grows as machines join."""
        self.gangs: dict[int, _Gang] = {}
        self.on: dict[int, list[int]] = {}
        """Jobs on the first GPU of each gang that is there: two where they share."""
        self._rates: dict[tuple[str, int, str, int, int, tuple[str, int] | None], float] = {}

    def admit(self, first_job: int, app: App) -> None:
        """Remember the jobs of an app."""
        for j, job in enumerate(app.jobs, start=first_job):
            checks = self._checks(app, j, job)
            steady = checks is None and len(job.regimes) == 1 and job.dynamic is None and job.adaptive is None
            agent = _Agent() if job.adaptive else None
            self.gangs[j] = _Gang(spec=job, checks=checks, agent=agent, steady=steady)

    def forget(self, job: int) -> None:
        """Forget a job that will not run again."""
        self.gangs.pop(job, None)

    def _checks(self, app: App, j: int, job: Job) -> _Checks | None:
        # Where nothing is ever stopped, no component reads the reports.
        if not isinstance(app.tuner, CurveStopping) or len(app.jobs) <= app.tuner.keep:
            return None
        errors = app.tuner.noise * observation_noise(self.settings.seed, j, int(job.steps / app.tuner.check_steps) + 1)
        return _Checks(app.tuner.check_steps, errors.tolist())

    def submit(self, command: Command) -> None:
        """Start or stop a gang; everything else needs no action here."""
        if isinstance(command, Grant):
            self.start(command)
        elif isinstance(command, Revoke):
            self.stop(command)
        elif isinstance(command, Renew):
            for job in command.jobs:
                self._measure(job, self.gangs[job])

    def start(self, grant: Grant) -> None:
        """A gang begins."""
        job, gpus, attempt = grant.job, grant.gpus, grant.attempt
        gang, now = self.gangs[job], self.timer.now
        again = self.book.profiles[gang.spec.model].checkpoint_s if attempt > 1 else 0.0
        gang.attempt, gang.target = attempt, grant.target
        gang.where = (self.gpu_types[gpus[0]], len(gpus), grant.locality)
        gang.gpus, gang.began = gpus, now + next(self.start_s) + again
        here = self.on.setdefault(gpus[0], [])
        gang.partner = self._looks(here[0]) if here else None
        for other in here:
            self._neighbour(other, self._looks(job))
        here.append(job)
        gang.pending = [self.timer.schedule(gang.began, JobStarted(job=job, attempt=attempt))]
        self._train(job, gang)

    def _train(self, job: int, gang: _Gang) -> None:
        """Schedule every report up to the target: one a regime, so that speed follows the batch size, and the checks."""
        at, done, number = gang.began, gang.done, gang.attempt
        gang.speed = 0.0
        if gang.steady and (target := gang.target) <= (only := gang.spec.regimes[0]).steps:
            if target > done + 1e-9:
                place = gang.where, gang.partner
                if (speed := gang.speeds.get(place)) is None:
                    speed = gang.speeds[place] = self._rate(gang, only)
                gang.speed = speed
                at += (target - done) / speed
            self._reach(job, gang, at)
            return
        # Of a dynamic job whose program decides, batch sizes are news. An attempt after the first says where it begins:
        # the one before may have been stopped at the moment of a change.
        reports_batch = gang.spec.dynamic is not None and gang.spec.dynamic.hidden
        last = gang.spec.regimes[0].batch if number == 1 or len(gang.spec.regimes) == 1 else NONE
        for upto, regime, check in self._stretches(gang):
            if reports_batch and regime.batch != last:
                changed = BatchChanged(job=job, attempt=number, steps=done, batch=regime.batch)
                gang.pending.append(self.timer.schedule(at, changed))
                last = regime.batch
            if gang.agent is not None:
                # The first report takes some iterations; what changed by then is in it.
                self._report_goodput(job, gang, gang.agent, regime, max(at, gang.began + LOOK_S))
            at += (upto - done) / self._rate(gang, regime)
            done = upto
            if done >= gang.target - 1e-9:
                break
            if check and gang.checks:
                loss = gang.checks(gang.spec, check)
                gang.pending.append(
                    self.timer.schedule(at, LossReported(job=job, attempt=number, steps=done, loss=loss))
                )
            elif not reports_batch and gang.agent is None:
                gang.pending.append(self.timer.schedule(at, JobProgress(job=job, attempt=number, steps=done)))
        self._reach(job, gang, at)

    def _report_goodput(self, job: int, gang: _Gang, agent: _Agent, regime: Regime, at: Seconds) -> None:
        gpu_type, gpus, locality = gang.where
        machines = 1 if locality <= Locality.MACHINE else 2
        known = self.book.profiles[gang.spec.model].iterations
        found = known.get((regime.batch, gpus, machines))
        if found is not None and at == gang.began + LOOK_S:
            agent.measure(gpus, machines, found)
        if agent.times is None:
            return
        report = GoodputReported(
            job=job,
            attempt=gang.attempt,
            steps=self._steps_after(gang, at - gang.began),
            noise=noise_of(regime.batch),
            gpu_type=gpu_type,
            times=tuple(agent.times.array().tolist()),
        )
        gang.pending.append(self.timer.schedule(at, report))

    def _reach(self, job: int, gang: _Gang, at: Seconds) -> None:
        """The last report: the target."""
        target = gang.target
        if gang.loss[0] != target:
            gang.loss = target, gang.spec.loss.at(target)
        reached = JobReached(job=job, attempt=gang.attempt, steps=target, loss=gang.loss[1])
        gang.pending.append(self.timer.schedule(at + next(self.finish_s), reached))

    def _stretches(self, gang: _Gang) -> Iterator[tuple[float, Regime, int]]:
        """(end, regime, number of the check there or 0) of the remaining stretches up to the target, in order."""
        done, end = gang.done, 0.0
        for regime in gang.spec.regimes:
            end += regime.steps
            upto = min(end, gang.target)
            if gang.checks:
                check = int(done / gang.checks.every + 1e-6) + 1
                while (next_check := check * gang.checks.every) <= upto + 1e-9 and upto > done + 1e-9:
                    yield next_check, regime, check
                    done, check = next_check, check + 1
            if upto > done + 1e-9:
                yield upto, regime, 0
                done = upto

    def _rate(self, gang: _Gang, regime: Regime) -> float:
        (gpu_type, gpus, locality), batch = gang.where, regime.batch
        key = (gang.spec.model, batch, gpu_type, gpus, locality, gang.partner)
        if key not in self._rates:
            # A job that shares a GPU with a partner that does not fit, after a wrong estimate, makes no progress.
            where = gang.spec.model, batch, gpu_type, gpus, Locality(locality)
            self._rates[key] = self.book.rate(*where, gang.partner) or _STUCK * self.book.rate(*where)
        return self._rates[key] / (gang.spec.scale(batch) * regime.pace)

    def _measure(self, job: int, gang: _Gang) -> None:
        """Report its speed since it began, or since a neighbour came or left."""
        if not self.measures or self.timer.now <= gang.began:
            return
        model, batch = self._looks(job)
        key = (model, batch, *gang.where, gang.partner)
        if key not in self._reported:
            self._reported.add(key)
            kind, gpus, locality = gang.where
            partner, size = gang.partner or ("", 0)
            rate = self.book.rate(model, batch, kind, gpus, Locality(locality), gang.partner)
            self.timer.schedule(
                self.timer.now,
                SpeedMeasured(
                    model=model,
                    batch=batch,
                    gpu_type=kind,
                    gpus=gpus,
                    locality=locality,
                    steps_per_s=rate,
                    partner=partner,
                    partner_batch=size,
                ),
            )

    def _looks(self, job: int) -> tuple[str, int]:
        """The model and batch size that a gang trains with now."""
        gang, end = self.gangs[job], 0.0
        done = self._steps_after(gang, max(self.timer.now - gang.began, 0.0))
        for regime in gang.spec.regimes:
            end += regime.steps
            if done < end - 1e-9:
                break
        return gang.spec.model, regime.batch

    def _neighbour(self, job: int, partner: tuple[str, int] | None) -> None:
        """Another job joined or left a gang's GPUs: recompute the time of its remaining work.

        Leaves out what a neighbour's later regimes change, and work lost in a crash from before the change.
        """
        gang, now = self.gangs[job], self.timer.now
        self._measure(job, gang)
        started, *reports = gang.pending
        for event in reports:
            event.cancel()
        gang.pending = [started]
        if now > gang.began:
            gang.done, gang.began = self._steps_after(gang, now - gang.began), now
        gang.partner = partner
        self._train(job, gang)

    def stop(self, revoke: Revoke) -> None:
        """A gang ends, with or without its work done."""
        job, cause = revoke.job, revoke.cause
        gang, now = self.gangs[job], self.timer.now
        if self.measures:
            self._measure(job, gang)
        for event in gang.pending:
            event.cancel()
        gang.pending = []
        trained = now - gang.began
        if trained <= 0.0:
            trained = 0.0
        elif cause == "failed":
            trained = trained // self.settings.checkpoint_every_s * self.settings.checkpoint_every_s
        gang.done = done = self._steps_after(gang, trained)
        here = self.on.get(gang.gpus[0]) if gang.gpus else None
        if here and job in here:
            here.remove(job)
            for other in here:
                self._neighbour(other, None)
        # A gang that reached its target, or whose machine failed, is gone by then.
        gone = now if cause in ("finished", "rung", "failed") else now + next(self.stop_s)
        if self.late and gone > now and done >= gang.target - 1e-9:
            # It was about to report that.
            self.timer.schedule(gone, JobReached(job=job, attempt=revoke.attempt, steps=gang.target, loss=gang.loss[1]))
        self.timer.schedule(gone, JobStopped(job=job, attempt=revoke.attempt, steps=done))

    def _steps_after(self, gang: _Gang, seconds: Seconds) -> float:
        """Steps done ``seconds`` after this attempt began to train."""
        done, end = gang.done, 0.0
        if seconds <= 0.0:
            return done
        if speed := gang.speed:
            target = gang.target
            return min(done + speed * seconds, target) if (target - done) / speed > seconds else target
        for regime in gang.spec.regimes:
            end += regime.steps
            upto = min(end, gang.target)
            if upto <= done + 1e-9:
                continue
            rate = self._rate(gang, regime)
            if (upto - done) / rate > seconds:
                return min(done + rate * seconds, upto)
            seconds -= (upto - done) / rate
            done = upto
        return done
