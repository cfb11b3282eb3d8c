"""The only mutable truth: machines, apps, jobs and leases, changed by small methods that keep each other's invariants.

Nothing here decides anything. ``Scheduler`` calls the methods in reaction to events; ``core.snapshot`` reads them out.
Progress between events is extrapolated at the speed model's rate and replaced by what executors report.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

import numpy as np

from themis.core import phases, reference, regimes
from themis.core.curves import Curves
from themis.core.rounds import Rounds
from themis.core.tables import ENDED, RUNNING, WAITING, Apps, Growing, Jobs
from themis.core.unit import joined, left, reweigh
from themis.errors import ClusterError, counted
from themis.fairness.finish_time import t_id_exact, t_id_paper
from themis.forecast.history import History
from themis.forecast.rules import FORECASTER, Forecaster
from themis.model.answers import RoundPlan
from themis.model.cluster import Machine
from themis.model.events import AppFinished, SpeedMeasured
from themis.model.settings import Settings
from themis.model.snapshot import Kind
from themis.model.units import NONE, Bool, Float, Int, Locality, Seconds, round_end
from themis.model.workload import App, Job, Regime, brackets_of
from themis.profiles.learning import Measured
from themis.profiles.speed import ProfileBook, Speeds, compile_speeds, relearned

if TYPE_CHECKING:
    from themis.core.ahead import Outline

SEATS = 2
EPS = 1e-6
"""Seconds below which two instants are one."""

OVERRUN = 0.1
"""A job that did all the work it was believed to have, and goes on, is believed to have this part of it left: with none
left nobody would give it a GPU again. Simulated jobs end with their work; estimates of live ones may be too low."""


_SLOT, _MACHINE = Locality.SLOT, Locality.MACHINE
_NEVER = math.inf


class State:
    """Everything the scheduler knows at ``now``."""

    def __init__(self, book: ProfileBook, settings: Settings, forecaster: Forecaster = FORECASTER) -> None:
        self.book, self.settings, self.forecaster = book, settings, forecaster
        self.now: Seconds = 0.0
        self.version = 0
        self.round = 0
        self.origin: Seconds = 0.0
        """When the first app came: rounds begin then, and at multiples of their length from then on."""
        # machines and GPUs
        self.machines: list[Machine] = []
        self.gpu_types: list[str] = []
        self.racks: dict[str, int] = {}
        self.type_gpus: Float = np.zeros(0)
        """[K], GPUs in service."""
        none, seats = np.zeros(0, dtype=np.int64), np.zeros((0, SEATS), dtype=np.int64)
        self.machines_of: list[list[int]] = []
        """Machines of each type."""
        self.machine_first: list[int] = []
        """The first GPU of each machine; the others follow it."""
        self.machine_size = self.machine_type = self.machine_rack = self.machine_slot = none
        self._machine_columns = [Growing(none) for _ in range(4)]
        self.machine_up = np.zeros(0, dtype=bool)
        self._machine_up = Growing(self.machine_up)
        self.draining: dict[int, Seconds] = {}
        """Machines on which nothing more is placed, until when their gangs may stay."""
        self.withheld: dict[int, tuple[tuple[int, ...], tuple[int, ...], str]] = {}
        """By machine: GPUs that get no gang, processes that are on them, and why."""
        self.gpu_machine = self.gpu_slot = none
        self._gpu_machine, self._gpu_slot = Growing(none), Growing(none)
        self.gpu_job = self.gpu_occupant = seats
        self._gpu_job, self._gpu_occupant = Growing(seats), Growing(seats)
        self._map_gpus()
        # apps and jobs
        self.apps, self.jobs = Apps(), Jobs()
        self.app_specs: list[App] = []
        self.job_specs: list[Job] = []
        self.regimes: list[tuple[Regime, ...]] = []
        """Of each job as far as is known: the ongoing regime of one whose program decides is taken to last for ever."""
        self.history: History = {}
        """How often finished dynamic jobs changed their batch size (``forecast.history``)."""
        self.outlines: dict[int, Outline] = {}
        """Of jobs that were forecast; a cache."""
        self.users: dict[str, int] = {}
        self.between = "apps"
        """The unit of fairness; ``groups`` : the group of each user who has one, and its weight."""
        self.groups: dict[str, tuple[str, float]] = {}
        self.accounts: dict[int, tuple[float, float, float, float]] = {}
        """Between users or groups: of each user since when it has had apps, the integrals of weight and capacity then, and the
        GPU-seconds of its apps that ended since."""
        self.phase: Float = np.zeros((3, 64, 1))
        self.future: Float = np.zeros((3, 64, 1))
        self.phase_bracket: Int = np.zeros((64, 1), dtype=np.int64)
        self.curves = Curves()
        self.job_gpus: dict[int, tuple[int, ...]] = {}
        self.job_seat: dict[int, int] = {}
        self.occupied: dict[int, tuple[tuple[int, ...], int]] = {}
        """Where each job's processes physically are, until they are known to be gone."""
        self.quotas: dict[str, tuple[tuple[str, ...], int]] = {}
        """Who shares it, and most GPUs at once, by name."""
        self.at_once: dict[int, int] = {}
        """Most jobs at once of the active apps that have such a limit."""
        self.retired_below = 0
        """All apps before this one are retired (``core.retire``)."""
        self.failed: set[int] = set()
        """Apps one of whose jobs was given up."""
        self.delayed: set[int] = set()
        """Jobs that were told to wait after a failure."""
        self.restricted = False
        """Whether any job ever named the GPU types that it may use."""
        self.changing = False
        """Whether any job ever could change its batch size."""
        self.barring = False
        """Whether some model that jobs train does not run on some GPU type, or not with every gang."""
        self.finished_service: Float = np.zeros(0)
        """GPU-seconds that apps no longer in the system received, rising; replaced, never changed in place."""
        # time integrals behind N_avg and R_C
        self.weight_in_system = 0.0
        self.capacity = 0.0
        self.weight_integral = 0.0
        self.capacity_integral = 0.0
        self.jobs_in_system = 0
        self.jobs_integral = 0.0
        # the reference (``core.reference``)
        self.keeps_reference = False
        self.reference_at: Seconds = 0.0
        """Up to when it ran."""
        self._reference: tuple[tuple[Float | Int, ...], Float] | None = None
        """What its finishes follow from, and they; a cache."""
        # round mechanism
        self.received: Float = np.zeros((64, 1))
        self.rounds = Rounds()
        self.plan: RoundPlan | None = None
        self.plan_start: Seconds = 0.0
        self.speeds: Speeds = compile_speeds(book, [], (), 1)
        self._worth: dict[tuple[int, int, int, int], tuple[float, float]] = {}
        """``worth`` of gangs that there were, by ``_worth_by``'s speeds; a cache."""
        self._worth_by = self.speeds
        self.measured = Measured()
        self.config_speed: Float = np.zeros(0)

    # ---- time -------------------------------------------------------------------------------------------------------

    def advance(self, now: Seconds) -> None:
        """Move the clock; the integrals of contention and capacity grow by the time that passed."""
        passed = now - self.now
        if passed > 0:
            self.weight_integral += self.weight_in_system * passed
            self.capacity_integral += self.capacity * passed
            self.jobs_integral += self.jobs_in_system * passed
            self.now = now

    # ---- machines ---------------------------------------------------------------------------------------------------

    def add_machine(self, machine: Machine) -> None:
        """Append a machine; its GPUs get the next ids."""
        if machine.gpu_type not in self.gpu_types:
            self.gpu_types.append(machine.gpu_type)
            self.type_gpus = np.append(self.type_gpus, 0.0)
            self.machines_of.append([])
            self._widen_types()
        rack = self.racks.setdefault(machine.rack, len(self.racks))
        n, k = len(self.machines), self.gpu_types.index(machine.gpu_type)
        self.machines.append(machine)
        self.machines_of[k].append(n)
        row = (machine.gpus, k, rack, machine.slot)
        self.machine_size, self.machine_type, self.machine_rack, self.machine_slot = (
            column.extend(np.array([value])) for column, value in zip(self._machine_columns, row)
        )
        self.machine_up = self._machine_up.extend(np.array([True]))
        first_slot = int(self.gpu_slot[-1]) + 1 if len(self.gpu_slot) else 0
        slots = first_slot + np.arange(machine.gpus) // machine.slot
        self.gpu_machine = self._gpu_machine.extend(np.full(machine.gpus, n))
        self.gpu_slot = self._gpu_slot.extend(slots)
        empty = np.full((machine.gpus, SEATS), NONE)
        self.gpu_job, self.gpu_occupant = self._gpu_job.extend(empty), self._gpu_occupant.extend(empty)
        self.machine_first.append(len(self.gpu_machine) - machine.gpus)
        self._map_gpus()
        self._in_service(k, machine.gpus)

    def _map_gpus(self) -> None:
        """Views for one GPU at a time: a tenth of the time that indexing the array takes."""
        self.machine_of, self.slot_of, self.type_of = self.gpu_machine.data, self.gpu_slot.data, self.machine_type.data
        self.leased_to, self.occupied_by = self.gpu_job.data, self.gpu_occupant.data

    def set_machine_up(self, machine: int, up: bool) -> None:
        """A machine left or rejoined service."""
        change = int(up) - int(self.machine_up[machine])
        self.machine_up[machine] = up
        self._in_service(int(self.machine_type[machine]), change * int(self.machine_size[machine]))

    def open_machines(self) -> Bool:
        """[N], machines on which gangs may be placed: in service and not draining."""
        if not self.draining:
            return self.machine_up
        out = self.machine_up.copy()
        out[list(self.draining)] = False
        return out

    def withhold(self, machine: int, gpus: tuple[int, ...], pids: tuple[int, ...], reason: str) -> None:
        """Exactly these GPUs of a machine get no gang from now on."""
        self.withheld.pop(machine, None)
        if gpus:
            self.withheld[machine] = (gpus, pids, reason)

    def open_gpus(self) -> Bool:
        """[G], GPUs on which gangs may be placed."""
        out: Bool = self.open_machines()[self.gpu_machine]
        for gpus, _, _ in self.withheld.values():
            out[list(gpus)] = False
        return out

    def _in_service(self, gpu_type: int, gpus: int) -> None:
        """So many more GPUs of a type are in service; fewer when negative."""
        reference.advance(self)
        self.type_gpus[gpu_type] += gpus
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
        self._compile(list(self.speeds.index), self.speeds.scale.shape[2] - 1)

    # ---- apps -------------------------------------------------------------------------------------------------------

    def check_fits(self, app: App) -> None:
        """Raise ClusterError if one of the app's jobs could never run on the machines known."""
        for job in app.jobs:
            usable = [t for t in self.gpu_types if not job.gpu_types or t in job.gpu_types]
            room = int(self.machine_size[np.isin(self.machine_type, [self.gpu_types.index(t) for t in usable])].sum())
            if room < job.gpus_min:
                of_type = f" of type {' or '.join(job.gpu_types)}" if job.gpu_types else ""
                raise ClusterError(
                    f"app {app.name!r}, job {job.name!r} wants at least {counted(job.gpus_min, 'GPU')}{of_type}; "
                    f"the cluster has {room}. Lower its gpus or use a larger cluster."
                )

    def add_app(self, app: App, weight: float) -> int:
        """Append an app and its jobs, all waiting; returns its id."""
        if not self.app_specs:
            self.origin = self.now
        reference.advance(self)
        self._learn(app)
        self.restricted |= any(job.gpu_types for job in app.jobs)
        self.changing |= any(job.dynamic and len(job.dynamic.batches) > 1 for job in app.jobs)
        first = [(b.rungs[0].steps, b.steps) for b in brackets_of(app.tuner) for _ in range(b.rungs[0].jobs)]
        ends = first or [(job.steps, job.steps) for job in app.jobs]
        a = int(self.apps.extend(1).start)
        rows = self.jobs.extend(len(app.jobs))
        self.app_specs.append(app)
        self.job_specs.extend(app.jobs)
        self.regimes.extend(job.believed for job in app.jobs)
        self._grow_round_columns()
        for j, job, (target, total) in zip(range(rows.start, rows.stop), app.jobs, ends):
            self._fill_job(j, a, job, target, min(total, job.steps))
        self._fill_app(a, app, weight, rows)
        phases.plan(self, a, app, rows)
        self.weight_in_system += weight
        if self.between != "apps":
            joined(self, a)
        self._reweigh()
        self.jobs_in_system += len(app.jobs)
        reference.enter(self, a)
        return a

    def _fill_app(self, a: int, app: App, weight: float, rows: slice) -> None:
        t, low, high = self.apps, self.jobs.gpus_min[rows], self.jobs.gpus_max[rows]
        rungs = bool(brackets_of(app.tuner))
        single = len(app.jobs) == 1 and not rungs
        t.arrival[a], t.weight[a], t.since[a] = self.now, weight, self.now
        t.given[a], t.own[a] = weight, app.weight
        t.contention_0[a], t.capacity_0[a] = self.weight_integral, self.capacity_integral
        t.jobs_0[a] = self.jobs_integral
        t.reference[a] = np.nan
        t.finish[a], t.deadline[a] = np.nan, np.inf if app.deadline is None else app.deadline
        t.user[a] = self.users.setdefault(app.user, len(self.users))
        t.kind[a] = Kind.HALVING if rungs else Kind.SINGLE if single else Kind.BAG
        t.gang_min[a], t.gang_max[a] = low.min(), high.max()
        t.rigid[a] = bool((low == high).all() and low.min() == low.max())
        if app.at_once:
            self.at_once[a] = app.at_once
        t.first_job[a], t.jobs[a], t.active[a], t.config[a] = rows.start, len(app.jobs), 1, self.jobs.config[rows.start]

    def _fill_job(self, j: int, a: int, job: Job, target: float, total: float) -> None:
        t = self.jobs
        t.app[j], t.status[j] = a, WAITING
        t.gpus_min[j], t.gpus_max[j], t.total[j] = job.gpus_min, job.gpus_max, total
        t.loss_a[j], t.loss_b[j] = job.loss.a, job.loss.b
        t.synced[j] = t.since[j] = self.now
        t.until[j], t.locality[j], t.gpu_type[j] = np.inf, Locality.SLOT, 0
        self.set_target(j, target)

    def _grow_round_columns(self) -> None:
        while len(self.received) < self.jobs.size:
            self.received = np.concatenate([self.received, np.zeros_like(self.received)])

    def _learn(self, app: App) -> None:
        """Tabulate speeds that this app is the first to need."""
        self.learn((config for job in app.jobs for config in job.configs), max(job.gpus_max for job in app.jobs))

    def learn(self, configs: Iterable[tuple[str, int]], gpus: int = 0) -> None:
        """Tabulate speeds of these (model, batch size) on up to so many GPUs."""
        largest = max(self.speeds.scale.shape[2] - 1, gpus)
        fresh = sorted(set(configs) - self.speeds.index.keys())
        if fresh or largest >= self.speeds.scale.shape[2]:
            self._compile([*self.speeds.index, *fresh], largest)

    def _compile(self, configs: list[tuple[str, int]], largest: int) -> None:
        units = dict(zip(self.speeds.index, self.speeds.serial.tolist()))
        self.speeds = compile_speeds(self.book, configs, tuple(self.gpu_types), largest, units)
        self._capacity_changed()

    def learn_speed(self, measured: SpeedMeasured) -> None:
        """A model's speed was measured. The unit of its work stays: what a reference GPU was first believed to do."""
        if measured.model not in self.book.profiles or not (measured.steps_per_s > 0 or measured.partner):
            return
        reference.advance(self)
        self.measured.take(measured)
        self.book = self.book.with_profiles([self.measured.corrected(self.book.get(measured.model))])
        self.speeds = relearned(self.speeds, self.book, measured.model, tuple(self.gpu_types))
        self._capacity_changed()

    def app_jobs(self, a: int) -> Int:
        """Ids of all jobs of an app."""
        first = int(self.apps.first_job[a])
        return np.arange(first, first + int(self.apps.jobs[a]))

    def finish_app(self, a: int, outcome: str) -> AppFinished:
        """Close an app: its figures over its whole life, in both forms of rho."""
        t = self.apps
        self._sync_app(a)
        if outcome != "completed":
            reference.advance(self)
            reference.leave(self, a)
        t.active[a], t.ended[a] = 0, self.now
        self.finished_service = np.insert(
            self.finished_service, np.searchsorted(self.finished_service, t.attained[a]), t.attained[a]
        )
        if self.between != "apps":
            left(self, a)
        self._leave(a)
        self.at_once.pop(a, None)
        jct = self.now - float(t.arrival[a])
        life = jct - float(t.away[a])
        contention, capacity = (float(x[0]) for x in self.averages(np.array([a])))
        # Where no GPU is in service the reference's speed stands in, so that the app can be ended.
        speed = float(self.config_speed[t.config[a]]) or 1.0
        one = np.array([a])
        paper = t_id_paper(
            t.budget[one], t.longest_s[one], t.demand[one].astype(float), np.array([capacity]), np.array([contention])
        )
        exact = t_id_exact(
            self.phase[0, one],
            self.phase[1, one],
            t.gang_max[one].astype(float),
            np.array([capacity]),
            np.array([contention]),
            self.phase_bracket[one],
        )
        t_paper, t_exact = float(paper[0]) / speed, float(exact[0]) / speed
        return AppFinished(
            app=a, outcome=outcome, jct=jct, rho_paper=life / t_paper, rho_exact=life / t_exact, t_id_paper=t_paper,
            t_id_exact=t_exact, contention=contention, capacity=capacity, gpu_seconds=float(t.attained[a]),
        )  # fmt: skip

    def _leave(self, a: int) -> None:
        """The app contends no more."""
        t = self.apps
        self.weight_in_system -= float(t.weight[a])
        if not (t.active[: t.size] > t.held[: t.size]).any():
            self.weight_in_system = 0.0
        self._reweigh()

    def _reweigh(self) -> None:
        """Where the unit of fairness is not the app, weights follow the apps that contend."""
        if self.between != "apps":
            reweigh(self)

    def set_aside(self, a: int) -> None:
        """The app's user holds it: its life stands still, and nobody contends with it."""
        t = self.apps
        reference.advance(self)
        reference.leave(self, a)
        t.held[a], t.held_at[a] = 1, self.now
        self._turn_integrals(a)
        self._leave(a)
        self.jobs_in_system -= self._unfinished(a)

    def take_back(self, a: int) -> None:
        """The app takes part again."""
        t = self.apps
        t.held[a] = 0
        reference.advance(self)
        reference.enter(self, a)
        t.away[a] += self.now - t.held_at[a]
        self._turn_integrals(a)
        self.weight_in_system += float(t.weight[a])
        self._reweigh()
        self.jobs_in_system += self._unfinished(a)

    def _turn_integrals(self, a: int) -> None:
        """From the integrals at its arrival to what they grew in its life so far, and back."""
        t = self.apps
        t.contention_0[a] = self.weight_integral - t.contention_0[a]
        t.capacity_0[a] = self.capacity_integral - t.capacity_0[a]
        t.jobs_0[a] = self.jobs_integral - t.jobs_0[a]

    def _unfinished(self, a: int) -> int:
        return int((self.jobs.status[self.app_jobs(a)] != ENDED).sum())

    def count_jobs(self) -> int:
        """Jobs in the system, counted anew: unfinished ones of apps that nobody holds."""
        t = self.jobs
        return int(((t.status[: t.size] != ENDED) & (self.apps.held[t.app[: t.size]] == 0)).sum())

    def averages(self, rows: Int) -> tuple[Float, Float]:
        """(N_avg, R_C) of these apps from their arrival to now; at elapsed 0 the values of this instant."""
        t = self.apps
        elapsed = self.now - t.arrival[rows] - t.away[rows]
        weight, capacity = self.weight_integral - t.contention_0[rows], self.capacity_integral - t.capacity_0[rows]
        fresh = elapsed <= 0
        if fresh.any():
            elapsed[fresh], weight[fresh], capacity[fresh] = 1.0, self.weight_in_system, self.capacity
        weight, capacity = weight / elapsed, capacity / elapsed
        return np.maximum(weight / t.weight[rows], 1e-9), np.maximum(capacity, 1e-9)

    def apps_attained(self) -> Float:
        """GPU-seconds that each app has had until now, [all apps ever]."""
        t, all_ = self.apps, slice(self.apps.size)
        return t.attained[all_] + t.leased[all_] * np.maximum(self.now - t.since[all_], 0.0)

    def private_service(self) -> Float:
        """GPU-seconds that each app would have had until now on its own R_C / N_avg GPUs, at most what it can use, [all apps ever].

        Of the time in which it takes part; of apps that are over it means nothing.
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

    # ---- jobs -------------------------------------------------------------------------------------------------------

    def set_target(self, j: int, target: float) -> None:
        """The job now works towards ``target`` steps; its regime columns follow."""
        self.jobs.target[j] = min(target, self.jobs.total[j])
        self._set_regime(j)

    def _set_regime(self, j: int) -> None:
        t, job, known = self.jobs, self.job_specs[j], self.regimes[j]
        ends = np.cumsum([r.steps for r in known])
        r = min(int(np.searchsorted(ends, t.done[j] + 1e-9, side="right")), len(ends) - 1)
        serials = [regimes.serial(self, job, r.batch) for r in known]
        begins = np.concatenate([[0.0], ends[:-1]])
        beyond = np.clip(np.minimum(ends, t.target[j]) - begins, 0, None)
        t.regime[j], t.regime_end[j] = r, min(float(ends[r]), float(t.target[j]))
        t.serial[j], t.later[j] = serials[r], float((beyond * serials)[r + 1 :].sum())
        t.config[j] = self.speeds.index[job.model, known[r].batch]

    def new_regime(self, j: int) -> None:
        """The job trains at another speed from now on."""
        self._set_regime(j)
        self.rounds.version = NONE  # it has other rates now
        if self.jobs.rate[j] > 0:
            self.start(j)

    def work_left(self, rows: Int) -> Float:
        """Reference GPU-seconds left to each job's target."""
        t = self.jobs
        done = self.steps_now(rows)
        return not_nothing((t.regime_end[rows] - done) * t.serial[rows] + t.later[rows], done * t.serial[rows])

    def steps_now(self, rows: Int) -> Float:
        """Steps done by now, extrapolated at the current rate up to the regime's end."""
        t = self.jobs
        return np.minimum(t.done[rows] + t.rate[rows] * (self.now - t.synced[rows]), t.regime_end[rows])

    def report(self, j: int, steps: float) -> None:
        """What the executor says the job has done replaces what was extrapolated."""
        t = self.jobs.one
        t.done[j], t.synced[j] = steps, self.now
        known = len(self.regimes[j])
        if known == 1 or regimes.rolled_back(self, j, steps):
            return
        if steps >= t.regime_end[j] - 1e-9 and t.regime[j] < known - 1:
            self.new_regime(j)

    def start(self, j: int) -> None:
        """The gang trains from now on, at the speed model's rate."""
        t = self.jobs.one
        config, gpu_type = t.config[j], t.gpu_type[j]
        eff, _ = self.worth(config, gpu_type, t.gpus[j], t.locality[j])
        if (partner := self._partner(j)) != NONE:
            # Who shares GPUs although nobody has measured the pair is believed to train as if alone.
            eff *= self.speeds.beside.get((config, t.config[partner], gpu_type), 1.0)
        self._sync_job(j)
        t.rate[j] = eff / t.serial[j]

    def worth(self, config: int, gpu_type: int, gpus: int, locality: int) -> tuple[float, float]:
        """(reference GPUs that a gang is worth, slowdown of its locality), looked up once for each kind of gang."""
        if self._worth_by is not self.speeds:
            self._worth, self._worth_by = {}, self.speeds
        key = config, gpu_type, gpus, locality
        if (found := self._worth.get(key)) is None:
            eff = float(self.speeds.scale[config, gpu_type, gpus] / self.speeds.slowdown[config, locality])
            found = self._worth[key] = eff, float(self.speeds.slowdown[config, locality])
        return found

    def stop(self, j: int) -> None:
        """The gang does not train any more."""
        self._sync_job(j)
        self.jobs.one.rate[j] = 0.0

    def _sync_job(self, j: int) -> None:
        """``steps_now`` of one job, written down."""
        t = self.jobs.one
        steps, end = t.done[j] + t.rate[j] * (self.now - t.synced[j]), t.regime_end[j]
        t.done[j], t.synced[j] = steps if steps <= end else end, self.now

    # ---- leases -----------------------------------------------------------------------------------------------------

    def lease(self, j: int, gpus: tuple[int, ...], seat: int, until: Seconds, locality: int) -> None:
        """Give a waiting job the GPUs; they must be free on that seat."""
        t, apps, size, now = self.jobs.one, self.apps.one, len(gpus), self.now
        a, leased_to = t.app[j], self.leased_to
        self._sync_app(a)
        apps.leased[a] += size
        apps.stale[a] = 1
        for g in gpus:
            leased_to[g, seat] = j
        self.job_gpus[j], self.job_seat[j] = gpus, seat
        t.status[j], t.until[j], t.locality[j], t.gpus[j] = RUNNING, until, locality, size
        t.gpu_type[j] = self.type_of[self.machine_of[gpus[0]]]
        t.attempt[j] += 1
        t.since[j] = now

    def release(self, j: int, status: int) -> None:
        """Take a running job's lease away; its service is added up."""
        t, apps, now = self.jobs.one, self.apps.one, self.now
        a, leased_to = t.app[j], self.leased_to
        gpus, seat = self.job_gpus.pop(j), self.job_seat.pop(j)
        self._sync_app(a)
        apps.leased[a] -= len(gpus)
        apps.stale[a] = 1
        self.stop(j)
        held = now - t.since[j]
        t.attained[j] += held * len(gpus)
        self.received[j, t.gpu_type[j]] += held
        for g in gpus:
            leased_to[g, seat] = NONE
        t.status[j], t.gpus[j], t.until[j], t.since[j] = status, 0, _NEVER, now

    def occupy(self, j: int, gpus: tuple[int, ...], seat: int) -> None:
        """The job's processes are about to be on these GPUs."""
        for g in gpus:
            self.occupied_by[g, seat] = j
        self.occupied[j] = (gpus, seat)
        self._new_pace(self._partner(j))

    def vacate(self, j: int) -> tuple[int, ...]:
        """The job's processes are gone; returns the GPUs that they were on."""
        gpus, seat = self.occupied.pop(j, ((), 0))
        for g in gpus:
            self.occupied_by[g, seat] = NONE
        if gpus:
            self._new_pace(self.occupied_by[gpus[0], 1 - seat])
        return gpus

    def _partner(self, j: int) -> int:
        """The job whose processes are on the same GPUs, or NONE."""
        gpus, seat = self.occupied.get(j, ((), 0))
        return self.occupied_by[gpus[0], 1 - seat] if gpus else NONE

    def _new_pace(self, j: int) -> None:
        """Somebody joined or left the job's GPUs: if it trains, it does so at another speed from now on."""
        if j != NONE and self.jobs.one.rate[j] > 0:
            self.start(j)

    def present(self) -> Int:
        """Jobs that wait or run, rising."""
        out: Int = (self.jobs.status[: self.jobs.size] <= RUNNING).nonzero()[0]
        return out

    def lease_ends(self) -> Float:
        """When each lease ends that is held, in no order: far fewer than there ever were jobs."""
        held = np.fromiter(self.job_gpus, dtype=np.int64, count=len(self.job_gpus))
        out: Float = self.jobs.until[held]
        return out

    def allowed(self, rows: Int) -> Bool:
        """[J, K]: the model runs on the type with every gang that the job may have, and the job did not rule it out."""
        config, scale = self.jobs.config[rows], self.speeds.scale
        allowed: Bool = scale[config, :, self.jobs.gpus_min[rows]] > 0
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
        """[K], of these types those that also run every other batch size that the job may change to, if any does."""
        rows = [self.speeds.index[config] for config in job.configs]
        both: Bool = allowed & (self.speeds.scale[rows, :, job.gpus_max] > 0).all(axis=0)
        return both if both.any() else allowed

    def may_use(self, j: int, gpu_type: int) -> bool:
        """``allowed`` of one job and type."""
        if self.barring:
            return bool(self.allowed(np.array([j]))[0, gpu_type])
        names = self.job_specs[j].gpu_types
        return not names or self.gpu_types[gpu_type] in names

    def runs(self, j: int, attempt: int) -> bool:
        """Whether this is the attempt that runs now; late reports of earlier ones are ignored."""
        return j in self.job_gpus and bool(self.jobs.one.attempt[j] == attempt)

    def received_now(self, rows: Int) -> Float:
        """[J, K] seconds on each type up to now, running leases included."""
        t, out = self.jobs, self.received[rows]
        at = (t.status[rows] == RUNNING).nonzero()[0]
        held = rows[at]
        out[at, t.gpu_type[held]] += self.now - t.since[held]
        return out

    def round_end(self, round_s: Seconds) -> Seconds:
        """When the round of this instant ends: see ``units.round_end``."""
        return round_end(self.now, round_s, self.origin)

    def _sync_app(self, a: int) -> None:
        t = self.apps.one
        t.attained[a] += t.leased[a] * (self.now - t.since[a])
        t.since[a] = self.now

    def locality(self, gpus: Sequence[int]) -> Locality:
        """The widest boundary these GPUs span."""
        if len(gpus) == 1 or len({self.slot_of[g] for g in gpus}) == 1:
            return _SLOT
        machines = {self.machine_of[g] for g in gpus}
        if len(machines) == 1:
            return _MACHINE
        return Locality.RACK if len({int(self.machine_rack[n]) for n in machines}) == 1 else Locality.CROSS_RACK

    def occupants(self, machine: int) -> list[int]:
        """Jobs with a lease on a machine, or whose processes are still there."""
        here = self.gpu_machine == machine
        found = np.unique(np.concatenate([self.gpu_job[here].ravel(), self.gpu_occupant[here].ravel()]))
        return [int(j) for j in found if j != NONE]

    def running_on(self, machine: int) -> list[int]:
        """Jobs with a lease on a machine, in order of id."""
        held = self.gpu_job[self.gpu_machine == machine].ravel()
        return sorted(int(j) for j in np.unique(held[held >= 0]))


def not_nothing(left: Float, done: Float) -> Float:
    """Work left, in reference GPU-seconds, of jobs that are not done: see ``OVERRUN``."""
    out: Float = np.where(left > EPS, left, OVERRUN * done)
    return out
