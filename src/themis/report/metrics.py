"""Event log -> metrics, in one pass and bounded memory: ``Fold`` is a sink for the simulator and for a log alike.

A lease counts from its ``Grant`` to its ``Revoke``; its gang trains from ``JobStarted`` on. What each number means is
said in ``themis.report.definitions`` and nowhere else. Leaves out: per-step training curves, costs in money.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from copy import deepcopy
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from themis.errors import InputError
from themis.model import events
from themis.model.answers import Ask, Proof
from themis.model.events import Allocated, AppFinished, AppSubmitted, Grant, Header, Revoke
from themis.model.log import Record, read_log
from themis.model.units import GpuSeconds, Seconds
from themis.report.definitions import DEFINITIONS
from themis.report.export import apps_to_csv, to_csv, to_json
from themis.report.result import AppRow, RhoStats, RunMetrics, rho_stats
from themis.report.series import Intervals, Steps

__all__ = [
    "DEFINITIONS", "AppRow", "Fold", "RhoStats", "RunMetrics", "apps_to_csv", "metrics_of", "to_csv", "to_json",
]  # fmt: skip


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


@dataclass(slots=True)
class _App:
    name: str
    user: str
    jobs: int
    weight: float
    arrival: Seconds
    first_grant: Seconds = math.nan
    gpu_seconds: GpuSeconds = 0.0
    lost: GpuSeconds = 0.0
    restarts: int = 0
    finish: Seconds = math.nan
    end: AppFinished | None = None

    def row(self, number: int) -> AppRow:
        end, nan = self.end, math.nan
        return AppRow(
            app=number, name=self.name, user=self.user, jobs=self.jobs, weight=self.weight, arrival=self.arrival,
            finish=self.finish, jct=end.jct if end else nan, wait=self.first_grant - self.arrival,
            rho_paper=end.rho_paper if end else nan, rho_exact=end.rho_exact if end else nan,
            t_id_paper=end.t_id_paper if end else nan, t_id_exact=end.t_id_exact if end else nan,
            contention=end.contention if end else nan, gpu_seconds=self.gpu_seconds, lost_seconds=self.lost,
            restarts=self.restarts, outcome=end.outcome if end else "active",
        )  # fmt: skip


@dataclass(slots=True)
class _Lease:
    grant: Grant
    since: Seconds
    started: Seconds = math.nan


@dataclass(slots=True)
class _Ledger:
    """Apps, and totals over leases that are over, in GPU-seconds."""

    apps: list[_App] = field(default_factory=list)
    leased: float = 0.0
    placement: float = 0.0
    restart: float = 0.0
    crash: float = 0.0
    failures: int = 0
    intervals: Intervals = field(default_factory=Intervals)

    def count(self, lease: _Lease, time: Seconds, crash: Seconds = 0.0) -> None:
        """Add a lease that ends at ``time`` and whose last ``crash`` seconds of training are lost."""
        grant, app = lease.grant, self.apps[lease.grant.app]
        n, held = len(grant.gpus), time - lease.since
        restart = held if math.isnan(lease.started) else lease.started - lease.since
        self.leased += n * held
        self.placement += n * held * grant.score
        self.restart += n * restart
        self.crash += n * crash
        app.gpu_seconds += n * held
        app.lost += n * (restart + crash)
        self.intervals.add(grant.gpus, grant.app, grant.job, lease.since, time)


@dataclass(slots=True)
class _Rounds:
    """Totals over decisions."""

    decisions: int = 0
    auctions: int = 0
    bidders: int = 0
    offered: int = 0
    winners: int = 0
    paid: float = 0.0
    leftover: int = 0
    gap: float = 0.0

    def add(self, proof: Proof) -> None:
        self.decisions += 1
        bid = int(np.count_nonzero(proof.bid))
        if not bid:
            return
        self.auctions += 1
        self.bidders += bid
        self.offered += proof.offered
        won = proof.bid & (proof.won > 0)
        self.winners += int(won.sum())
        self.paid += float((1.0 - proof.kept[won]).sum())
        self.leftover += int(proof.leftover.sum())
        self.gap = max(self.gap, proof.bound - proof.objective)


@dataclass(slots=True)
class _Levels:
    """Step functions of time: what they are now, their series since the first arrival, and their integrals."""

    now: Seconds = 0.0
    in_use: int = 0
    in_service: int = 0
    starting: int = 0
    active: int = 0
    used_seconds: float = 0.0
    service_seconds: float = 0.0
    series: tuple[Steps, ...] = ()
    marked: tuple[Seconds, GpuSeconds, GpuSeconds] = (0.0, 0.0, 0.0)

    def advance(self, time: Seconds) -> None:
        """The levels held until now."""
        passed = time - self.now
        if passed <= 0:
            return
        self.now = time
        if self.series:
            self.used_seconds += self.in_use * passed
            self.service_seconds += self.in_service * passed
            for steps, level in zip(self.series, (self.in_use, self.in_service, self.starting, self.active)):
                steps.add(time, level)

    def begin(self) -> None:
        """The first app arrived: from here on time counts."""
        if not self.series:
            self.series = tuple(Steps(self.now) for _ in range(4))

    def mark(self) -> None:
        """The last active app finished: what comes after counts only if another one arrives."""
        self.marked = self._until_now()

    def totals(self) -> tuple[Seconds, GpuSeconds, GpuSeconds]:
        """(makespan, GPU time used, GPU time in service)."""
        return self._until_now() if self.active else self.marked

    def _until_now(self) -> tuple[Seconds, GpuSeconds, GpuSeconds]:
        return self.now - self.series[0].start, self.used_seconds, self.service_seconds


class Fold:
    """Takes records in order and tells what they come to; ``result`` may be asked at any time, also while apps run."""

    def __init__(self) -> None:
        self.header: Header | None = None
        self.levels, self.ledger, self.rounds = _Levels(), _Ledger(), _Rounds()
        self.machine_gpus: list[int] = []
        self.seats_taken: list[int] = []
        """Leases on each GPU: two where jobs share it."""
        self.leases: dict[int, _Lease] = {}
        self._handlers: dict[type[Any], Callable[[Seconds, Any], None]] = {
            Header: self._header,
            events.MachineJoined: self._joined,
            events.MachineFailed: lambda time, e: self._in_service(-self.machine_gpus[e.machine]),
            events.MachineReturned: lambda time, e: self._in_service(self.machine_gpus[e.machine]),
            AppSubmitted: self._submitted,
            Allocated: self._allocated,
            Grant: self._granted,
            events.JobStarted: self._started,
            Revoke: self._revoked,
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

    def _joined(self, time: Seconds, event: events.MachineJoined) -> None:
        self.machine_gpus.append(event.machine.gpus)
        self.seats_taken.extend([0] * event.machine.gpus)
        self._in_service(event.machine.gpus)

    def _in_service(self, gpus: int) -> None:
        self.levels.in_service += gpus

    def _submitted(self, time: Seconds, event: AppSubmitted) -> None:
        self.levels.begin()
        self.levels.active += 1
        app = event.app
        self.ledger.apps.append(
            _App(name=app.name, user=app.user, jobs=len(app.jobs), weight=event.weight, arrival=time)
        )

    def _allocated(self, time: Seconds, event: Allocated) -> None:
        if not isinstance(event.solved.answer, Ask):
            self.rounds.add(event.solved.proof)

    def _granted(self, time: Seconds, grant: Grant) -> None:
        app = self.ledger.apps[grant.app]
        if math.isnan(app.first_grant):
            app.first_grant = time
        app.restarts += grant.attempt > 1
        self.leases[grant.job] = _Lease(grant, time)
        self.levels.starting += len(grant.gpus)
        for g in grant.gpus:
            self.seats_taken[g] += 1
            self.levels.in_use += self.seats_taken[g] == 1

    def _started(self, time: Seconds, event: events.JobStarted) -> None:
        lease = self.leases.get(event.job)
        # A report of an earlier attempt may come late; it says nothing about this lease.
        if lease is not None and lease.grant.attempt == event.attempt and math.isnan(lease.started):
            lease.started = time
            self.levels.starting -= len(lease.grant.gpus)

    def _revoked(self, time: Seconds, revoke: Revoke) -> None:
        lease = self.leases.pop(revoke.job, None)
        if lease is None:
            return
        gpus = lease.grant.gpus
        if math.isnan(lease.started):
            self.levels.starting -= len(gpus)
        for g in gpus:
            self.seats_taken[g] -= 1
            self.levels.in_use -= self.seats_taken[g] == 0
        failed = revoke.cause == "failed"
        self.ledger.failures += failed
        self.ledger.count(lease, time, self._lost_in_crash(lease, time) if failed else 0.0)

    def _lost_in_crash(self, lease: _Lease, time: Seconds) -> Seconds:
        """Training since the last checkpoint."""
        if math.isnan(lease.started) or self.header is None:
            return 0.0
        every = float(self.header.settings.get("checkpoint_every_s", math.inf))
        return math.fmod(time - lease.started, every)

    def _finished(self, time: Seconds, event: AppFinished) -> None:
        app = self.ledger.apps[event.app]
        app.finish, app.end = time, event
        self.levels.active -= 1
        if not self.levels.active:
            self.levels.mark()

    # ---- result -----------------------------------------------------------------------------------------------------

    def result(self) -> RunMetrics:
        """What the records so far come to; leases that are still held count up to the last record.

        Raises
        ------
        InputError : there was no header.
        """
        if self.header is None:
            raise InputError("these records have no Header, so it is unknown what was run; expected it first.")
        ledger = self.ledger
        if self.leases:
            ledger = deepcopy(self.ledger)
            for lease in self.leases.values():
                ledger.count(lease, self.levels.now)
        return _result(self.header, ledger, self.rounds, self.levels, (len(self.machine_gpus), len(self.seats_taken)))


def _result(h: Header, ledger: _Ledger, r: _Rounds, levels: _Levels, size: tuple[int, int]) -> RunMetrics:
    rows = tuple(app.row(i) for i, app in enumerate(ledger.apps))
    done = [row for row in rows if row.outcome == "completed"]
    jct, wait = [row.jct for row in done], [row.wait for row in rows if not math.isnan(row.wait)]
    makespan, used, service = levels.totals()
    in_use, in_service, starting, active = (steps.series() for steps in levels.series or [Steps(0.0)] * 4)
    return RunMetrics(
        policy=h.policy, params=dict(h.params), seed=h.seed, workload=h.workload, source=h.source, cluster=h.cluster,
        version=h.version, simulated=h.simulated, settings=dict(h.settings), machines=size[0], gpus=size[1], apps=rows,
        rho_paper=rho_stats(row.rho_paper for row in done), rho_exact=rho_stats(row.rho_exact for row in done),
        makespan=makespan, jct_mean=_mean(jct), jct_median=_quantile(jct, 0.5), jct_p99=_quantile(jct, 0.99),
        wait_mean=_mean(wait), wait_max=_quantile(wait, 1.0), gpu_seconds=used, utilisation=_ratio(used, service),
        useful=1.0 - _ratio(ledger.restart + ledger.crash, ledger.leased),
        placement=_ratio(ledger.placement, ledger.leased),
        restarts=sum(row.restarts for row in rows), restart_seconds=ledger.restart, crash_seconds=ledger.crash,
        failures=ledger.failures, decisions=r.decisions, auctions=r.auctions, bidders=_ratio(r.bidders, r.auctions),
        offered=_ratio(r.offered, r.auctions), payment=_ratio(r.paid, r.winners),
        leftover=_ratio(r.leftover, r.auctions), gap=r.gap if r.auctions else math.nan,
        gpus_in_use=in_use, gpus_in_service=in_service, gpus_starting=starting,
        active_apps=active, gantt=ledger.intervals.gantt(),
    )  # fmt: skip


def _ratio(a: float, b: float) -> float:
    """a / b, NaN where there is nothing to divide by."""
    return a / b if b else math.nan


def _mean(values: list[float]) -> float:
    return float(np.mean(values)) if values else math.nan


def _quantile(values: list[float], q: float) -> float:
    return float(np.quantile(values, q)) if values else math.nan
