"""Forecast starts and finishes of apps, under any policy: from the log, with a calibrated interval.

The forecast is a fluid one, of processor sharing among the apps that are there: where they want more GPUs than there are, all their
work slows equally, and each leaves when its own is done. It knows no policy; how much sooner or later apps end is
learned from the run's own past (``report.calibrated``), by what the app does (it waits, runs, or was stopped), by what its
work is known from, and by how far ahead it looks. So intervals under each policy are its own.

An app's work is what was believed when it came (``AppSubmitted.alone``), less that of jobs that ended; of a sweep in rungs it is
the work of its rungs. What was measured replaces what was believed: the steps that its jobs report, or the speed of its model.
Unknown work has no forecast before past ones came true, or before the job reports how much it has done of how much.
Until ten forecasts of a kind came true, their interval is an assumption (``ASSUMED``). Logs without work have no forecasts.
Leaves out: apps to come; what they change is learned with other errors.
"""

from __future__ import annotations

import math
from collections import deque
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from themis.model import events
from themis.model.events import AppSubmitted, Grant, JobEnded, MetricsReported, SpeedMeasured
from themis.model.units import Float, GpuSeconds, Seconds
from themis.model.workload import App, Job, brackets_of
from themis.report.accounts.held_leases import HeldLease, LeaseFold
from themis.report.calibrated import UNKNOWN, Calibrated, Interval

RECENT = 64
"""Number of latest apps whose GPU use is remembered."""
MOST = 6
"""Forecasts of an app that are learned from: when it comes, when it starts, and later ones ever more rarely."""
LEAST_LEFT = 0.02
"""Share of its work that a job, or a sweep in rungs, is taken to have left at least."""
STALE = 16
"""The queue is refreshed once a sixteenth of its apps came or ended, or of the time that they need alone passed."""


LEAST_S = 5.0
"""Seconds of training after which steps say how fast a job is."""
START_S = 60.0
"""Seconds of a lease of which the start is a small part: what was learned in an earlier lease holds until then, or until
``LEAST_S`` after the first report of this one."""
ASSUMED = {"": 0.6, " measured": 0.25, " unknown": math.inf}
"""Spread of the logarithm of forecast errors by what the work is known from, until past ones say it."""


@dataclass(slots=True)
class _JobForecast:
    """An active job: its work, its use in finished leases, its maximum GPUs, its steps and the model's steps in one of them.

    ``model`` : with its batch size; empty where steps of a measured speed do not add up to its work. ``reported`` : its work
    follows from the steps that it reported, ``measured`` : or from a measured speed. ``believed`` : its work before that.
    """

    work: GpuSeconds
    gpus: int
    got: GpuSeconds = 0.0
    model: tuple[str, int] = ("", 0)
    steps: float = 0.0
    scale: float = 1.0
    reported: bool = False
    measured: bool = False
    believed: GpuSeconds = 0.0


@dataclass(slots=True)
class _AppForecast:
    """One app: its forecast, and what it received.

    ``alone_s`` : of its longest job. ``rungs`` : its work is that of its rungs, whichever jobs do it. ``gpus`` : most that its jobs
    may use that have not ended. ``got`` : of all its jobs.
    """

    work: GpuSeconds
    alone_s: Seconds
    gang: int
    gpus: int
    rungs: bool
    jobs: dict[int, _JobForecast]
    got: GpuSeconds = 0.0
    training: dict[int, tuple[Seconds, int]] = field(default_factory=dict)
    """Start of each job's training, and its number of GPUs."""
    held: int = 0
    started: Seconds = math.nan
    open: list[int] = field(default_factory=list)
    start: int = -1
    next_at: Seconds = 0.0
    asked: int = 0
    learned: bool = False
    """A forecast was made when its speed was measured first."""
    unknown: bool = False
    pace: float = 1.0
    """Measured work over that believed, of a sweep in rungs."""
    counted: dict[int, float] = field(default_factory=dict)
    """Steps that each job's program counted last by itself."""
    begun: dict[int, float] = field(default_factory=dict)
    """Steps that each job had done when it began to train, as far as it reported them."""
    first: dict[int, tuple[Seconds, float]] = field(default_factory=dict)
    """First report of each job in its present lease: its time, and the steps done by then."""

    def alone(self, now: Seconds, capacity: int) -> Seconds:
        """Seconds that it needs from now on with as many of ``capacity`` GPUs as it can use, if no job ends early.

        The last trial of a sweep in rungs has its own steps left, whatever the others received or repeated.
        """
        most = max(min(self.gpus, capacity), 1)
        if self.rungs and len(self.jobs) > 1:
            got = self.got + sum(self._now(j, now) for j in self.training)
            work = self.work * self.pace
            left = max(work - got, LEAST_LEFT * work)
            return max(left / work * self.alone_s * self.pace, left / most)
        total, longest, training = 0.0, 0.0, self.training
        for j, job in self.jobs.items():  # of every app that waits or runs, at each look at the queue: without calls
            left, least = job.work - job.got, LEAST_LEFT * job.work
            if j in training:
                since, gpus = training[j]
                if now > since:
                    left -= (now - since) * gpus
            left = least if left < least else left
            total += left
            alone = left / job.gpus
            longest = alone if alone > longest else longest
        return max(longest, total / most)

    @property
    def revised(self) -> float:
        """Its jobs' work as it is known now, over what was believed when it came."""
        jobs = self.jobs.values()
        return sum(job.work for job in jobs) / sum(job.believed or job.work for job in jobs)

    @property
    def known(self) -> str:
        """How its work is known: measured, unknown, or as it was given."""
        if any(job.measured for job in self.jobs.values()):
            return " measured"
        return " unknown" if self.unknown else ""

    def measure(self, job: int, now: Seconds, steps: float, of: float) -> bool:
        """Learn from the steps that a job has done by now; True if that says something."""
        one, (since, gpus) = self.jobs.get(job), self.training.get(job, (math.inf, 0))
        before = self.begun.setdefault(job, 0.0)
        if one is None or math.isinf(since):
            return False
        first = self.first.setdefault(job, (now, steps))
        # A program starts and loads its checkpoint before its first step: without that time its speed is known better.
        if now >= first[0] + LEAST_S:
            since, before = first
        elif one.reported and now < since + START_S:
            return False
        done = steps - before
        if now < since + LEAST_S or done <= 0 or of <= 0:
            return False
        left = max(of - steps, 0.0) * (now - since) * gpus / done
        self._revise(one, one.got + self._now(job, now) + left)
        one.reported = True
        return True

    def revise(self, model: tuple[str, int], gpus: int, work: GpuSeconds) -> bool:
        """A speed of a model was measured: ``work`` for each of its steps on ``gpus`` GPUs; True if a job has this model."""
        found = False
        for j, one in self.jobs.items():
            if one.model == model and not one.reported and self.training.get(j, (0.0, gpus))[1] == gpus:
                self._revise(one, one.steps * one.scale * work)
                found = True
        return found

    def _revise(self, job: _JobForecast, work: GpuSeconds) -> None:
        job.believed = job.believed or job.work
        if self.rungs:  # its trials are alike: each says the same of all
            self.pace = work / job.believed
        job.work, job.measured = max(work, 1e-9), True

    def _now(self, job: int, now: Seconds) -> GpuSeconds:
        """GPU-seconds that a job has received in its current lease."""
        since, gpus = self.training.get(job, (math.inf, 0))
        return (now - since) * gpus if now > since else 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class ExpectedTimes:
    """Expected times of an active app: seconds in simulated time. NaN where it is not known, or has happened.

    Attributes
    ----------
    starts, ends : as forecast. ``starts_low`` to ``ends_high`` : their 80 % intervals; NaN while there is no history.
    """

    starts: Seconds = math.nan
    starts_low: Seconds = math.nan
    starts_high: Seconds = math.nan
    ends: Seconds = math.nan
    ends_low: Seconds = math.nan
    ends_high: Seconds = math.nan


@dataclass(frozen=True, slots=True, kw_only=True)
class Coverage:
    """Coverage of 80 % intervals: ``made`` and ``held`` of finishes, and of starts of apps that had to wait."""

    finishes: int = 0
    finishes_held: int = 0
    starts: int = 0
    starts_held: int = 0

    @property
    def of_finishes(self) -> float:
        """Share in [0, 1]; NaN without any."""
        return self.finishes_held / self.finishes if self.finishes else math.nan

    @property
    def of_starts(self) -> float:
        """Share in [0, 1]; NaN without any."""
        return self.starts_held / self.starts if self.starts else math.nan


class Outlook:
    """Fold of events in order of time."""

    def __init__(self) -> None:
        self.apps: dict[int, _AppForecast] = {}
        self.unknown: dict[int, _AppForecast] = {}
        """Those whose work was not given."""
        self.count = 0
        self.jobs = 0
        self.capacity = 0
        self.in_use = 0
        self.app_of: dict[int, int] = {}
        self.finishes, self.starts = Calibrated(_assumed), Calibrated(_assumed)
        self.recent: deque[tuple[Seconds, int]] = deque(maxlen=RECENT)
        """Seconds alone and demanded GPUs of the last apps."""
        self.wanted = 0
        self.queue = _Queue()
        self.changes = 0
        """Changes of the queue since it was last examined: arrivals and ends of apps and jobs."""

    # ---- what happens -----------------------------------------------------------------------------------------------

    def service(self, gpus: int) -> None:
        """Add this many GPUs to those in service; negative: remove."""
        self.capacity += gpus
        self.queue = _Queue()

    def submit(self, now: Seconds, event: AppSubmitted) -> None:
        """An app came."""
        number, self.count = self.count, self.count + 1
        first, self.jobs = self.jobs, self.jobs + len(event.app.jobs)
        if event.alone is None:
            return
        app = self.apps[number] = _expected(event.app, first, now, *event.alone)
        app.unknown = event.unknown
        if app.unknown:
            self.unknown[number] = app
        self.wanted += app.gpus
        self.recent.append((app.work / app.gpus, app.gpus))
        self.changes += 1
        app.next_at = now
        self._learn(app, now)
        if self.capacity - self.in_use < app.gang:
            app.start = self.starts.add(now, self._wait(app), _start(self._blind()))

    def grant(self, now: Seconds, event: Grant) -> None:
        """A gang got GPUs."""
        app = self.apps.get(event.app)
        self.in_use += len(event.gpus)
        self.app_of[event.job] = event.app
        if app is None:
            return
        first = math.isnan(app.started)
        app.held += len(event.gpus)
        app.training[event.job] = (math.inf, len(event.gpus))
        if first:
            app.started = now
            if app.start >= 0:
                self.starts.end(app.start, now)
        if first or now >= app.next_at:
            self._learn(app, now)

    def train(self, now: Seconds, job: int) -> None:
        """A gang trains from now on."""
        app = self.apps.get(self.app_of.get(job, -1))
        if app is not None and job in app.training:
            app.training[job] = (now, app.training[job][1])
            app.first.pop(job, None)
            app.begun[job] = max(app.begun.get(job, 0.0), app.counted.get(job, 0.0))

    def progress(self, now: Seconds, job: int, steps: float) -> None:
        """A job of one regime reported its steps."""
        app = self.apps.get(self.app_of.get(job, -1))
        if app is not None and job in app.jobs and app.jobs[job].model[0]:
            self._measured(app, now, known=app.measure(job, now, steps, app.jobs[job].steps))

    def counted(self, now: Seconds, event: MetricsReported) -> None:
        """A program counted its own steps: they say more than an assumption does, and nothing where the work was given."""
        app = self.apps.get(self.app_of.get(event.job, -1))
        if app is not None and app.unknown:
            app.counted[event.job] = event.steps
            self._measured(app, now, known=app.measure(event.job, now, event.steps, event.total))
        elif app is not None and event.steps < app.begun.get(event.job, 0.0):
            # It did not load its checkpoint and repeats steps: they are trained at the same speed.
            app.begun[event.job] = event.steps
            app.first.pop(event.job, None)

    def stopped(self, job: int, steps: float) -> None:
        """A gang left its GPUs with these steps done."""
        app = self.apps.get(self.app_of.get(job, -1))
        if app is not None and not app.unknown:
            app.begun[job] = steps

    def speed(self, now: Seconds, event: SpeedMeasured) -> None:
        """A speed was measured, of a gang that is alone on its GPUs."""
        if event.partner or event.steps_per_s <= 0:
            return
        for app in self.apps.values():
            known = app.revise((event.model, event.batch), event.gpus, event.gpus / event.steps_per_s)
            self._measured(app, now, known=known)

    def measured(self, now: Seconds, event: object) -> None:
        """Take in a record of ``MEASURED``."""
        match event:
            case events.JobProgress():
                self.progress(now, event.job, event.steps)
            case events.JobStopped():
                self.stopped(event.job, event.steps)
            case SpeedMeasured():
                self.speed(now, event)
            case MetricsReported():
                self.counted(now, event)

    def _measured(self, app: _AppForecast, now: Seconds, *, known: bool) -> None:
        """Forecast again where something was learned first."""
        if known:
            self.changes += 1
            if app.asked < MOST and math.isfinite(app.started) and not app.learned:
                app.learned = True
                self._learn(app, now)

    def revoke(self, now: Seconds, job: int, gpus: int) -> None:
        """A gang lost its GPUs."""
        self.in_use -= gpus
        app = self.apps.get(self.app_of.get(job, -1))
        if app is None or job not in app.training:
            return
        since, gpus = app.training.pop(job)
        got = max(now - since, 0.0) * gpus if math.isfinite(since) else 0.0
        app.got += got
        if job in app.jobs:
            app.jobs[job].got += got
        app.held -= gpus

    def end(self, number: int, job: int) -> None:
        """A job ended, or its tuner stopped it: its app wants no more GPUs for it. The last job's end is its app's."""
        app = self.apps.get(number)
        if app is not None and len(app.jobs) > 1 and (ended := app.jobs.pop(job, None)) is not None:
            app.gpus -= ended.gpus
            self.wanted -= ended.gpus
            self.changes += 1

    def finish(self, now: Seconds, number: int, outcome: str) -> None:
        """An app ended."""
        app = self.apps.pop(number, None)
        if app is None:
            return
        self.unknown.pop(number, None)
        self.wanted -= app.gpus
        self.changes += 1
        for one in app.open:
            self.finishes.end(one, now) if outcome == "completed" else self.finishes.drop(one)
        if app.start >= 0 and math.isnan(app.started):
            self.starts.drop(app.start)

    # ---- forecasts --------------------------------------------------------------------------------------------------

    def of(self, number: int, now: Seconds) -> ExpectedTimes:
        """Forecast of an active app now."""
        app = self.apps.get(number)
        if app is None or not self.capacity:
            return ExpectedTimes()
        # A separate view of the queue: queries change nothing of what is learned.
        queue = self.queue_at(now)
        low, ends, high = self.end_of(number, now, queue)
        starts = (math.nan, math.nan, math.nan)
        if math.isnan(app.started):
            starts = self.starts.forecast(now, self._wait(app), _start(queue.blind))
            # No job ends before it starts and has had the time that it needs alone.
            latest = [max(end - queue.each[number], now) if end == end else math.inf for end in (low, ends, high)]
            starts = (min(starts[0], latest[0]), min(starts[1], latest[1]), min(starts[2], latest[2]))
        return ExpectedTimes(
            starts=starts[1], starts_low=starts[0], starts_high=starts[2], ends=ends, ends_low=low, ends_high=high
        )

    def end_of(self, number: int, now: Seconds, queue: _Queue) -> tuple[Seconds, Seconds, Seconds]:
        """End of an active app as forecast now, between the ends of its interval; ``queue`` : ``queue_at`` now."""
        return self.finishes.forecast(now, queue.slowed(queue.each[number]), _kind(self.apps[number]))

    def revised(self, number: int) -> float:
        """An active app's work as measured over what was believed when it came; 1 where nothing was measured."""
        return self.apps[number].revised if number in self.apps else 1.0

    def alone(self, number: int, now: Seconds) -> Seconds:
        """Seconds that an active app still needs with as many GPUs as it can use; NaN where that is not known."""
        app = self.apps.get(number)
        return math.nan if app is None or not self.capacity else app.alone(now, self.capacity)

    def _blind(self) -> bool:
        """True if the work of an app that has GPUs is not known, so that nobody can say when they are free."""
        return any(app.held and app.known == " unknown" for app in self.unknown.values())

    def first(self, number: int) -> Interval:
        """The interval of an app's finish as of when it came; NaN without one."""
        app = self.apps.get(number)
        return self.finishes.known(app.open[0]) if app is not None and app.open else UNKNOWN

    def coverage(self) -> Coverage:
        """Coverage of intervals so far."""
        f, s = self.finishes, self.starts
        return Coverage(
            finishes=sum(f.made.values()),
            finishes_held=sum(f.held.values()),
            starts=sum(s.made.values()),
            starts_held=sum(s.held.values()),
        )

    def _learn(self, app: _AppForecast, now: Seconds) -> None:
        if app.asked >= MOST or not self.capacity:
            return
        base = self._finish(app, now)
        app.open.append(self.finishes.add(now, base, _kind(app)))
        app.asked += 1
        app.next_at = now + 0.5 * base

    def _finish(self, app: _AppForecast, now: Seconds) -> Seconds:
        """Seconds to the app's end, by the queue as it is or was shortly before."""
        queue = self.queue
        if self.changes * STALE >= len(queue.alone) or (now - queue.at) * STALE > queue.mean:
            self.queue, self.changes = self.queue_at(now), 0
        return self.queue.slowed(app.alone(now, self.capacity))

    def queue_at(self, now: Seconds) -> _Queue:
        """Queue of all active apps."""
        each = {number: app.alone(now, self.capacity) for number, app in self.apps.items()}
        gpus = np.array([app.gpus for app in self.apps.values()], dtype=np.float64)
        return replace(queue_of(now, np.array([*each.values()]), gpus, self.capacity), each=each, blind=self._blind())

    def _wait(self, app: _AppForecast) -> Seconds:
        """Seconds until GPUs are free for it if those that want them got them by turns."""
        return self._lasts() * max(self.wanted - self.capacity, app.gang) / max(self.capacity, 1)

    def _lasts(self) -> Seconds:
        """Mean seconds that a GPU is used by the apps that came lately."""
        return sum(alone * gpus for alone, gpus in self.recent) / max(sum(gpus for _, gpus in self.recent), 1)


@dataclass(frozen=True, slots=True)
class _Queue:
    """Processor sharing among apps, as of ``at``: an app that needs ``alone[k]`` seconds alone ends after ``shared[k]`` seconds.

    ``each`` : seconds that each app needs alone, by its number. ``blind`` : as ``Outlook._blind`` says.
    """

    at: Seconds = -math.inf
    alone: Float = field(default_factory=lambda: np.zeros(0))
    shared: Float = field(default_factory=lambda: np.zeros(0))
    mean: Seconds = 0.0
    each: dict[int, Seconds] = field(default_factory=dict)
    blind: bool = False

    def slowed(self, alone: Seconds) -> Seconds:
        """Seconds until an app of the queue has ended; an app that needs longer than all others has the GPUs for itself then."""
        return float(np.interp(alone, self.alone, self.shared)) + max(alone - float(self.alone[-1]), 0.0)


def queue_of(at: Seconds, alone: Float, gpus: Float, capacity: int) -> _Queue:
    """The queue of apps that need ``alone`` [A] seconds on ``gpus`` [A] GPUs each.

    While those that need more than v seconds want D(v) GPUs, all their work takes max(D(v) / capacity, 1) times as long: an app of
    a seconds ends after the integral of this from 0 to a.
    """
    order = np.argsort(alone, kind="stable")
    upto = np.concatenate([[0.0], alone[order]])
    demand = np.cumsum(gpus[order][::-1])[::-1]
    shared = np.concatenate([[0.0], np.cumsum(np.diff(upto) * np.maximum(demand / capacity, 1.0))])
    return _Queue(at, upto, shared, float(alone.mean()))


def _expected(app: App, first: int, now: Seconds, work: GpuSeconds, alone_s: Seconds) -> _AppForecast:
    """Forecast of an arriving app; its jobs are numbered from ``first`` on.

    Its work is shared among its jobs by steps times GPUs. Of a sweep in rungs it is that of its rungs, not of all its jobs.
    """
    work = max(work, 1e-9)
    size = [sum(r.steps * job.scale(r.batch) for r in job.expected_regimes) * job.gpus_max for job in app.jobs]
    each = work / max(sum(size), 1e-9)
    brackets = brackets_of(app.tuner)
    if brackets:
        whole = sum(bracket.steps * bracket.rungs[0].jobs for bracket in brackets)
        work *= sum(rung.jobs * rung.steps for bracket in brackets for rung in bracket.rungs) / whole
    return _AppForecast(
        work=work,
        alone_s=max(alone_s, 1e-9),
        gang=min(job.gpus_min for job in app.jobs),
        gpus=sum(job.gpus_max for job in app.jobs),
        rungs=bool(brackets),
        jobs={
            first + i: _JobForecast(max(s * each, 1e-9), job.gpus_max, **_steps(job))
            for i, (s, job) in enumerate(zip(size, app.jobs))
        },
    )


def _steps(job: Job) -> dict[str, Any]:
    """Steps of a job that trains at one speed; none of others."""
    if len({(r.batch, r.pace) for r in job.regimes}) > 1 or job.dynamic is not None:
        return {}
    batch = job.regimes[0].batch
    return {"model": (job.model, batch), "steps": sum(r.steps for r in job.regimes), "scale": job.scale(batch)}


def _kind(app: _AppForecast) -> str:
    state = "waits" if math.isnan(app.started) else "runs" if app.held else "stopped"
    return state + app.known


def _start(blind: bool) -> str:
    """Kind of a forecast of a start."""
    return "start unknown" if blind else "start"


def _assumed(kind: str) -> float:
    """Spread of the errors of a kind of forecasts before any came true."""
    return ASSUMED["".join(kind.partition(" ")[1:])]


MEASURED = frozenset({"JobProgress", "JobStopped", "SpeedMeasured", "MetricsReported"})
"""Kinds of records that say how fast jobs are."""


class Followed:
    """An ``Outlook`` that follows any log's records, for readers that keep no ledger of leases."""

    KINDS = frozenset(
        {
            "MachineJoined",
            "MachineFailed",
            "MachineReturned",
            "MachineResized",
            "Quarantined",
            "AppSubmitted",
            "Grant",
            "JobStarted",
            "Revoke",
            "JobEnded",
            "AppFinished",
            *MEASURED,
        }
    )

    def __init__(self) -> None:
        self.outlook = Outlook()
        self.now: Seconds = 0.0
        self.leases = LeaseFold(HeldLease)

    def add(self, time: Seconds, record: object) -> None:
        """Take one record in."""
        self.now, outlook = time, self.outlook
        match record:
            case events.Quarantined(machine=n) if n is None or n in self.leases.machines.away:
                pass
            case (
                events.MachineJoined()
                | events.MachineFailed()
                | events.MachineReturned()
                | events.MachineResized()
                | events.Quarantined()
            ):
                outlook.service(self.leases.machine(record))
            case AppSubmitted():
                outlook.submit(time, record)
            case Grant():
                self.leases.grant(time, record)
                outlook.grant(time, record)
            case events.JobStarted():
                if self.leases.start(time, record) is not None:
                    outlook.train(time, record.job)
            case events.Revoke():
                lease = self.leases.revoke(time, record)
                outlook.revoke(time, record.job, lease.gpus if lease else 0)
            case JobEnded():
                outlook.end(record.app, record.job)
            case _ if type(record).__name__ in MEASURED:
                outlook.measured(time, record)
            case events.AppFinished():
                outlook.finish(time, record.app, record.outcome)
