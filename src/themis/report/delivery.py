"""GPU time that each app was entitled to, from the log alone, and reasons why it received more or less: decision 23.

Entitled, in GPU-seconds: under time shares gang x share x time; under round plans the planned rounds; under every other
policy the equal share of the GPUs in service by weight, between the unit of fairness in force, water-filled up to what
each app can use. A job that ended or waits for the others of its rung is entitled to nothing more. Received is the
useful part of the leases: trained, kept, and counted at the speed of the placement. The fold does not depend on the
policy, only on the kind of answer that it gave.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from themis.core.fairness_unit import groups_of, weights
from themis.core.intend import entitlement
from themis.model.answers import Answer
from themis.model.events import FairnessSet
from themis.model.units import Float, GpuSeconds, Int, Seconds
from themis.model.workload import App
from themis.report.accounts.held_leases import HeldLease


@dataclass(frozen=True, slots=True, kw_only=True)
class Missing:
    """Entitled less received of one app, GPU-seconds, by cause; causes add up to the whole, and are below 0 where it had more.

    Attributes
    ----------
    packing : slower placements; under shares and plans also what did not fit. ``restarts`` : from grants to the first step.
    rounding : under shares and plans what rounds cannot split, at most a round of each job.
    faults : work lost in crashes. ``declined`` : while its user held it. ``policy`` : what is left: the policy gave it to others,
        or, below 0, it had GPUs on top.
    """

    packing: GpuSeconds = 0.0
    restarts: GpuSeconds = 0.0
    rounding: GpuSeconds = 0.0
    faults: GpuSeconds = 0.0
    declined: GpuSeconds = 0.0
    policy: GpuSeconds = 0.0


@dataclass(slots=True)
class Used:
    """Use of an app's leases so far, GPU-seconds."""

    received: GpuSeconds = 0.0
    slower: GpuSeconds = 0.0
    restarts: GpuSeconds = 0.0
    faults: GpuSeconds = 0.0

    def add(self, lease: HeldLease, now: Seconds) -> None:
        """Add a finished lease, or an active one as if it ended now."""
        restart = lease.restart_s(now)
        trained = lease.held_s(now) - restart - lease.lost_s
        self.received += lease.gpus * trained * lease.score
        self.slower += lease.gpus * trained * (1.0 - lease.score)
        self.restarts += lease.gpus * restart
        self.faults += lease.gpus * lease.lost_s


@dataclass(slots=True)
class _Promise:
    """Shares or a plan in force: rows are jobs."""

    since: Seconds
    job: Int
    rate: Float
    """[J], GPUs on average while it is in force; of a plan the gang."""
    run: Float | None = None
    """[J, R], of a plan: 1 in rounds in which the job is to run."""
    ends: Float = field(default_factory=lambda: np.zeros(0))
    """[R], of a plan: when each round ends."""
    over: dict[int, Seconds] = field(default_factory=dict)
    """Jobs that take no more part, since when."""

    def running(self, now: Seconds, others: Int) -> Int:
        """Rows of a plan that are to run in the current round, without these other jobs; none at a round's start."""
        column = int(np.searchsorted(self.ends, now + 1e-6, side="right"))
        if self.run is None or column >= len(self.ends) or (column and now - self.ends[column - 1] <= 1e-6):
            return np.zeros(0, dtype=np.int64)
        gone = [*self.over, *others.tolist()]
        return np.flatnonzero((self.run[:, column] > 0) & ~np.isin(self.job, gone))

    def amounts(self, now: Seconds) -> Float:
        """[J], GPU-seconds of each job from the beginning until now."""
        until = np.full(len(self.job), now)
        if self.over:
            for row in np.flatnonzero(np.isin(self.job, list(self.over))).tolist():
                until[row] = min(now, self.over[int(self.job[row])])
        if self.run is None:
            return np.maximum(until - self.since, 0.0) * self.rate
        begins = np.maximum(np.concatenate([[self.since], self.ends[:-1]]), self.since)
        inside = np.clip(np.minimum(until[:, None], self.ends) - begins, 0.0, None)
        out: Float = (self.run * inside).sum(axis=1) * self.rate
        return out


class Delivery:
    """Fold of events in order of time; ``entitled`` may be read at any time.

    Parameters
    ----------
    equal : entitled is by the equal share, whatever answers promise.
    """

    def __init__(self, *, equal: bool = False) -> None:
        self.equal = equal
        self.app_of: list[int] = []
        self.apps = 0
        self.weight: Float = np.zeros(16)
        self.own: Float = np.zeros(16)
        """Weight of each app, without its user's and group's."""
        self.user: Int = np.zeros(16, dtype=np.int64)
        self.users: dict[str, int] = {}
        self.between, self.groups = "apps", dict[str, tuple[str, float]]()
        self.wants: Float = np.zeros(16)
        """GPUs that each app's unfinished jobs can use."""
        self.due: Float = np.zeros(16)
        self.declined: Float = np.zeros(16)
        self.most_rounding: Float = np.zeros(16)
        """A round of each of the app's jobs, under shares and plans."""
        self.active: dict[int, None] = {}
        self.held: set[int] = set()
        self.gpus = 0
        self.origin: Seconds = 0.0
        self.promise: _Promise | None = None
        self.since: Seconds = 0.0
        self.parts: tuple[Int, Float] | None = None
        """Active apps and the GPUs of each by the equal share, as long as nothing changes."""

    # ---- what happens -----------------------------------------------------------------------------------------------

    def fairness(self, time: Seconds, event: FairnessSet) -> None:
        """Equal shares are between other units from now on."""
        self._change(time)
        self.between, self.groups = event.between, groups_of(event)

    def submitted(self, time: Seconds, app: App, weight: float, gpus: int) -> None:
        """The next app arrived; its jobs can use these GPUs together. ``weight`` : with its user's and group's."""
        self._change(time)
        a = self.apps
        if not a:
            self.origin = time
        if a >= len(self.due):
            for name in ("weight", "own", "user", "wants", "due", "declined", "most_rounding"):
                column = getattr(self, name)
                setattr(self, name, np.concatenate([column, np.zeros_like(column)]))
        self.apps += 1
        self.app_of += [a] * len(app.jobs)
        self.weight[a], self.own[a], self.wants[a] = weight, app.weight, gpus
        self.user[a] = self.users.setdefault(app.user, len(self.users))
        self.active[a] = None

    def demand(self, time: Seconds, job: int, change: int) -> None:
        """The job's app can use more or fewer GPUs from now on."""
        if change:
            self._change(time)
            self.wants[self.app_of[job]] += change

    def service(self, time: Seconds, change: int) -> None:
        """GPUs came into service or left it."""
        self._change(time)
        self.gpus += change

    def reweighed(self, time: Seconds, app: int, weight: float) -> None:
        """The app has another weight from now on."""
        self._change(time)
        self.weight[app] = weight

    def withdrawn(self, time: Seconds) -> None:
        """Another policy decides from now on: what the last answer promised ends here."""
        self._change(time)
        self._close(time)
        self.promise, self.since, self.parts = None, time, None

    def paused(self, time: Seconds, job: int) -> None:
        """The job ended, or waits for the others of its rung: until the next answer it is entitled to nothing."""
        if self.promise is not None:
            self.promise.over.setdefault(job, time)

    def finished(self, time: Seconds, app: int) -> None:
        """The app has finished."""
        self._change(time)
        self.active.pop(app, None)
        self.held.discard(app)

    def hold(self, time: Seconds, app: int, held: bool) -> None:
        """The user holds the app, or releases it."""
        self._change(time)
        if self.promise is not None:
            self._close(time)  # what is promised while it is held, it declines
        (self.held.add if held else self.held.discard)(app)

    def allocated(self, time: Seconds, answer: Answer) -> None:
        """A decision is in force."""
        due = None if self.equal else entitlement(answer, time, self.origin)
        if due is None and self.promise is None:
            return
        self._change(time)
        self._close(time)
        if due is None:
            self.promise = None
            return
        self._rounds(due.job, due.round)
        job, rate, run = due.job, due.gpus, due.run
        if run is not None and self.promise is not None:
            rows = self.promise.running(time, job[run[:, 0] > 0])
            # Decided in mid-round: what runs by the plan before runs to the round's end.
            goes_on = np.zeros((len(rows), run.shape[1]))
            goes_on[:, 0] = 1.0
            job, rate = np.concatenate([job, self.promise.job[rows]]), np.concatenate([rate, self.promise.rate[rows]])
            run = np.concatenate([run, goes_on])
        self.promise = _Promise(since=time, job=job, rate=rate, run=run, ends=due.ends)

    # ---- totals -----------------------------------------------------------------------------------------------------

    def entitled(self, now: Seconds) -> tuple[Float, Float]:
        """([A], [A]): GPU-seconds that each app was entitled to by now, and how many of them it declined."""
        due, declined = self.due.copy(), self.declined.copy()
        if self.promise is not None:
            self._credit(due, declined, self.promise, now)
        elif now > self.since:
            apps, gpus = self._equal_parts()
            due[apps] += gpus * (now - self.since)
        return due[: self.apps], declined[: self.apps]

    def missing(self, app: int, entitled: GpuSeconds, declined: GpuSeconds, used: Used) -> Missing:
        """Why an app received more or less than it was entitled to."""
        rest = entitled - used.received - used.slower - used.restarts - used.faults - declined
        most = float(self.most_rounding[app])
        rounding = min(max(rest, -most), most)
        rest -= rounding
        unpacked = max(rest, 0.0) if most else 0.0
        return Missing(
            packing=used.slower + unpacked,
            restarts=used.restarts,
            rounding=rounding,
            faults=used.faults,
            declined=declined,
            policy=rest - unpacked,
        )

    # ---- inside -----------------------------------------------------------------------------------------------------

    def _change(self, time: Seconds) -> None:
        """Add up the equal shares until now; they are computed again when they are next needed."""
        if self.promise is None and time > self.since:
            apps, gpus = self._equal_parts()
            self.due[apps] += gpus * (time - self.since)
        self.since, self.parts = time, None

    def _equal_parts(self) -> tuple[Int, Float]:
        if self.parts is None:
            apps = np.fromiter(self.active, dtype=np.int64, count=len(self.active))
            if self.held:
                apps = apps[~np.isin(apps, list(self.held))]
            given, own, user = self.weight[apps], self.own[apps], self.user[apps]
            weight = weights(self.between, given, own, user, tuple(self.users), self.groups)
            self.parts = apps, equal_parts(weight, self.wants[apps], float(self.gpus))
        return self.parts

    def _close(self, time: Seconds) -> None:
        """Credit what is in force up to ``time`` and continue from there."""
        if self.promise is not None:
            self._credit(self.due, self.declined, self.promise, time)
            self.promise.since = max(self.promise.since, time)

    def _credit(self, due: Float, declined: Float, promise: _Promise, now: Seconds) -> None:
        apps = np.array([self.app_of[j] for j in promise.job.tolist()], dtype=np.int64)
        amount = np.bincount(apps, weights=promise.amounts(now), minlength=len(due))[: len(due)]
        due += amount
        for app in self.held:
            declined[app] += amount[app]

    def _rounds(self, job: Int, most: Float) -> None:
        """``most`` : [J], GPU-seconds of a round of each job."""
        apps = np.array([self.app_of[j] for j in job.tolist()], dtype=np.int64)
        found = np.bincount(apps, weights=most, minlength=len(self.due))[: len(self.due)]
        self.most_rounding = np.maximum(self.most_rounding, found)


def equal_parts(weight: Float, wants: Float, gpus: float) -> Float:
    """[A], the weighted equal share of the GPUs, water-filled: what one cannot use goes to the others by their weights.

    Parameters
    ----------
    weight : [A], > 0. ``wants`` : [A], GPUs that each can use, >= 0. ``gpus`` : in service.
    """
    if not len(weight) or wants.sum() <= gpus:
        return wants.copy()
    order = np.argsort(wants / weight, kind="stable")
    # Were all up to and including i filled, the others would share the rest by weight: the first i that it does not suffice for.
    filled = np.concatenate([[0.0], np.cumsum(wants[order])[:-1]])
    others = np.cumsum(weight[order][::-1])[::-1]
    level = (gpus - filled) / others
    first = int(np.argmax(wants[order] / weight[order] >= level))
    out: Float = np.minimum(wants, weight * level[first])
    return out


def ratios(entitled: Sequence[GpuSeconds], received: Sequence[GpuSeconds]) -> Float:
    """Received over entitled, of those entitled to anything."""
    due, got = np.array(entitled, dtype=np.float64), np.array(received, dtype=np.float64)
    out: Float = got[due > 0] / due[due > 0]
    return out
