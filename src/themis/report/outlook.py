"""When apps will start and finish, under any policy: a forecast from the log, with an interval that is calibrated.

The forecast is a fluid one: an app's work left is done at its share of the GPUs while others finish and others come, as many
within a time ahead as came within the same time before. It knows no policy; how much sooner or later apps end is learned from
the run's own past (``report.calibrated``), by what the app does (it waits, runs, or was stopped) and by horizon. So intervals
under each policy are its own.

An app's work is what was believed when it came (``AppSubmitted.alone``). Logs without it have no forecasts.
"""

from __future__ import annotations

import math
from bisect import bisect_right
from collections import deque
from dataclasses import dataclass, field

from themis.model import events
from themis.model.events import AppSubmitted, Grant
from themis.model.units import GpuSeconds, Seconds
from themis.report.calibrated import UNKNOWN, Calibrated, Interval

RECENT = 64
"""Arrivals that any rate of arrivals is of, at least."""
HISTORY = 4096
"""Arrivals that are kept; half as many after a cut."""
STEPS = 16
MOST = 6
"""Forecasts of an app that are learned from: when it comes, when it starts, and later ones ever more rarely."""
LEAST_LEFT = 0.02
"""Share of an app's work that it is taken to have left at least."""


@dataclass(slots=True)
class _AppForecast:
    """One app: what was believed of it, and what it got."""

    arrival: Seconds
    work: GpuSeconds
    alone_s: Seconds
    gpus: int
    gang: int
    got: GpuSeconds = 0.0
    training: dict[int, tuple[Seconds, int]] = field(default_factory=dict)
    """Since when each job's gang trains, on how many GPUs."""
    held: int = 0
    started: Seconds = math.nan
    open: list[int] = field(default_factory=list)
    start: int = -1
    next_at: Seconds = 0.0
    asked: int = 0

    def left(self, now: Seconds) -> GpuSeconds:
        got = self.got + sum((now - since) * gpus for since, gpus in self.training.values() if now > since)
        return max(self.work - got, LEAST_LEFT * self.work)


@dataclass(frozen=True, slots=True, kw_only=True)
class ExpectedTimes:
    """Of an active app: seconds in simulated time. NaN where it is not known, or has happened.

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
    """How often 80 % intervals held: ``made`` and ``held`` of finishes, and of starts of apps that had to wait."""

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
    """Takes in what happens in order of time."""

    def __init__(self) -> None:
        self.apps: dict[int, _AppForecast] = {}
        self.count = 0
        self.capacity = 0
        self.in_use = 0
        self.app_of: dict[int, int] = {}
        self.finishes, self.starts = Calibrated(), Calibrated()
        self.recent: deque[tuple[Seconds, Seconds, int]] = deque(maxlen=RECENT)
        """Arrival, seconds alone and GPUs wanted of the last apps."""
        self.arrivals: list[Seconds] = []
        """Of the apps that are kept, in order."""
        self.came: list[int] = []
        """GPUs wanted by all apps up to each of them, itself included."""
        self.cut = False
        """Whether apps that came before these were dropped."""
        self.wanted = 0

    # ---- what happens -----------------------------------------------------------------------------------------------

    def service(self, gpus: int) -> None:
        """So many more GPUs are in service; fewer when negative."""
        self.capacity += gpus

    def submit(self, now: Seconds, event: AppSubmitted) -> None:
        """An app came."""
        number, self.count = self.count, self.count + 1
        if event.alone is None:
            return
        work, alone_s = event.alone
        gpus = sum(job.gpus_max for job in event.app.jobs)
        gang = min(job.gpus_min for job in event.app.jobs)
        app = self.apps[number] = _AppForecast(now, max(work, 1e-9), max(alone_s, 1e-9), gpus, gang)
        self.wanted += gpus
        self.recent.append((now, work / gpus, gpus))
        self.arrivals.append(now)
        self.came.append(gpus + (self.came[-1] if self.came else 0))
        if len(self.arrivals) > HISTORY:
            self.cut = True
            del self.arrivals[: HISTORY // 2], self.came[: HISTORY // 2]
        app.next_at = now
        self._learn(app, now)
        if self.capacity - self.in_use < gang:
            app.start = self.starts.add(now, self._wait(app), "start")

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

    def revoke(self, now: Seconds, job: int, gpus: int) -> None:
        """A gang lost its GPUs."""
        self.in_use -= gpus
        app = self.apps.get(self.app_of.get(job, -1))
        if app is None or job not in app.training:
            return
        since, gpus = app.training.pop(job)
        app.got += max(now - since, 0.0) * gpus if math.isfinite(since) else 0.0
        app.held -= gpus

    def finish(self, now: Seconds, number: int, outcome: str) -> None:
        """An app ended."""
        app = self.apps.pop(number, None)
        if app is None:
            return
        self.wanted -= app.gpus
        for one in app.open:
            self.finishes.end(one, now) if outcome == "completed" else self.finishes.drop(one)
        if app.start >= 0 and math.isnan(app.started):
            self.starts.drop(app.start)

    # ---- forecasts --------------------------------------------------------------------------------------------------

    def of(self, number: int, now: Seconds) -> ExpectedTimes:
        """What is forecast of an active app now."""
        app = self.apps.get(number)
        if app is None or not self.capacity:
            return ExpectedTimes()
        base = self._finish(app, now)
        low, high = self.finishes.interval(now, base, _kind(app))
        starts, begin = math.nan, UNKNOWN
        if math.isnan(app.started):
            wait = self._wait(app)
            starts, begin = now + wait, self.starts.interval(now, wait, "start")
        return ExpectedTimes(
            starts=starts, starts_low=begin[0], starts_high=begin[1], ends=now + base, ends_low=low, ends_high=high
        )

    def first(self, number: int) -> Interval:
        """The interval of an app's finish as of when it came; NaN without one."""
        app = self.apps.get(number)
        return self.finishes.known(app.open[0]) if app is not None and app.open else UNKNOWN

    def coverage(self) -> Coverage:
        """How often intervals held so far."""
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
        """Seconds to the app's end if GPUs were shared alike, others came as of late, and each left as it is done."""
        share = app.left(now) / app.work
        alone = share * max(app.alone_s, app.work / max(min(app.gpus, self.capacity), 1))
        lasts = self._lasts()
        demand, time = float(self.wanted), 0.0
        for _ in range(STEPS):
            slowed = max(demand / self.capacity, 1.0)
            step = alone / STEPS * slowed
            time += step
            leave = min(demand, self.capacity) / lasts if lasts > 0 else 0.0
            demand = max(demand + step * (self._coming(now, time) - leave), float(app.gpus))
        return time

    def _wait(self, app: _AppForecast) -> Seconds:
        """Seconds until GPUs are free for it if those that want them got them by turns."""
        return self._lasts() * max(self.wanted - self.capacity, app.gang) / max(self.capacity, 1)

    def _lasts(self) -> Seconds:
        """Mean seconds that a GPU is used by the apps that came lately."""
        gpus = sum(gpus for _, _, gpus in self.recent)
        return sum(alone * gpus for _, alone, gpus in self.recent) / max(gpus, 1)

    def _coming(self, now: Seconds, ahead: Seconds) -> float:
        """GPUs wanted per second by apps that came within as many seconds before ``now``; within longer, if these are fewer than
        ``RECENT`` apps. Before the first app of the log none came.

        So a burst of minutes is not taken to last for hours, nor a quiet hour for a quiet day.
        """
        window = max(ahead, now - self.recent[0][0])
        first = bisect_right(self.arrivals, now - window)
        if not first and self.cut:
            window = now - self.arrivals[0]
        # The first app begins the count.
        return (self.came[-1] - self.came[max(first - 1, 0)]) / window if window > 0 else 0.0


def _kind(app: _AppForecast) -> str:
    return "waits" if math.isnan(app.started) else "runs" if app.held else "stopped"


class Followed:
    """An ``Outlook`` that follows any log's records, for readers that keep no ledger of leases."""

    KINDS = frozenset(
        {
            "MachineJoined",
            "MachineFailed",
            "MachineReturned",
            "MachineResized",
            "AppSubmitted",
            "Grant",
            "JobStarted",
            "Revoke",
            "AppFinished",
        }
    )

    def __init__(self) -> None:
        self.outlook = Outlook()
        self.now: Seconds = 0.0
        self._machines: list[int] = []
        self._away: set[int] = set()
        self._leases: dict[int, tuple[int, int]] = {}
        """Attempt and GPUs of each job that holds some."""

    def add(self, time: Seconds, record: object) -> None:
        """Take one record in."""
        self.now, outlook = time, self.outlook
        match record:
            case events.MachineJoined():
                self._machines.append(record.machine.gpus)
                outlook.service(record.machine.gpus)
            case events.MachineFailed() | events.MachineReturned():
                gpus, back = self._machines[record.machine], isinstance(record, events.MachineReturned)
                (self._away.discard if back else self._away.add)(record.machine)
                outlook.service(gpus if back else -gpus)
            case events.MachineResized():
                n, before = record.machine, self._machines[record.machine]
                outlook.service((0 if n in self._away and before else record.gpus) - (0 if n in self._away else before))
                if not record.gpus or not before:
                    (self._away.discard if record.gpus else self._away.add)(n)
                self._machines[n] = record.gpus
            case AppSubmitted():
                outlook.submit(time, record)
            case Grant():
                self._leases[record.job] = record.attempt, len(record.gpus)
                outlook.grant(time, record)
            case events.JobStarted():
                if self._leases.get(record.job, (0, 0))[0] == record.attempt:
                    outlook.train(time, record.job)
            case events.Revoke():
                _, gpus = self._leases.pop(record.job, (0, 0))
                outlook.revoke(time, record.job, gpus)
            case events.AppFinished():
                outlook.finish(time, record.app, record.outcome)
