"""GPU time that was idle while a waiting job fitted, and each app's wait for its first GPUs: one pass over the event log.

A waiting job fits by count: as many GPUs of a type that it may use are free as its smallest gang has. On which machines they
are, and how fast a gang would train on them, does not matter. A GPU is free while its machine is in service and not
draining, it has no lease, and no process of an ended lease is left on it.

Leaves out: GPU types that a job's model cannot run on. The log has no speeds, so a job fits every type that it does not rule
out itself.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from themis.model import events
from themis.model.events import AppSubmitted, Grant, JobEnded, Revoke
from themis.model.log import Record
from themis.model.units import GpuSeconds, Seconds
from themis.model.workload import brackets_of
from themis.report.ledger import Bracket

WAITING, RUNNING, ENDED = range(3)


class Want(NamedTuple):
    """Request of a waiting job: fewest GPUs, their types (empty: any), and the user."""

    gpus: int
    gpu_types: tuple[str, ...]
    user: str


@dataclass(frozen=True, slots=True, kw_only=True)
class IdleTime:
    """GPU-seconds of a run, from the first arrival to the last record.

    Attributes
    ----------
    capacity : of all GPUs in service. ``idle`` : of free GPUs. ``fitting`` : of free GPUs of a type on which a waiting job
        fitted, at most ``idle``.
    stopped_idle : gangs that were stopped at the end of their lease, with the same job waiting while all their GPUs were free.
    first_gpu : seconds from each app's arrival to its first grant, in order of arrival; NaN for an app that got none.
    """

    capacity: GpuSeconds
    idle: GpuSeconds
    fitting: GpuSeconds
    stopped_idle: int
    first_gpu: tuple[Seconds, ...]

    @property
    def share(self) -> float:
        """``fitting`` over ``capacity``, in [0, 1]; 0 without capacity."""
        return self.fitting / self.capacity if self.capacity else 0.0


@dataclass(slots=True)
class _IdleApp:
    user: str
    arrival: Seconds
    jobs: range
    at_once: int
    first: Seconds = math.nan
    held: bool = False
    running: int = 0


@dataclass(slots=True)
class _Job:
    app: int
    want: Want
    bracket: Bracket
    status: int = WAITING
    ready: Seconds = -math.inf


@dataclass(slots=True)
class _Machine:
    gpu_type: str
    size: int
    """Its present GPUs: the first ones of all that it ever had."""
    gpus: list[int] = field(default_factory=list)
    up: bool = True
    draining: bool = False


@dataclass(slots=True)
class IdleFold:
    """Fold of a log's records in order; ``result`` may be read at any time."""

    now: Seconds = 0.0
    began: Seconds = math.inf
    sums: list[float] = field(default_factory=lambda: [0.0, 0.0, 0.0])
    """``capacity``, ``idle``, ``fitting``."""
    stopped_idle: int = 0
    machines: list[_Machine] = field(default_factory=list)
    gpu_machine: list[int] = field(default_factory=list)
    place: list[int] = field(default_factory=list)
    """Place of each GPU on its machine."""
    load: list[int] = field(default_factory=list)
    """Number of gangs on each GPU with living processes."""
    service: int = 0
    free: Counter[str] = field(default_factory=Counter)
    apps: list[_IdleApp] = field(default_factory=list)
    jobs: list[_Job] = field(default_factory=list)
    on: dict[int, tuple[int, ...]] = field(default_factory=dict)
    """GPUs of each gang that was started and has not stopped."""
    waits: Counter[Want] = field(default_factory=Counter)
    """Numbers of waiting jobs that may run, by requested gang."""
    delayed: set[int] = field(default_factory=set)
    quotas: dict[str, tuple[frozenset[str], int]] = field(default_factory=dict)
    held: Counter[str] = field(default_factory=Counter)
    """Leased GPUs of each user."""
    expired: dict[int, tuple[int, ...]] = field(default_factory=dict)
    """GPUs of gangs that were stopped at this instant because their lease was over, by job."""

    def add(self, time: Seconds, record: Record) -> None:
        """Take one record in; times never fall."""
        if time > self.now:
            self._advance(time)
        handle = _HANDLERS.get(type(record))
        if handle is not None:
            handle(self, record)

    __call__ = add

    def result(self) -> IdleTime:
        """Idle time up to the last record."""
        capacity, idle, fitting = self.sums
        return IdleTime(
            capacity=capacity,
            idle=idle,
            fitting=fitting,
            stopped_idle=self.stopped_idle,
            first_gpu=tuple(app.first - app.arrival for app in self.apps),
        )

    def fitting_types(self) -> list[str]:
        """GPU types with enough free GPUs for a waiting job, as of the records so far."""
        return [name for name, gpus in self.free.items() if gpus and self._fits(name, gpus)]

    # ---- time -------------------------------------------------------------------------------------------------------

    def _advance(self, time: Seconds) -> None:
        """Add up constant values from ``now`` to ``time``."""
        for j in [j for j in self.delayed if self.jobs[j].ready <= self.now]:
            self.delayed.discard(j)
            self._count(j, 1)
        if self.expired:
            self.stopped_idle += sum(self._stood_idle(j, gpus) for j, gpus in self.expired.items())
            self.expired.clear()
        passed, self.now = time - self.now, time
        idle = sum(self.free.values())
        if math.isinf(self.began) or not self.service:
            return
        self.sums[0] += self.service * passed
        self.sums[1] += idle * passed
        if idle and self.waits:
            self.sums[2] += sum(self.free[name] for name in self.fitting_types()) * passed

    def _stood_idle(self, j: int, gpus: tuple[int, ...]) -> bool:
        waits = self.jobs[j].status == WAITING and self.waits[self.jobs[j].want] > 0
        return waits and all(not self.load[g] and self._open(g) for g in gpus)

    def _fits(self, gpu_type: str, gpus: int) -> bool:
        return any(
            want.gpus <= gpus and (not want.gpu_types or gpu_type in want.gpu_types) and self._within_quota(want)
            for want in self.waits
        )

    def _within_quota(self, want: Want) -> bool:
        return all(
            want.user not in users or sum(self.held[u] for u in users) + want.gpus <= most
            for users, most in self.quotas.values()
        )

    # ---- GPUs -------------------------------------------------------------------------------------------------------

    def _joined(self, event: events.MachineJoined) -> None:
        m = event.machine
        self.machines.append(_Machine(m.gpu_type, m.gpus))
        self._add_gpus(len(self.machines) - 1, m.gpus)
        self._count_machine(self.machines[-1], 1)

    def _open(self, g: int) -> bool:
        machine = self.machines[self.gpu_machine[g]]
        return machine.up and not machine.draining and self.place[g] < machine.size

    def _change_machine(
        self, n: int, *, up: bool | None = None, draining: bool | None = None, size: int | None = None
    ) -> None:
        m = self.machines[n]
        self._count_machine(m, -1)
        m.up = m.up if up is None else up
        m.draining = m.draining if draining is None else draining
        m.size = m.size if size is None else size
        self._count_machine(m, 1)

    def _count_machine(self, m: _Machine, change: int) -> None:
        here = m.gpus[: m.size]
        self.service += change * len(here) * m.up
        if m.up and not m.draining:
            self.free[m.gpu_type] += change * sum(not self.load[g] for g in here)

    def _resized(self, event: events.MachineResized) -> None:
        n, m, gpus = event.machine, self.machines[event.machine], event.gpus
        self._add_gpus(n, gpus - len(m.gpus))
        if gpus and m.size:
            self._change_machine(n, size=gpus)
        else:
            self._change_machine(n, up=bool(gpus), draining=False, size=gpus)

    def _add_gpus(self, n: int, gpus: int) -> None:
        for _ in range(gpus):
            self.place.append(len(self.machines[n].gpus))
            self.machines[n].gpus.append(len(self.load))
            self.gpu_machine.append(n)
            self.load.append(0)

    def _load(self, gpus: tuple[int, ...], change: int) -> None:
        for g in gpus:
            before = self.load[g] > 0
            self.load[g] += change
            if before != (self.load[g] > 0) and self._open(g):
                self.free[self.machines[self.gpu_machine[g]].gpu_type] += 1 if before else -1

    # ---- apps and jobs ----------------------------------------------------------------------------------------------

    def _submitted(self, event: AppSubmitted) -> None:
        spec, first, a = event.app, len(self.jobs), len(self.apps)
        self.began = min(self.began, self.now)
        sizes = [bracket.rungs[0].jobs for bracket in brackets_of(spec.tuner)] or [len(spec.jobs)]
        member = [bracket for size in sizes for bracket in [Bracket()] * size]
        self.apps.append(_IdleApp(spec.user, self.now, range(first, first + len(spec.jobs)), spec.at_once or 0))
        for j, (job, bracket) in enumerate(zip(spec.jobs, member, strict=True), start=first):
            bracket.alive.add(j)
            self.jobs.append(_Job(a, Want(job.gpus_min, job.gpu_types, spec.user), bracket))
        self._count_app(a, 1)

    def _eligible(self, j: int) -> bool:
        job = self.jobs[j]
        app = self.apps[job.app]
        full = bool(app.at_once) and app.running >= app.at_once
        return job.status == WAITING and not (j in job.bracket.paused or app.held or full or j in self.delayed)

    def _count(self, j: int, change: int) -> None:
        """The job joins (1) or leaves (-1) those that wait, if it is one of them."""
        if self._eligible(j):
            want = self.jobs[j].want
            self.waits[want] += change
            if not self.waits[want]:
                del self.waits[want]

    def _count_app(self, a: int, change: int) -> None:
        for j in self.apps[a].jobs:
            self._count(j, change)

    def _set(self, j: int, status: int) -> None:
        job = self.jobs[j]
        app = self.apps[job.app]
        if app.at_once:
            self._count_app(job.app, -1)
        else:
            self._count(j, -1)
        app.running += (status == RUNNING) - (job.status == RUNNING)
        job.status = status
        if app.at_once:
            self._count_app(job.app, 1)
        else:
            self._count(j, 1)

    def _granted(self, grant: Grant) -> None:
        app, job = self.apps[grant.app], self.jobs[grant.job]
        if math.isnan(app.first):
            app.first = self.now
        job.bracket.paused.discard(grant.job)
        self.expired.pop(grant.job, None)
        self._set(grant.job, RUNNING)
        self.held[app.user] += len(grant.gpus)
        self.on[grant.job] = grant.gpus
        self._load(grant.gpus, 1)

    def _revoked(self, revoke: Revoke) -> None:
        j = revoke.job
        if j not in self.on:
            return  # a lease whose gang had not been started
        self.held[self.apps[revoke.app].user] -= len(self.on[j])
        if revoke.cause == "expired":
            self.expired[j] = self.on[j]
        if self.jobs[j].status == RUNNING:
            self._set(j, WAITING)

    def _stopped(self, event: events.JobStopped) -> None:
        gpus = self.on.pop(event.job, None)
        if gpus is not None:
            self._load(gpus, -1)

    def _reached(self, event: events.JobReached) -> None:
        bracket = self.jobs[event.job].bracket
        if event.job in bracket.alive and event.job not in bracket.paused:
            self._count(event.job, -1)
            bracket.paused.add(event.job)
            self._next_rung(bracket)

    def _ended(self, event: JobEnded) -> None:
        bracket = self.jobs[event.job].bracket
        self._set(event.job, ENDED)
        bracket.alive.discard(event.job)
        bracket.paused.discard(event.job)
        self._next_rung(bracket)

    def _next_rung(self, bracket: Bracket) -> None:
        """End the rung if all remaining jobs have paused; jobs that its tuner stops end at that instant."""
        if bracket.paused and bracket.paused == bracket.alive:
            jobs = sorted(bracket.paused)
            bracket.paused.clear()
            for j in jobs:
                self._count(j, 1)

    def _hold(self, a: int, held: bool) -> None:
        self._count_app(a, -1)
        self.apps[a].held = held
        self._count_app(a, 1)

    def _delay(self, event: events.JobDelayed) -> None:
        self._count(event.job, -1)
        self.jobs[event.job].ready = event.until
        self.delayed.add(event.job)

    def _quota(self, event: events.QuotaSet) -> None:
        self.quotas.pop(event.name, None)
        if event.gpus is not None:
            self.quotas[event.name] = (frozenset(event.users), event.gpus)


_HANDLERS: dict[type[Any], Callable[[IdleFold, Any], None]] = {
    events.MachineJoined: IdleFold._joined,
    events.MachineFailed: lambda fold, e: fold._change_machine(e.machine, up=False),
    events.MachineReturned: lambda fold, e: fold._change_machine(e.machine, up=True),
    events.MachineResized: IdleFold._resized,
    events.MachineDraining: lambda fold, e: fold._change_machine(e.machine, draining=e.until is not None),
    AppSubmitted: IdleFold._submitted,
    Grant: IdleFold._granted,
    Revoke: IdleFold._revoked,
    events.JobStopped: IdleFold._stopped,
    events.JobReached: IdleFold._reached,
    JobEnded: IdleFold._ended,
    events.AppHeld: lambda fold, e: fold._hold(e.app, True),
    events.AppResumed: lambda fold, e: fold._hold(e.app, False),
    events.Quarantined: lambda fold, e: (
        fold._change_machine(e.machine, up=False) if e.app is None else fold._hold(e.app, True)
    ),
    events.JobDelayed: IdleFold._delay,
    events.QuotaSet: IdleFold._quota,
}
