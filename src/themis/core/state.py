"""The only mutable truth: tables of machines, GPUs, apps and jobs, who has which lease, and sums over time.

Nothing here decides anything, and nothing here knows the rules of fairness, sweeps or forecasts: they are functions over these
tables, in modules that import this one (``unit``, ``reference``, ``phases``, ``regimes``, ``lifecycle``). ``Scheduler`` calls
them in reaction to events; ``core.take_snapshot`` reads the tables out. Progress between events is extrapolated at the speed
model's rate and replaced by what executors report.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from copy import copy
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple, Self

import numpy as np

from themis.core.curve_stopping import Curves
from themis.core.job_lifecycle import GRANT, JobChange, move
from themis.core.learning import Measured
from themis.core.machines import Machines
from themis.core.rounds import Rounds
from themis.core.tables import ENDED, Apps, Growing, Jobs, LeaseEnds, Unended, derived, kept
from themis.fairness.forecasts.history import History
from themis.fairness.forecasts.rules import FORECASTER, Forecaster
from themis.model.answers import RoundPlan
from themis.model.cluster import Machine
from themis.model.events import SpeedMeasured
from themis.model.goodput import Goodput, StepTimes
from themis.model.settings import Settings
from themis.model.speed import Profile, ProfileBook, Speeds, compile_speeds, relearned
from themis.model.units import NONE, Bool, Float, Int, Seconds, round_end
from themis.model.workload import App, Job, Regime
from themis.policies.api import Cadence

EPS = 1e-6
"""Seconds below which two instants are one."""

OVERRUN = 0.1
"""Share of its estimated work that is assumed to be left of a job that did all of it and still runs: with no work left
no policy would give it a GPU again. Simulated jobs end with their work; estimates of live ones may be too low."""


_NEVER = math.inf


def _nothing() -> float:
    return 0.0


def _phases() -> Float:
    return np.zeros((3, 64, 1))


@dataclass(eq=False, repr=False)
class State(Machines):
    """Everything the scheduler knows at ``now``. A field is saved in checkpoints under its name unless it is ``derived``."""

    book: ProfileBook = field(metadata={"saved": False})
    settings: Settings = field(metadata={"saved": False})
    forecaster: Forecaster = field(default=FORECASTER, metadata={"saved": False})
    now: Seconds = kept(_nothing)
    version: int = kept(int)
    round: int = kept(int)
    origin: Seconds = kept(_nothing)
    """Arrival time of the first app: rounds begin then, and at multiples of their length from then on."""

    # apps and jobs
    apps: Apps = derived(Apps)
    jobs: Jobs = derived(Jobs)
    app_specs: list[App] = derived(list)
    job_specs: list[Job] = derived(list)
    regimes: list[tuple[Regime, ...]] = derived(list)
    """Known regimes of each job; the ongoing regime of a job whose program decides is assumed to last for ever."""
    history: History = kept(dict)
    """Counts of batch size changes of finished dynamic jobs (``fairness.forecasts.history``)."""
    curves: Curves = derived(Curves)
    phase: Float = kept(_phases)
    """[3, apps, P], see ``core.phases`` ; ``future`` : of the phases after the current one."""
    future: Float = kept(_phases)
    need: Float = kept(lambda: np.zeros((2, 64, 1)))
    """[2, apps, P], work of each phase and seconds of its longest job, on the best places there are: see ``core.needs``."""
    phase_bracket: Int = kept(lambda: np.zeros((64, 1), dtype=np.int64))
    failed: set[int] = kept(set)
    """Apps with at least one failed job."""
    quarantined_apps: set[int] = kept(set)
    quarantined_machines: set[int] = kept(set)
    delayed: set[int] = kept(set)
    """Jobs that wait after a failure."""
    one_machine: set[int] = kept(set)
    """Jobs of active apps whose gangs must lie on one machine, and have more than one GPU."""
    restricted: bool = kept(bool)
    """True if any job ever named the GPU types that it may use."""
    changing: bool = kept(bool)
    """True if any job ever could change its batch size."""
    finished_service: Float = kept(lambda: np.zeros(0))
    """GPU-seconds that apps no longer in the system received; replaced, never changed in place."""
    retired_below: int = kept(int)
    """All apps before this one are retired (``core.retire``)."""

    # leases
    job_gpus: dict[int, tuple[int, ...]] = kept(dict)
    job_seat: dict[int, int] = kept(dict)
    occupied: dict[int, tuple[tuple[int, ...], int]] = kept(dict)
    """GPUs that each job's processes physically occupy, until their end is known."""

    # users, the unit of fairness (``core.fairness_unit``) and limits (``core.quota_limits``)
    users: dict[str, int] = kept(dict)
    between: str = kept(lambda: "apps")
    """The unit of fairness; ``groups`` : the group of each user who has one, and its weight."""
    groups: dict[str, tuple[str, float]] = kept(dict)
    accounts: dict[int, tuple[float, float, float, float]] = kept(dict)
    """Between users or groups: of each user since when it has had apps, the integrals of weight and capacity then, and the
    GPU-seconds of its apps that ended since."""
    quotas: dict[str, tuple[tuple[str, ...], int]] = kept(dict)
    """Users that share the quota, and the maximum number of concurrent GPUs, by name."""
    starts: dict[int, tuple[float, ...]] = kept(dict)
    """What is known of the starts of jobs that were granted GPUs and have not ended (``core.least_lease.Start``)."""
    at_once: dict[int, int] = kept(dict)
    """Maximum number of concurrent jobs of the active apps that have such a limit."""
    on_machine: dict[int, int] = kept(dict)
    """The machine of each active app that runs on no other."""

    # what a user changed since the log began (``core.changes``)
    changed: dict[str, tuple[Any, Seconds, str]] = kept(dict)
    """Settings by name: what each is, since when, and who changed it."""
    core_settings: dict[str, Any] = kept(dict)
    """Those of ``settings`` that are not as the log began, by name."""
    policy: tuple[str, dict[str, Any]] | None = kept(lambda: None)
    """The policy and its parameters, if it is not the one that the log began with."""

    # sums and integrals over time, behind N_avg and R_C
    weight_in_system: float = kept(_nothing)
    capacity: float = kept(_nothing)
    weight_integral: float = kept(_nothing)
    capacity_integral: float = kept(_nothing)
    jobs_in_system: int = derived(int)
    jobs_integral: float = kept(_nothing)

    # the reference (``core.reference``)
    keeps_reference: bool = kept(bool)
    reference_at: Seconds = kept(_nothing)
    """Up to when it ran."""
    horizon: Seconds = kept(_nothing)
    """Time by which all work in the reference at the last arrival is done, plus ``fluid.LEEWAY``."""

    # rounds (``core.rounds``)
    received: Float = kept(lambda: np.zeros((64, 1)))
    """[jobs, K], seconds on each type."""
    rounds: Rounds = derived(Rounds)
    plan: RoundPlan | None = kept(lambda: None)
    plan_start: Seconds = kept(_nothing)
    plan_dropped: bool = kept(bool)
    """True if something ended plans since the policy was last asked."""

    # speeds
    speeds: Speeds = field(init=False, metadata={"saved": False})
    measured: Measured = derived(Measured)
    reprofiled: set[str] = kept(set)
    """Models whose profile differs from the one at the beginning of the log."""
    goodput: dict[int, tuple[float, tuple[tuple[str, tuple[float, ...]], ...], int]] = kept(dict)
    """What adaptive jobs of active apps reported last: noise, parameters of ``StepTimes`` by GPU type, most GPUs so far."""
    config_speed: Float = kept(lambda: np.zeros(0))
    """[rows of ``speeds``], mean over GPUs in service."""
    barring: bool = kept(bool)
    """True if some model that jobs train does not run on some GPU type, or not with every gang."""

    def __post_init__(self) -> None:
        super().__post_init__()
        self.speeds = compile_speeds(self.book, [], (), 1)
        self._worth: dict[tuple[int, int, int, int], tuple[float, float]] = {}
        """``worth`` of gangs that there were, by ``_worth_by``'s speeds; a cache."""
        self._apps_left, self._service = Unended(), Growing(np.zeros(0))
        self._ends: LeaseEnds | None = None
        self._worth_by = self.speeds
        self._lent = True
        """Others may hold the table of speeds: it is copied before a row of it changes."""
        self._best_gangs: dict[Any, Any] = {}
        """``needs.best_gang`` by kind of job; a cache."""

    def drop_caches(self) -> None:
        """Forget what follows from the tables and was looked up before."""
        self._worth, self._best_gangs = {}, {}
        self._apps_left = Unended()
        self.jobs.forget()
        self._open = self._taken = self._ends = None

    @property
    def best_gangs(self) -> dict[Any, Any]:
        """Cache of ``needs.best_gang``; empty after machines or speeds changed."""
        return self._best_gangs

    # ---- time -------------------------------------------------------------------------------------------------------

    def advance(self, now: Seconds) -> None:
        """Move the clock; the integrals of contention and capacity grow by the time that passed."""
        passed = now - self.now
        if passed > 0:
            self.weight_integral += self.weight_in_system * passed
            self.capacity_integral += self.capacity * passed
            self.jobs_integral += self.jobs_in_system * passed
            self.now = now

    def at(self, now: Seconds) -> Self:
        """The same state as of a later instant, to look at: what is kept up with time moves on, this state itself does not."""
        self._lent = True
        out = copy(self)
        out.advance(now)
        return out

    # ---- machines and speeds ----------------------------------------------------------------------------------------

    def add_machine(self, machine: Machine) -> None:
        """Append a machine; its GPUs get the next ids."""
        self.add_type(machine.gpu_type)
        self._append_machine(machine)
        self._in_service(self.gpu_types.index(machine.gpu_type), machine.gpus)

    def add_type(self, gpu_type: str) -> None:
        """Know a GPU type, of which no machine need be there yet."""
        if gpu_type not in self.gpu_types:
            self.gpu_types.append(gpu_type)
            self.type_gpus = np.append(self.type_gpus, 0.0)
            self.machines_of.append([])
            self._widen_types()

    def set_machine_up(self, machine: int, up: bool) -> None:
        """A machine left or rejoined service."""
        change = int(up) - int(self.machine_up[machine])
        self.machine_up[machine] = up
        self._open = None
        if up:
            self.away.discard(machine)
        self._in_service(int(self.machine_type[machine]), change * int(self.machine_size[machine]))

    def resize_machine(self, machine: int, gpus: int) -> None:
        """Set a machine's number of GPUs; GPUs that are removed must not be leased.

        With 0 it is removed, and out of service; with more again it is back, in service.
        """
        gpu_type, before = int(self.machine_type[machine]), int(self.machine_size[machine])
        if not gpus:
            self.set_machine_up(machine, False)
            self.drain(machine, None)
            self.withhold(machine, (), (), "")
        self._set_size(machine, gpus)
        if not before and gpus:
            self.machine_up[machine] = False
            self.set_machine_up(machine, True)
        elif gpus and self.machine_up[machine]:
            self._in_service(gpu_type, gpus - before)

    def restore_machines(self, machines: Sequence[Machine], gpu_machine: Int) -> None:
        """Machines as they were saved: their present GPUs, and of which machine each GPU is or was."""
        begin = np.flatnonzero(np.diff(gpu_machine, prepend=NONE))
        for n, gpus in zip(gpu_machine[begin].tolist(), np.diff(begin, append=len(gpu_machine)).tolist()):
            if n == len(self.machines):
                self.add_machine(replace(machines[n], gpus=gpus, gpus_per_slot=min(machines[n].gpus_per_slot, gpus)))
            else:
                self._append_gpus(n, gpus)
        for n, machine in enumerate(machines):
            self._set_size(n, machine.gpus)
            self.machines[n] = machine

    def _in_service(self, gpu_type: int, gpus: int) -> None:
        """Add to the number of GPUs of a type in service; a negative number removes."""
        self.type_gpus[gpu_type] += gpus
        self._best_gangs = {}
        self._capacity_changed()

    def _capacity_changed(self) -> None:
        self.capacity = float(self.type_gpus.sum())
        if len(self.speeds.serial):
            self.barring = bool((self.speeds.scale[:, :, 1:] <= 0).any())
            self.config_speed = self.speeds.scale[:, :, 1] @ self.type_gpus / max(self.capacity, 1.0)

    def _widen_types(self) -> None:
        add = len(self.gpu_types) - self.received.shape[1]
        if add > 0:
            self.received = np.concatenate([self.received, np.zeros((len(self.received), add))], axis=1)
        self._best_gangs = {}
        self._compile(list(self.speeds.index), self.speeds.scale.shape[2] - 1)

    def learn(self, configs: Iterable[tuple[str, int]], gpus: int = 0) -> None:
        """Tabulate speeds of these (model, batch size) on up to this number of GPUs."""
        largest = max(self.speeds.scale.shape[2] - 1, gpus)
        fresh = sorted(set(configs) - self.speeds.index.keys())
        if fresh or largest >= self.speeds.scale.shape[2]:
            self._compile([*self.speeds.index, *fresh], largest)

    def _compile(self, configs: list[tuple[str, int]], largest: int) -> None:
        units = dict(zip(self.speeds.index, self.speeds.serial.tolist()))
        self.speeds, self._lent = compile_speeds(self.book, configs, tuple(self.gpu_types), largest, units), False
        self._capacity_changed()
        for j in self.goodput:
            self.fill_goodput(j)

    def learn_speed(self, measured: SpeedMeasured) -> None:
        """A model's speed was measured. The unit of its work stays: what a reference GPU was first believed to do."""
        if measured.model not in self.book.profiles or not (measured.steps_per_s > 0 or measured.partner):
            return
        self.measured.take(measured)
        self.book = self.book.with_profiles([self.measured.corrected(self.book.get(measured.model))])
        self.speeds = relearned(self.speeds, self.book, measured.model, tuple(self.gpu_types))
        self._best_gangs = {}
        self._capacity_changed()

    def set_profiles(self, profiles: Sequence[Profile]) -> None:
        """Replace models' estimated speeds, except measured ones. The unit of their work does not change."""
        self.reprofiled |= {profile.name for profile in profiles}
        measured = {key[0] for key in self.measured.rates}
        self.book = self.book.with_profiles(
            self.measured.corrected(profile) if profile.name in measured else profile for profile in profiles
        )
        self._compile(list(self.speeds.index), self.speeds.scale.shape[2] - 1)
        self._best_gangs = {}

    def lend_speeds(self) -> Speeds:
        """The table of speeds for somebody who keeps it."""
        self._lent = True
        return self.speeds

    def fill_goodput(self, j: int) -> None:
        """Write the row of an adaptive job by what it reported; the unit of its work stays."""
        (noise, times, _), job, speeds = self.goodput[j], self.job_specs[j], self.speeds
        assert job.adaptive is not None
        if self._lent:
            speeds = replace(speeds, scale=speeds.scale.copy(), slowdown=speeds.slowdown.copy())
            self._lent = False
        row = speeds.index[job.model, 0]
        known = tuple((kind, StepTimes.of(values)) for kind, values in times)
        goodput = Goodput(batches=job.adaptive, times=(*known, ("*", known[-1][1])))
        most, machine = min(job.gpus_max, speeds.scale.shape[2] - 1), job.adaptive.machine
        slower = max(goodput.spread(kind, noise) for kind, _ in known)
        for k, kind in enumerate(self.gpu_types):
            rate = goodput.best(kind, noise, most).rate * speeds.serial[row] * job.step_scale
            # Rows are at the best locality: a gang of several machines is slower by the slowdown there.
            rate[machine + 1 :] *= slower
            speeds.scale[row, k, : most + 1], speeds.scale[row, k, most + 1 :] = rate, rate[-1]
        speeds.slowdown[row] = 1.0, 1.0, slower, slower
        # Another object: what was looked up in the old table is not looked up in this one.
        self.speeds = replace(speeds)
        self._best_gangs.pop(row, None)
        if (of_jobs := self._best_gangs.get("rows")) is not None:
            of_jobs[0, of_jobs[0] == row] = NONE
        self.barring = self.barring or bool((speeds.scale[row, :, 1:] <= 0).any())
        self.config_speed[row] = speeds.scale[row, :, 1] @ self.type_gpus / max(self.capacity, 1.0)

    def worth(self, config: int, gpu_type: int, gpus: int, locality: int) -> tuple[float, float]:
        """(reference GPUs that a gang is worth, slowdown of its locality), looked up once for each kind of gang."""
        if self._worth_by is not self.speeds:
            self._worth, self._worth_by = {}, self.speeds
        key = config, gpu_type, gpus, locality
        if (found := self._worth.get(key)) is None:
            eff = float(self.speeds.scale[config, gpu_type, gpus] / self.speeds.slowdown[config, locality])
            found = self._worth[key] = eff, float(self.speeds.slowdown[config, locality])
        return found

    def allowed(self, rows: Int) -> Bool:
        """[J, K]: the model runs on the type with every gang that the job may have, and the job did not rule it out."""
        if not self.barring:
            allowed = np.ones((len(rows), len(self.gpu_types)), dtype=bool)
        else:
            config, scale = self.jobs.config[rows], self.speeds.scale
            allowed = scale[config, :, self.jobs.gpus_min[rows]] > 0
            allowed &= scale[config, :, self.jobs.gpus_max[rows]] > 0
        if self.restricted or (self.changing and self.barring):
            for row, j in enumerate(rows.tolist()):
                job = self.job_specs[j]
                if job.gpu_types:
                    allowed[row] &= np.isin(self.gpu_types, job.gpu_types)
                if self.barring and job.dynamic is not None:
                    allowed[row] = self._fits_later(job, allowed[row])
        return allowed

    def _fits_later(self, job: Job, allowed: Bool) -> Bool:
        """[K], the subset of these types that also runs every other batch size of the job, if there is one."""
        rows = [self.speeds.index[config] for config in job.configs]
        both: Bool = allowed & (self.speeds.scale[rows, :, job.gpus_max] > 0).all(axis=0)
        return both if both.any() else allowed

    def may_use(self, j: int, gpu_type: int) -> bool:
        """``allowed`` of one job and type."""
        if self.barring:
            return bool(self.allowed(np.array([j]))[0, gpu_type])
        names = self.job_specs[j].gpu_types
        return not names or self.gpu_types[gpu_type] in names

    # ---- apps -------------------------------------------------------------------------------------------------------

    def app_jobs(self, a: int) -> Int:
        """Ids of all jobs of an app."""
        first = int(self.apps.first_job[a])
        return np.arange(first, first + int(self.apps.jobs[a]))

    def count_jobs(self) -> int:
        """Recount the jobs in the system: unfinished ones of apps that no user holds."""
        t = self.jobs
        return int(((t.status[: t.size] != ENDED) & (self.apps.held[t.app[: t.size]] == 0)).sum())

    def averages(self, rows: Int | slice) -> tuple[Float, Float]:
        """(N_avg, R_C) of these apps from their arrival to now; at elapsed 0 the values of this instant."""
        names = ("arrival", "away", "contention_0", "capacity_0", "weight")
        return self.means.of({name: getattr(self.apps, name)[rows] for name in names})

    @property
    def means(self) -> Means:
        """``averages`` of apps whose columns were already read, at any later time."""
        return Means(self.now, self.weight_integral, self.capacity_integral, self.weight_in_system, self.capacity)

    def apps_attained(self) -> Float:
        """GPU-seconds that each app has had until now, [all apps ever]."""
        t, all_ = self.apps, slice(self.apps.size)
        return t.attained[all_] + t.leased[all_] * np.maximum(self.now - t.since[all_], 0.0)

    def private_service(self) -> Float:
        """GPU-seconds that each app would have by now on its own R_C / N_avg GPUs, up to its demand, [all apps ever].

        Covers the time in which the app is active; meaningless for finished apps.
        """
        t, all_ = self.apps, slice(self.apps.size)
        held = t.held[all_] == 1
        elapsed = np.where(held, t.held_at[all_], self.now) - t.arrival[all_] - t.away[all_]
        weight = np.where(held, 0.0, self.weight_integral) + np.where(held, 1, -1) * t.contention_0[all_]
        capacity = np.where(held, 0.0, self.capacity_integral) + np.where(held, 1, -1) * t.capacity_0[all_]
        part = np.minimum(capacity * t.weight[all_] / np.maximum(weight, 1e-9), t.demand[all_])
        return np.where(weight > 0, part * np.maximum(elapsed, 0.0), 0.0)

    def job_contention(self, rows: Int) -> Float:
        """Mean over each job's life of (jobs in the system / GPUs in service), at least 1; at elapsed 0 of this instant."""
        a = self.jobs.app[rows]
        jobs, gpus = self.jobs_integral - self.apps.jobs_0[a], self.capacity_integral - self.apps.capacity_0[a]
        mean = np.where(gpus > 0, jobs / np.maximum(gpus, 1e-9), self.jobs_in_system / max(self.capacity, 1.0))
        return np.maximum(mean, 1.0)

    def step_s(self, pace: Cadence) -> Seconds:
        """Seconds on whose multiples leases end together, under a policy of this cadence that grants GPUs; 0: each by itself.

        Decision 138.
        """
        if pace.apart:
            return 0.0
        ticks = pace.ticks and np.count_nonzero(self.type_gpus) <= 1
        return self.settings.step_s or pace.round_s or (self.settings.tick_s if ticks else self.settings.lease_s)

    # ---- jobs -------------------------------------------------------------------------------------------------------

    def present(self) -> Int:
        """Jobs that wait or run, rising; not to be written to."""
        return self.jobs.present()

    def in_reference(self) -> Int:
        """Apps that are served in the reference, rising."""
        rows = self._unended_apps()
        out: Int = rows[self.apps.in_reference[rows] == 1]
        return out

    def active_apps(self) -> Int:
        """Apps that have not ended, rising."""
        rows = self._unended_apps()
        out: Int = rows[self.apps.active[rows] == 1]
        return out

    def _unended_apps(self) -> Int:
        t = self.apps
        return self._apps_left.of(t, lambda rows: (t.active[rows] | t.in_reference[rows]) > 0)

    def ended_with(self, gpu_seconds: float) -> None:
        """An app ended that received this much."""
        if self._service.size != len(self.finished_service):
            self._service = Growing(np.zeros(0))
            self._service.extend(self.finished_service)
        self.finished_service = self._service.extend(np.array([gpu_seconds]))

    def runs(self, j: int, attempt: int) -> bool:
        """True if this is the attempt that runs now; late reports of earlier ones are ignored."""
        return j in self.job_gpus and bool(self.jobs.one.attempt[j] == attempt)

    def work_left(self, rows: Int | slice) -> Float:
        """Reference GPU-seconds left to each job's target."""
        t = self.jobs
        done = self.steps_now(rows)
        return not_nothing((t.regime_end[rows] - done) * t.serial[rows] + t.later[rows], done * t.serial[rows])

    def steps_now(self, rows: Int | slice) -> Float:
        """Steps done by now, extrapolated at the current rate up to the regime's end."""
        t = self.jobs
        return np.minimum(t.done[rows] + t.rate[rows] * (self.now - t.synced[rows]), t.regime_end[rows])

    @property
    def ends(self) -> LeaseEnds:
        """Jobs by the end of their lease."""
        if self._ends is None:
            self._ends, until = LeaseEnds(), self.jobs.one.until
            for j in self.job_gpus:
                self._ends.put(j, until[j])
        return self._ends

    def renew(self, j: int, until: Seconds) -> None:
        """A lease ends then."""
        ends = self.jobs.one.until
        self.ends.drop(j, ends[j])
        self.ends.put(j, until)
        ends[j] = until

    def renew_all(self, jobs: Sequence[int], by: Seconds, until: Seconds) -> None:
        """``renew`` of all jobs whose leases end ``by`` then."""
        self.ends.move(jobs, by, until)
        ends = self.jobs.one.until
        for j in jobs:
            ends[j] = until

    def drop_plan(self) -> None:
        """End the plan in force, and the one that is being made if there is one."""
        self.plan, self.plan_dropped = None, True

    def round_end(self, round_s: Seconds) -> Seconds:
        """End of the round of this instant: see ``units.round_end``."""
        return round_end(self.now, round_s, self.origin)

    # ---- leases and gangs -------------------------------------------------------------------------------------------

    def lease(self, j: int, gpus: tuple[int, ...], seat: int, until: Seconds, locality: int) -> None:
        """Give a waiting job the GPUs; they must be free on that seat."""
        t, apps, size, now = self.jobs.one, self.apps.one, len(gpus), self.now
        a = t.app[j]
        self.sync_app(a)
        apps.leased[a] += size
        apps.stale[a] = 1
        self._seat(self.leased_to[seat], gpus, j)
        self.ends.put(j, until)
        self.job_gpus[j], self.job_seat[j] = gpus, seat
        move(self.jobs, j, GRANT, now)
        t.until[j], t.locality[j], t.gpus[j] = until, locality, size
        t.gpu_type[j] = self.type_of[self.machine_of[gpus[0]]]
        t.attempt[j] += 1
        t.since[j] = now

    def release(self, j: int, change: JobChange) -> None:
        """Take a running job's lease away because of this change; its service is added up."""
        t, apps, now = self.jobs.one, self.apps.one, self.now
        a = t.app[j]
        self.ends.drop(j, t.until[j])
        gpus, seat = self.job_gpus.pop(j), self.job_seat.pop(j)
        self.sync_app(a)
        apps.leased[a] -= len(gpus)
        apps.stale[a] = 1
        self._sync_job(j)
        t.rate[j] = 0.0
        held = now - t.since[j]
        t.attained[j] += held * len(gpus)
        self.received[j, t.gpu_type[j]] += held
        self._seat(self.leased_to[seat], gpus, NONE)
        move(self.jobs, j, change, now)
        t.gpus[j], t.until[j], t.since[j] = 0, _NEVER, now

    def occupy(self, j: int, gpus: tuple[int, ...], seat: int) -> None:
        """The job's processes are about to be on these GPUs."""
        self._seat(self.occupied_by[seat], gpus, j)
        self.occupied[j] = (gpus, seat)
        self._new_pace(self._partner(j))

    def vacate(self, j: int) -> tuple[int, ...]:
        """The job's processes are gone; returns the GPUs that they were on."""
        gpus, seat = self.occupied.pop(j, ((), 0))
        self._seat(self.occupied_by[seat], gpus, NONE)
        if gpus:
            self._new_pace(self.occupied_by[1 - seat][gpus[0]])
        return gpus

    def start(self, j: int) -> None:
        """The gang trains from now on, at the speed model's rate."""
        t = self.jobs.one
        config, gpu_type = t.config[j], t.gpu_type[j]
        eff, _ = self.worth(config, gpu_type, t.gpus[j], t.locality[j])
        if (partner := self._partner(j)) != NONE:
            # An unmeasured pair is assumed to train as fast as each job alone.
            eff *= self.speeds.beside.get((config, t.config[partner], gpu_type), 1.0)
        self._sync_job(j)
        t.rate[j] = eff / t.serial[j]

    def _partner(self, j: int) -> int:
        """The job with processes on the same GPUs, or NONE."""
        gpus, seat = self.occupied.get(j, ((), 0))
        return self.occupied_by[1 - seat][gpus[0]] if gpus else NONE

    def _new_pace(self, j: int) -> None:
        """Recompute a job's speed after another job joined or left its GPUs."""
        if j != NONE and self.jobs.one.rate[j] > 0:
            self.start(j)

    def _sync_job(self, j: int) -> None:
        """``steps_now`` of one job, written down."""
        t = self.jobs.one
        steps, end = t.done[j] + t.rate[j] * (self.now - t.synced[j]), t.regime_end[j]
        t.done[j], t.synced[j] = steps if steps <= end else end, self.now

    def sync_app(self, a: int) -> None:
        t = self.apps.one
        t.attained[a] += t.leased[a] * (self.now - t.since[a])
        t.since[a] = self.now


class Means(NamedTuple):
    """Sums and integrals over time at an instant, behind N_avg and R_C."""

    now: Seconds
    weight_integral: float
    capacity_integral: float
    weight: float
    capacity: float

    def of(self, apps: Mapping[str, Float]) -> tuple[Float, Float]:
        """(N_avg, R_C) of apps with these columns: see ``State.averages``."""
        elapsed = self.now - apps["arrival"] - apps["away"]
        weight, capacity = self.weight_integral - apps["contention_0"], self.capacity_integral - apps["capacity_0"]
        fresh = elapsed <= 0
        if fresh.any():
            elapsed[fresh], weight[fresh], capacity[fresh] = 1.0, self.weight, self.capacity
        weight, capacity = weight / elapsed, capacity / elapsed
        return np.maximum(weight / apps["weight"], 1e-9), np.maximum(capacity, 1e-9)


def not_nothing(left: Float, done: Float) -> Float:
    """Work left, in reference GPU-seconds, of unfinished jobs: see ``OVERRUN``."""
    # Less than that is no work to compute with: a rung may ask for as little.
    out: Float = np.where(left > EPS, left, np.maximum(OVERRUN * done, EPS))
    return out
