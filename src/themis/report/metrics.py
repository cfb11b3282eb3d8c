"""Event log -> metrics, in one pass and bounded memory: ``Fold`` is a sink for the simulator and for a log alike.

Leases are those of ``accounts.held_leases``. What each number means,
and how it follows from what is read here, is said in ``themis.report.numbers`` and nowhere else. Leaves out: per-step training
curves, costs in money.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Callable
from copy import deepcopy
from dataclasses import replace
from pathlib import Path
from typing import Any

from themis.errors import InputError
from themis.model import events
from themis.model.answers import Ask
from themis.model.events import Allocated, AppFinished, AppSubmitted, Grant, Header, Revoke
from themis.model.log import Record, encode, read_log
from themis.model.units import GpuSeconds, Seconds
from themis.report.accounts.held_leases import HeldLease, LeaseFold, MachineEvent
from themis.report.definitions import DEFINITIONS
from themis.report.delivery import Delivery, Missing, ratios
from themis.report.export import apps_to_csv, to_csv, to_json
from themis.report.gangs import Gangs
from themis.report.ledger import DecisionTotals, Ledger, Levels
from themis.report.measures import Folded
from themis.report.numbers import measure
from themis.report.outlook import MEASURED, Outlook
from themis.report.plans import Plans
from themis.report.reference_finish import Isolated, Reference
from themis.report.result import Inputs, RunMetrics
from themis.report.rho import RhoStats
from themis.report.rows import AppRow
from themis.report.series import Steps
from themis.report.speeds import SpeedsGiven

__all__ = [
    "DEFINITIONS",
    "AppRow",
    "Fold",
    "RhoStats",
    "RunMetrics",
    "apps_to_csv",
    "metrics_of",
    "to_csv",
    "to_json",
]


def metrics_of(path: str | Path) -> RunMetrics:
    """The metrics of a log file.

    Raises
    ------
    InputError : the file is missing, broken or of another schema; names file and line.
    """
    fold = Fold()
    for time, record in read_log(path):
        fold.add(time, record)
    return fold.result()


FOLDED = frozenset(
    (
        "Header",
        "MachineJoined",
        "MachineFailed",
        "MachineReturned",
        "MachineResized",
        "SettingsChanged",
        "UserWeightsSet",
        "FairnessSet",
        "AppSubmitted",
        "AppHeld",
        "AppResumed",
        "Quarantined",
        "Allocated",
        "Grant",
        "JobStarted",
        "Revoke",
        "JobReached",
        "GoodputReported",
        "JobEnded",
        "AppFinished",
        *MEASURED,
    )
)
"""Kinds of records that ``Fold`` counts; others only move its clock."""


class Fold:
    """Fold of records in order; ``result`` may be read at any time, also while apps run."""

    def __init__(self) -> None:
        self.header: Header | None = None
        self.levels, self.ledger, self.rounds, self.plans = Levels(), Ledger(), DecisionTotals(), Plans()
        self.delivery, self.reference = Delivery(), Reference()
        self.speeds, self.outlook, self.gangs = SpeedsGiven(), Outlook(), Gangs()
        self.seats_taken: list[int] = []
        """Leases on each GPU: two where jobs share it."""
        self.leases = LeaseFold(HeldLease)
        self.own_weight: list[float] = []
        """Weight of each app, without its user's."""
        self.apps_given, self.machines_given = hashlib.sha256(), hashlib.sha256()
        self.outages: list[tuple[Seconds, int]] = []
        self._handlers: dict[type[Any], Callable[[Seconds, Any], None]] = {
            Header: self._header,
            events.MachineJoined: self._joined,
            events.MachineFailed: self._failed,
            events.FairnessSet: self._fairness,
            events.MachineReturned: self._machine,
            events.MachineResized: self._resized,
            events.SettingsChanged: self._changed,
            events.UserWeightsSet: self._reweighed,
            events.AppHeld: lambda time, e: self._held(time, e.app, True),
            events.AppResumed: lambda time, e: self._held(time, e.app, False),
            events.Quarantined: self._quarantined,
            AppSubmitted: self._submitted,
            Allocated: self._allocated,
            Grant: self._granted,
            events.JobStarted: self._started,
            events.JobStopped: self._stopped,
            events.JobProgress: self._progress,
            events.GoodputReported: self.gangs.report,
            events.SpeedMeasured: self.outlook.measured,
            events.MetricsReported: self.outlook.measured,
            Revoke: self._revoked,
            events.JobReached: self._reached,
            events.JobEnded: self._ended,
            AppFinished: self._finished,
        }

    def add(self, time: Seconds, record: Record) -> None:
        """Take one record in; times never fall."""
        if time > self.levels.now:
            self.levels.advance(time)
        handle = self._handlers.get(type(record))
        if handle is not None:
            handle(time, record)

    __call__ = add

    # ---- records ----------------------------------------------------------------------------------------------------

    def _header(self, time: Seconds, header: Header) -> None:
        self.header = header
        self.leases.settings(header.settings)

    def _fairness(self, time: Seconds, event: events.FairnessSet) -> None:
        """A report names the unit of fairness among the run's settings, where it is not the app."""
        if self.header is not None:
            self.header = replace(self.header, settings={**self.header.settings, "between": event.between})
        self.reference.fairness(event)
        self.delivery.fairness(time, event)

    def _held(self, time: Seconds, app: int, held: bool) -> None:
        self.delivery.hold(time, app, held)
        self.reference.hold(time, app, held)

    def _quarantined(self, time: Seconds, event: events.Quarantined) -> None:
        if event.app is not None:
            if event.app not in self.delivery.held:
                self._held(time, event.app, True)
        elif event.machine not in self.leases.machines.away:
            self._machine(time, event)

    def _changed(self, time: Seconds, event: events.SettingsChanged) -> None:
        """A report names the settings that held in the end, and every policy in turn."""
        header = self.header
        self.leases.settings(event.settings)
        if header is not None:
            policy = f"{header.policy} -> {event.policy}" if event.policy else header.policy
            self.header = replace(header, policy=policy, settings={**header.settings, **event.settings})
        if event.policy:
            self.delivery.withdrawn(time)

    def _reweighed(self, time: Seconds, event: events.UserWeightsSet) -> None:
        weights = dict(event.users)
        for a, app in enumerate(self.ledger.apps):
            if app.user in weights:
                self.reference.reweigh(time, a, self.own_weight[a] * weights[app.user])
        for a in list(self.delivery.active):
            if (weight := weights.get(self.ledger.apps[a].user)) is not None:
                self.delivery.reweighed(time, a, self.own_weight[a] * weight)

    def _joined(self, time: Seconds, event: events.MachineJoined) -> None:
        self.machines_given.update(encode(time, event))
        self.speeds.join(event.machine.gpu_type)
        self._machine(time, event)

    def _failed(self, time: Seconds, event: events.MachineFailed) -> None:
        self.outages.append((time, event.machine))
        self._machine(time, event)

    def _resized(self, time: Seconds, event: events.MachineResized) -> None:
        self.machines_given.update(encode(time, event))
        self._machine(time, event)

    def _machine(self, time: Seconds, event: MachineEvent) -> None:
        gpus = self.leases.machine(event)
        self.seats_taken += [0] * (len(self.leases.machines.machine_of) - len(self.seats_taken))
        self.levels.in_service += gpus
        self.delivery.service(time, gpus)
        self.reference.service(time, gpus)
        self.outlook.service(gpus)

    def _submitted(self, time: Seconds, event: AppSubmitted) -> None:
        self.levels.begin()
        self.levels.active += 1
        self.levels.jobs += len(event.app.jobs)
        self.own_weight.append(event.app.weight)
        self.gangs.submit(len(self.ledger.jobs), event.app)
        self.ledger.add(event.app, event.weight, time, self.levels.met)
        # Estimates depend on the cluster too.
        self.apps_given.update(encode(time, replace(event, assumed=None, alone=None)))
        self.speeds.add(event)
        self.outlook.submit(time, event)
        self.reference.submit(time, event)
        wanted = sum(job.gpus_max for job in event.app.jobs)
        self.levels.wanted += wanted
        self.delivery.submitted(time, event.app, event.weight, wanted)

    def _wanted(self, time: Seconds, job: int, change: int) -> None:
        self.levels.wanted += change
        self.delivery.demand(time, job, change)

    def _allocated(self, time: Seconds, event: Allocated) -> None:
        if not isinstance(event.solved.answer, Ask):
            self.rounds.add(event.solved.proof)
            self.plans.add(time, event.solved.proof)
            self.delivery.allocated(time, event.solved.answer)

    def _granted(self, time: Seconds, grant: Grant) -> None:
        for entry in (self.ledger.apps[grant.app], self.ledger.jobs[grant.job]):
            if math.isnan(entry.first_grant):
                entry.first_grant = time
            entry.restarts += grant.attempt > 1
        self.plans.start(grant.job, time)
        self.outlook.grant(time, grant)
        self._wanted(time, grant.job, self.ledger.resume(grant.job))
        self.leases.grant(time, grant)
        self.levels.starting += len(grant.gpus)
        for g in grant.gpus:
            self.seats_taken[g] += 1
            self.levels.in_use += self.seats_taken[g] == 1

    def _progress(self, time: Seconds, event: events.JobProgress) -> None:
        self.outlook.measured(time, event)
        self.gangs.report(time, event)

    def _stopped(self, time: Seconds, event: events.JobStopped) -> None:
        self.leases.drained = False
        self.gangs.report(time, event)
        self.outlook.measured(time, event)

    def _started(self, time: Seconds, event: events.JobStarted) -> None:
        lease = self.leases.start(time, event)
        if lease is not None:
            self.outlook.train(time, event.job)
            self.gangs.train(time, lease)
            self.levels.starting -= lease.gpus

    def _revoked(self, time: Seconds, revoke: Revoke) -> None:
        lease = self.leases.revoke(time, revoke)
        if lease is None:
            return
        self.outlook.revoke(time, revoke.job, lease.gpus)
        self.gangs.revoke(lease)
        if math.isnan(lease.started):
            self.levels.starting -= lease.gpus
        for g in lease.gpu_ids:
            self.seats_taken[g] -= 1
            self.levels.in_use -= self.seats_taken[g] == 0
        self.ledger.failures += lease.failed
        self.ledger.count(lease, time)

    def _reached(self, time: Seconds, event: events.JobReached) -> None:
        self.gangs.report(time, event)
        lease = self.leases.held.get(event.job)
        if lease is not None and lease.attempt == event.attempt:
            self._wanted(time, event.job, self.ledger.reach(event.job))
            self.delivery.paused(time, event.job)

    def _ended(self, time: Seconds, event: events.JobEnded) -> None:
        self._wanted(time, event.job, self.ledger.end(event.job))
        self.delivery.paused(time, event.job)
        self.outlook.end(event.app, event.job)
        job = self.ledger.jobs[event.job]
        job.finish, job.outcome = time, event.outcome
        self.levels.jobs -= 1
        if event.outcome == "completed":
            self.ledger.complete(event.job, time, event.isolated_s, *self.levels.met)
            self.plans.end(event.job, time)

    def _finished(self, time: Seconds, event: AppFinished) -> None:
        app = self.ledger.apps[event.app]
        app.finish, app.end = time, event
        self.delivery.finished(time, event.app)
        self.reference.finish(time, event, live=self.header is not None and not self.header.simulated)
        self.outlook.finish(time, event.app, event.outcome)
        self.levels.active -= 1
        if not self.levels.active:
            self.levels.mark()

    # ---- result -----------------------------------------------------------------------------------------------------

    def delivered(self, app: int) -> tuple[GpuSeconds, GpuSeconds, Missing]:
        """(entitled, received, the difference by cause) of one app by the last record, its leases that run included."""
        now, used = self.levels.now, replace(self.ledger.apps[app].used)
        for lease in self.leases.held.values():
            if lease.app == app:
                used.add(lease, now)
        due, declined = (float(column[app]) for column in self.delivery.entitled(now))
        return due, used.received, self.delivery.missing(app, due, declined, used)

    def received(self) -> list[GpuSeconds]:
        """Useful GPU-seconds that each app had by the last record, its leases that run included, [A]."""
        used = [replace(app.used) for app in self.ledger.apps]
        for lease in self.leases.held.values():
            used[lease.app].add(lease, self.levels.now)
        return [u.received for u in used]

    def result(self) -> RunMetrics:
        """Metrics up to the last record; leases that are still held count up to it.

        Raises
        ------
        InputError : there was no header.
        """
        if self.header is None:
            raise InputError("these records have no Header, so it is unknown what was run; expected it first.")
        ledger = self.ledger
        if self.leases.held:
            ledger = deepcopy(self.ledger)
            for lease in self.leases.held.values():
                ledger.count(lease, self.levels.now)
        inputs = Inputs(
            apps=self.apps_given.hexdigest(),
            machines=self.machines_given.hexdigest(),
            profiles=self.header.profiles,
            outages=tuple(self.outages),
            speeds=self.speeds.count(),
            assumed=self.speeds.assumed,
        )
        size = len(self.leases.machines.gpus), len(self.seats_taken)
        # A live run has no setting for what a start takes.
        start_s = float(self.header.settings.get("container_s", 0.0))
        isolated = self.reference.isolated([app.end for app in ledger.apps], start_s)
        decided = self.rounds, self.plans
        run = _result(self.header, inputs, ledger, decided, self.levels, size, self.delivery, isolated)
        return replace(run, coverage=self.outlook.coverage(), gangs=tuple(self.gangs.pieces))


def _result(
    h: Header,
    inputs: Inputs,
    ledger: Ledger,
    decided: tuple[DecisionTotals, Plans],
    levels: Levels,
    size: tuple[int, int],
    delivery: Delivery,
    isolated: Isolated,
) -> RunMetrics:
    r, plans = decided
    due, declined = (column.tolist() for column in delivery.entitled(levels.now))
    rows = tuple(
        app.row(i, due[i], delivery.missing(i, due[i], declined[i], app.used), *times)
        for i, (app, *times) in enumerate(
            zip(ledger.apps, isolated.reference.tolist(), isolated.alone.tolist(), isolated.held.tolist())
        )
    )
    done = [row for row in rows if row.outcome == "completed"]
    jobs = ledger.job_table(size[1])
    folded = Folded(
        apps=rows,
        done=done,
        jobs=jobs,
        jct=[row.jct for row in done],
        wait=[row.wait for row in rows if not math.isnan(row.wait)],
        delivered=ratios([row.entitled for row in done], [row.received for row in done]),
        time=levels.totals(),
        ledger=ledger,
        rounds=r,
    )
    in_use, in_service, starting, wanted, active = (s.series() for s in levels.series or [Steps(0.0)] * 5)
    numbers: dict[str, Any] = measure(folded)
    return RunMetrics(
        policy=h.policy,
        params=dict(h.params),
        seed=h.seed,
        workload=h.workload,
        source=h.source,
        cluster=h.cluster,
        version=h.version,
        simulated=h.simulated,
        settings=dict(h.settings),
        machines=size[0],
        gpus=size[1],
        inputs=inputs,
        apps=rows,
        jobs=jobs,
        gpus_in_use=in_use,
        gpus_in_service=in_service,
        gpus_starting=starting,
        gpus_wanted=wanted,
        active_apps=active,
        placements=tuple(sorted(ledger.placements.items())),
        localities=tuple(ledger.localities),
        gantt=ledger.intervals.gantt(),
        plans=plans.table(jobs.name),
        **numbers,
    )
