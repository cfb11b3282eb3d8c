"""Ledger that ``metrics.Fold`` fills while it reads a log: apps and jobs, finished leases, decisions, levels.

It knows only the records that it stores; ``metrics`` says which record means what.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field

import numpy as np

from themis.model.answers import Proof
from themis.model.events import AppFinished
from themis.model.units import GpuSeconds, Locality, Seconds
from themis.model.workload import App, brackets_of
from themis.report.accounts.held_leases import HeldLease
from themis.report.delivery import Missing, Used
from themis.report.rows import AppRow, JobTable
from themis.report.series import Intervals, Steps


@dataclass(slots=True)
class Bracket:
    """Jobs that wait for each other at a rung: a bracket of a sweep, or all jobs of another app.

    ``alive`` : those that have not ended. ``paused`` : those of them that wait for the rest of their rung.
    """

    alive: set[int] = field(default_factory=set)
    paused: set[int] = field(default_factory=set)


@dataclass(slots=True)
class JobEntry:
    """One job so far."""

    app: int
    bracket: Bracket
    name: str
    model: str
    gpus_min: int
    gpus_max: int
    first_grant: Seconds = math.nan
    finish: Seconds = math.nan
    gpu_seconds: GpuSeconds = 0.0
    lost: GpuSeconds = 0.0
    restarts: int = 0
    outcome: str = "active"
    before: tuple[float, GpuSeconds] = (0.0, 0.0)
    """Integrals of jobs in the system and of GPUs in service when it came."""
    jct: Seconds = math.nan
    isolated_s: Seconds = math.nan
    contention: float = math.nan


@dataclass(slots=True)
class AppEntry:
    """One app so far."""

    name: str
    user: str
    jobs: int
    weight: float
    arrival: Seconds
    brackets: list[Bracket]
    first_grant: Seconds = math.nan
    gpu_seconds: GpuSeconds = 0.0
    lost: GpuSeconds = 0.0
    placement: GpuSeconds = 0.0
    restarts: int = 0
    finish: Seconds = math.nan
    end: AppFinished | None = None
    used: Used = field(default_factory=Used)

    def row(
        self,
        number: int,
        entitled: GpuSeconds,
        missing: Missing,
        reference: Seconds = math.nan,
        alone: Seconds = math.nan,
        held: Seconds = 0.0,
    ) -> AppRow:
        """The app's row of the report; ``reference``, ``alone``, ``held`` : as ``Isolated`` has them."""
        end, nan = self.end, math.nan
        life = end.jct - held if end else nan
        return AppRow(
            app=number,
            name=self.name,
            user=self.user,
            jobs=self.jobs,
            weight=self.weight,
            arrival=self.arrival,
            finish=self.finish,
            jct=end.jct if end else nan,
            wait=self.first_grant - self.arrival,
            sooner_s=reference - life,
            rho_reference=life / reference if reference else nan,
            rho_attainable=life / max(reference, alone) if reference else nan,
            t_reference=reference,
            t_alone=alone,
            rho_paper=end.rho_paper if end else nan,
            rho_exact=end.rho_exact if end else nan,
            t_id_paper=end.t_id_paper if end else nan,
            t_id_exact=end.t_id_exact if end else nan,
            contention=end.contention if end else nan,
            gpu_seconds=self.gpu_seconds,
            lost_seconds=self.lost,
            restarts=self.restarts,
            placement=self.placement / self.gpu_seconds if self.gpu_seconds else nan,
            outcome=end.outcome if end else "active",
            entitled=entitled,
            received=self.used.received,
            missing=missing,
        )


@dataclass(slots=True)
class Ledger:
    """Apps, jobs, and totals over finished leases, in GPU-seconds."""

    apps: list[AppEntry] = field(default_factory=list)
    jobs: list[JobEntry] = field(default_factory=list)
    leased: float = 0.0
    restart: float = 0.0
    crash: float = 0.0
    failures: int = 0
    placements: dict[float, GpuSeconds] = field(default_factory=dict)
    localities: list[GpuSeconds] = field(default_factory=lambda: [0.0] * len(Locality))
    intervals: Intervals = field(default_factory=Intervals)

    def add(self, app: App, weight: float, time: Seconds, before: tuple[float, GpuSeconds]) -> None:
        """An app arrived; ``before`` : integrals of jobs in the system and of GPUs in service so far."""
        number, first = len(self.apps), len(self.jobs)
        # Brackets have the app's jobs in order, each as many as its first rung.
        sizes = [bracket.rungs[0].jobs for bracket in brackets_of(app.tuner)] or [len(app.jobs)]
        brackets = [Bracket() for _ in sizes]
        member = [bracket for bracket, size in zip(brackets, sizes) for _ in range(size)]
        for j, (job, bracket) in enumerate(zip(app.jobs, member, strict=True), start=first):
            bracket.alive.add(j)
            entry = JobEntry(number, bracket, job.name, job.model, gpus_min=job.gpus_min, gpus_max=job.gpus_max)
            entry.before = before
            self.jobs.append(entry)
        self.apps.append(AppEntry(app.name, app.user, len(app.jobs), weight, time, brackets))

    def count(self, lease: HeldLease, now: Seconds) -> None:
        """Add a finished lease, or an active one as if it ended now."""
        app, job = self.apps[lease.app], self.jobs[lease.job]
        n, held, restart = lease.gpus, lease.held_s(now), lease.restart_s(now)
        self.leased += n * held
        self.restart += n * restart
        self.crash += n * lease.lost_s
        # Scores are one over a model's slowdown at a locality: few distinct ones, unless rounding adds more.
        score = round(lease.score, 6)
        self.placements[score] = self.placements.get(score, 0.0) + n * held
        self.localities[lease.locality] += n * held
        for entry in (app, job):
            entry.gpu_seconds += n * held
            entry.lost += n * (restart + lease.lost_s)
        app.placement += n * held * lease.score
        app.used.add(lease, now)
        self.intervals.add(lease.gpu_ids, lease.app, lease.job, lease.since, lease.end(now))

    @property
    def placement(self) -> GpuSeconds:
        """Leased GPU-seconds, each times its placement score."""
        return sum(app.placement for app in self.apps)

    def complete(self, job: int, time: Seconds, isolated_s: Seconds, jobs: float, service: GpuSeconds) -> None:
        """A job did all its work; ``jobs`` and ``service`` are the integrals by now."""
        entry = self.jobs[job]
        entry.jct, entry.isolated_s = time - self.apps[entry.app].arrival, isolated_s or math.nan
        met, gpus = jobs - entry.before[0], service - entry.before[1]
        entry.contention = max(met / gpus, 1.0) if gpus > 0 else math.nan

    def job_table(self, gpus: int) -> JobTable:
        """All jobs as columns; ``gpus`` is how many the cluster has."""
        jobs = self.jobs
        isolated = np.array([j.isolated_s for j in jobs], dtype=np.float64)
        slowed = np.array([j.jct for j in jobs], dtype=np.float64) / isolated
        return JobTable(
            app=np.array([j.app for j in jobs], dtype=np.int64),
            name=tuple(j.name for j in jobs),
            model=tuple(j.model for j in jobs),
            gpus_min=np.array([j.gpus_min for j in jobs], dtype=np.int64),
            gpus_max=np.array([j.gpus_max for j in jobs], dtype=np.int64),
            first_grant=np.array([j.first_grant for j in jobs], dtype=np.float64),
            finish=np.array([j.finish for j in jobs], dtype=np.float64),
            gpu_seconds=np.array([j.gpu_seconds for j in jobs], dtype=np.float64),
            lost_seconds=np.array([j.lost for j in jobs], dtype=np.float64),
            restarts=np.array([j.restarts for j in jobs], dtype=np.int64),
            outcome=tuple(j.outcome for j in jobs),
            isolated_s=isolated,
            rho_static=slowed / max(1.0, len(jobs) / max(gpus, 1)),
            rho_contention=slowed / np.array([j.contention for j in jobs], dtype=np.float64),
        )

    # ---- demand: what unfinished jobs could use ---------------------------------------------------------------------

    def reach(self, job: int) -> int:
        """A job reached its target and waits for the others of its rung; returns the change of demand in GPUs."""
        bracket = self.jobs[job].bracket
        if job not in bracket.alive or job in bracket.paused:
            return 0
        bracket.paused.add(job)
        return self._next_rung(bracket) - self.jobs[job].gpus_max

    def resume(self, job: int) -> int:
        """A waiting job resumes before the others arrive; returns the change of demand."""
        bracket = self.jobs[job].bracket
        if job not in bracket.paused:
            return 0
        bracket.paused.remove(job)
        return self.jobs[job].gpus_max

    def end(self, job: int) -> int:
        """A job will not run again; returns the change of demand."""
        bracket = self.jobs[job].bracket
        if job not in bracket.alive:
            return 0
        bracket.alive.remove(job)
        change = 0 if job in bracket.paused else -self.jobs[job].gpus_max
        bracket.paused.discard(job)
        return change + self._next_rung(bracket)

    def _next_rung(self, bracket: Bracket) -> int:
        """End the rung if all remaining jobs wait; jobs that the tuner ends are logged at the same instant."""
        if bracket.paused != bracket.alive:
            return 0
        wanted = sum(self.jobs[j].gpus_max for j in bracket.paused)
        bracket.paused.clear()
        return wanted


@dataclass(slots=True)
class DecisionTotals:
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
        """A decision was made."""
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


@dataclass(frozen=True, slots=True, kw_only=True)
class Totals:
    """Integrals since the first arrival, and the highest contention."""

    makespan: Seconds = 0.0
    used: GpuSeconds = 0.0
    service: GpuSeconds = 0.0
    wanted: GpuSeconds = 0.0
    active: float = 0.0
    highest: float = 0.0
    most_apps: int = 0


@dataclass(slots=True)
class Levels:
    """Step functions of time: current values, series since the first arrival, and integrals."""

    now: Seconds = 0.0
    in_use: int = 0
    in_service: int = 0
    starting: int = 0
    wanted: int = 0
    active: int = 0
    jobs: int = 0
    """Jobs in the system, those included that wait for the others of their rung."""
    job_seconds: float = 0.0
    series: tuple[Steps, ...] = ()
    sums: list[float] = field(default_factory=lambda: [0.0] * 5)
    highest: float = 0.0
    most_apps: int = 0
    marked: Totals = Totals()

    def advance(self, time: Seconds) -> None:
        """The levels held until now."""
        passed = time - self.now
        if passed <= 0:
            return
        self.now = time
        if not self.series:
            return
        self.job_seconds += self.jobs * passed
        levels = (self.in_use, self.in_service, self.starting, self.wanted, self.active)
        for i, (steps, level) in enumerate(zip(self.series, levels)):
            steps.add(time, level)
            self.sums[i] += level * passed
        if self.in_service and self.wanted > self.highest * self.in_service:
            self.highest = self.wanted / self.in_service
        self.most_apps = max(self.most_apps, self.active)

    @property
    def met(self) -> tuple[float, GpuSeconds]:
        """Integrals of jobs in the system and of GPUs in service so far."""
        return self.job_seconds, self.sums[1]

    def begin(self) -> None:
        """The first app arrived: from here on time counts."""
        if not self.series:
            self.series = tuple(Steps(self.now) for _ in range(5))

    def mark(self) -> None:
        """The last active app finished: what comes after counts only if another one arrives."""
        self.marked = self._until_now()

    def totals(self) -> Totals:
        """Totals over the time in which there were active apps."""
        return self._until_now() if self.active else self.marked

    def _until_now(self) -> Totals:
        used, service, _, wanted, active = self.sums
        return Totals(
            makespan=self.now - self.series[0].start,
            used=used,
            service=service,
            wanted=wanted,
            active=active,
            highest=self.highest,
            most_apps=self.most_apps,
        )
