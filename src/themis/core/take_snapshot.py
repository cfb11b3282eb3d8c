"""Read the state out into one immutable ``Snapshot``: an indexing call per block of columns, no loop over jobs."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import cached_property, partial
from types import MappingProxyType
from typing import Any

import numpy as np

from themis.core import fairness_unit, gang_times, quota_limits, reference
from themis.core import needs as app_needs
from themis.core.forecasting import JobForecast, forecast_jobs
from themis.core.offer import free_gpus
from themis.core.state import EPS, State, not_nothing
from themis.core.tables import RUNNING
from themis.fairness.finish_time import left_held, list_schedule
from themis.model.snapshot import Kind, Snapshot
from themis.model.units import Bool, Float, Int, Seconds
from themis.policies.api import ON_FREE_GPUS, Cadence

BAG = int(Kind.BAG)
"""A plain integer: numpy takes ten times as long to compare with an enumeration member."""

# Columns of jobs that a picture is made of. One call would copy a block of all columns, but the other columns, too; and blocks of
# more than 32 MiB, glibc's largest allocation from the heap, are fresh pages in each decision.
_JOB_FLOATS = (
    "done",
    "rate",
    "synced",
    "regime_end",
    "serial",
    "later",
    "until",
    "attained",
    "since",
    "loss_a",
    "loss_b",
)
_JOB_INTS = (
    "app",
    "config",
    "gpus_min",
    "gpus_max",
    "status",
    "locality",
    "gpus",
    "gpu_type",
    "bracket",
    "order",
    "attempt",
)


@dataclass(slots=True)
class Memo:
    """Inputs and results of earlier snapshots of one state, kept to avoid recomputation; may be dropped at any moment."""

    forecasts: dict[int, JobForecast] = field(default_factory=dict)
    finishes: reference.Finishes = field(default_factory=reference.Finishes)
    times: gang_times.Kept = field(default_factory=gang_times.Kept)


def take(state: State, *, needs: frozenset[str] = frozenset(), pace: Cadence = ON_FREE_GPUS) -> Snapshot:
    """An immutable snapshot of the state at its ``now``; leases that end at this instant count as free.

    ``needs`` : optional columns that the policy asks for. ``pace`` : its cadence.
    """
    return take_renewing(state, needs=needs, pace=pace)[0]


def take_renewing(
    state: State,
    *,
    needs: frozenset[str] = frozenset(),
    pace: Cadence = ON_FREE_GPUS,
    free: Bool | None = None,
    present: Int | None = None,
    memo: Memo | None = None,
) -> tuple[Snapshot, dict[int, Seconds]]:
    """``take``, and by app the forecast finishes of bags whose leases or jobs changed since the last record.

    Parameters
    ----------
    free, present : ``free_gpus`` of this instant and the jobs that wait or run, where they are known.
    memo : of earlier snapshots of this state; renewed here.
    """
    memo = Memo() if memo is None else memo
    job_id = state.present() if present is None else present
    later, room = np.zeros(0, dtype=np.int64), None
    if state.quotas or state.at_once or state.delayed:
        why, room = quota_limits.blocked(state, job_id)
        later, job_id, room = job_id[why == quota_limits.AT_ONCE], job_id[why == 0], room[why == 0]
    g = _Gathered(state, job_id, room)
    gpu_free = free_gpus(state, state.now) if free is None else free
    snapshot = Snapshot.of(
        version=state.version,
        round=state.round,
        seed=state.settings.seed,
        now=state.now,
        origin=state.origin,
        lease_s=state.settings.lease_s,
        step_s=state.step_s(pace),
        tick_s=state.settings.tick_s,
        restart_s=state.settings.container_s,
        gpu_types=tuple(state.gpu_types),
        users=tuple(state.users),
        speeds=state.lend_speeds(),
        machine_gpus=_gpus(state),
        machine_type=state.machine_type,
        machine_rack=state.machine_rack,
        machine_slot=state.machine_slot,
        free=np.bincount(state.gpu_machine[gpu_free], minlength=len(state.machines)),
        gpu_machine=state.gpu_machine,
        gpu_slot=state.gpu_slot,
        gpu_free=gpu_free,
        gpu_job=state.gpu_job.copy(),
        app_id=g.app_id,
        job_ptr=g.ptr,
        job_id=job_id,
        job_app=g.job_app,
        job_allowed=state.allowed(job_id),
        job_held=g.job_held,
        between=state.between,
        _gathered=g,
    )
    if state.between != "apps":
        received, entitled, rate = fairness_unit.balance(state, g.app_id)
        snapshot = snapshot.filled(unit_received=received, unit_entitled=entitled, unit_rate=rate)
    if len(later):
        snapshot = _with_later(state, snapshot, later)
    expected = forecast_jobs(state, job_id, g.read("job_done"), memo.forecasts) if "ahead" in needs else None
    finishes = reference.finishes(state, g.app_id, memo.finishes) if "reference" in needs else None
    snapshot.filled(ahead=expected, reference=finishes, horizon=None if finishes is None else state.horizon)
    if finishes is not None:
        left, alone, whole = app_needs.left(state, g.app_id)
        snapshot.filled(need_left=left, need_alone=alone, need_whole=whole)
    if "job_seconds" in needs:
        left = snapshot.job_left
        done = g.read("job_done")
        snapshot.filled(job_seconds=gang_times.seconds_left(state, job_id, done, left, memo.times))
    service = partial(_rising, state.finished_service)
    bags = g.ai["kind"] == BAG
    if bags.any() and (bags & snapshot.app_rigid & (snapshot.app_held > 0)).any():
        exact, renewed = _bags(state, snapshot)
        return snapshot.deferring(app_left_held=partial(_left_with, exact), finished_service=service), renewed
    return snapshot.deferring(app_left_held=_left_held, finished_service=service), {}


class _Gathered:
    """Rows of the state's tables as they were at this instant, and columns of a snapshot made of them when they are first read.

    ``room`` : GPUs that quotas leave each job in addition to those that it holds; None: there are no quotas.
    """

    def __init__(self, state: State, job_id: Int, room: Int | None) -> None:
        table, apps, now = state.jobs, state.apps, state.now
        f: dict[str, Float] = {name: getattr(table, name).take(job_id) for name in _JOB_FLOATS}
        i: dict[str, Int] = {name: getattr(table, name).take(job_id) for name in _JOB_INTS}
        self.running = i["status"] == RUNNING
        self.held_on = self.running & (f["until"] > now + EPS)
        self.job_held = np.where(self.held_on, i["gpus"], 0)
        if room is not None:
            more = np.minimum(i["gpus_max"] - self.job_held, room)
            i["gpus_max"] = np.maximum(more + self.job_held, i["gpus_min"])
        # Ids of jobs rise with those of their apps.
        first = np.ones(len(job_id), dtype=bool)
        np.not_equal(i["app"][1:], i["app"][:-1], out=first[1:])
        self.ptr: Int = np.append(first.nonzero()[0], len(job_id))
        self.job_app: Int = first.cumsum() - 1
        self.app_id = app_id = i["app"][self.ptr[:-1]]
        self.f, self.i, self.now = f, i, now
        self.af = dict(zip(apps.floats, np.take(apps.f, app_id, axis=1)))
        self.ai = dict(zip(apps.ints, np.take(apps.i, app_id, axis=1)))
        self.means = state.means
        self.config_speed = state.config_speed
        self.phase, self.future = np.take(state.phase, app_id, axis=1), np.take(state.future, app_id, axis=1)
        self.phase_bracket = np.take(state.phase_bracket, app_id, axis=0)
        self.received = np.take(state.received, job_id, axis=0)
        self.made: dict[str, Any] = {}

    def __contains__(self, name: object) -> bool:
        return name in _MAKE

    def __iter__(self) -> Iterator[str]:
        return iter(_MAKE)

    @cached_property
    def averages(self) -> tuple[Float, Float]:
        """(N_avg, R_C) of each app."""
        return self.means.of(self.af)

    def read(self, name: str) -> Any:
        """The column of this name."""
        if (found := self.made.get(name)) is None:
            found = self.made[name] = _MAKE[name](self)
        return found


def _received(g: _Gathered) -> Float:
    """[J, K] seconds on each type, running leases included."""
    at, out = g.running.nonzero()[0], g.received.copy()
    out[at, g.i["gpu_type"][at]] += g.now - g.f["since"][at]
    return out


def _left(g: _Gathered) -> Float:
    f, done = g.f, g.read("job_done")
    return not_nothing((f["regime_end"] - done) * f["serial"] + f["later"], done * f["serial"])


def _app_held(g: _Gathered) -> Int:
    out: Int = np.bincount(g.job_app, weights=g.job_held, minlength=len(g.app_id)).astype(np.int64)
    return out


_MAKE: Mapping[str, Callable[[_Gathered], Any]] = MappingProxyType(
    {
        "app_user": lambda g: g.ai["user"],
        "app_kind": lambda g: g.ai["kind"],
        "app_weight": lambda g: g.af["weight"],
        "app_arrival": lambda g: g.af["arrival"],
        "app_contention": lambda g: g.averages[0],
        "app_capacity": lambda g: g.averages[1],
        "app_speed": lambda g: g.config_speed[g.ai["config"]],
        "app_attained": lambda g: g.af["attained"] + g.ai["leased"] * (g.now - g.af["since"]),
        "app_held": _app_held,
        "app_gang_min": lambda g: g.ai["gang_min"],
        "app_gang_max": lambda g: g.ai["gang_max"],
        "app_rigid": lambda g: g.ai["rigid"].astype(bool),
        "app_unknown": lambda g: g.ai["unknown"].astype(bool),
        "app_budget": lambda g: g.af["budget"],
        "app_demand": lambda g: g.ai["demand"],
        "app_longest": lambda g: g.af["longest_s"],
        "app_deadline": lambda g: g.af["deadline"],
        "app_away": lambda g: g.af["away"],
        "phase_work": lambda g: g.phase[0],
        "phase_longest": lambda g: g.phase[1],
        "phase_jobs": lambda g: g.phase[2].astype(np.int64),
        "phase_bracket": lambda g: g.phase_bracket,
        "future_work": lambda g: g.future[0],
        "future_longest": lambda g: g.future[1],
        "future_jobs": lambda g: g.future[2].astype(np.int64),
        "job_bracket": lambda g: g.i["bracket"],
        "job_config": lambda g: g.i["config"],
        "job_gpus_min": lambda g: g.i["gpus_min"],
        "job_gpus_max": lambda g: g.i["gpus_max"],
        "job_left": _left,
        "job_attained": lambda g: g.f["attained"] + g.i["gpus"] * (g.now - g.f["since"]),
        "job_expiring": lambda g: np.where(g.running & ~g.held_on, g.i["gpus"], 0),
        "job_attempt": lambda g: g.i["attempt"],
        "job_since": lambda g: g.f["since"],
        "job_until": lambda g: g.f["until"],
        "job_locality": lambda g: g.i["locality"],
        "job_gpu_type": lambda g: g.i["gpu_type"],
        "job_done": lambda g: np.minimum(g.f["done"] + g.f["rate"] * (g.now - g.f["synced"]), g.f["regime_end"]),
        "job_serial": lambda g: g.f["serial"],
        "job_order": lambda g: g.i["order"],
        "job_loss_a": lambda g: g.f["loss_a"],
        "job_loss_b": lambda g: g.f["loss_b"],
        "received": _received,
    }
)
"""Columns that are made when they are read; most policies read few."""


def _rising(values: Float, s: Snapshot) -> Float:
    return np.sort(values)


def _with_later(state: State, s: Snapshot, later: Int) -> Snapshot:
    """Jobs beyond their app's limit of concurrent jobs, as a phase that follows the current one."""
    row = np.searchsorted(s.app_id, state.jobs.app[later])
    left = state.work_left(later)
    work, longest = s.future_work.copy(), s.future_longest.copy()
    jobs, rigid = s.future_jobs.copy(), s.app_rigid.copy()
    np.add.at(work[:, 0], row, left)
    np.maximum.at(longest[:, 0], row, left * (s.app_gang_max[row] / state.jobs.gpus_max[later]))
    np.add.at(jobs[:, 0], row, 1)
    # A schedule of the jobs here would leave those out.
    rigid[row] = False
    return s.having(future_work=work, future_longest=longest, future_jobs=jobs, app_rigid=rigid)


def _gpus(state: State) -> Int:
    """[N], GPUs of each machine that gangs may be placed on."""
    if not state.withheld:
        return np.where(state.open_machines(), state.machine_size, 0)
    return np.bincount(state.gpu_machine[state.open_gpus()], minlength=len(state.machines))


def _worth(s: Snapshot) -> Float:
    """[J], reference GPUs that each gang held beyond this instant is worth."""
    rows, worth = (s.job_held > 0).nonzero()[0], np.zeros(s.jobs)
    worth[rows] = s.speeds.effective(s.job_config[rows], s.job_gpu_type[rows], s.job_held[rows], s.job_locality[rows])
    return worth


def _left_held(s: Snapshot) -> Float:
    """Seconds left at the GPUs held beyond this instant, [A], of all apps but job sets that need a schedule."""
    return np.maximum(_shared_left(s, _worth(s)), 0.0)


def _left_with(exact: Mapping[int, Seconds], s: Snapshot) -> Float:
    """``_left_held`` of all apps, those seconds of app rows put in that have a schedule."""
    left = _shared_left(s, _worth(s))
    left[list(exact)] = list(exact.values())
    return np.maximum(left, 0.0)


def _shared_left(s: Snapshot, worth: Float) -> Float:
    """Same as ``_left_held``, for a given worth of each gang, [A]."""
    effective = np.bincount(s.job_app, weights=worth, minlength=s.apps).astype(np.float64)
    # A job may grow to its maximum GPUs in place; the app's widest job represents all.
    widest = s.app_gang_max[s.job_app]
    most = worth * np.where(s.job_held > 0, widest / np.maximum(s.job_held, 1), 0.0)
    gang = np.maximum.reduceat(most, s.job_ptr[:-1]) if s.apps else np.zeros(0)
    return left_held(s, effective, gang)


def _bags(state: State, s: Snapshot) -> tuple[dict[int, Seconds], dict[int, Seconds]]:
    """Batches that hold GPUs: seconds left by app row, and forecast finishes by app, recomputed when their leases
    change.
    """
    worth = _worth(s)
    effective = np.bincount(s.job_app, weights=worth, minlength=s.apps)
    apps = state.apps
    bags = ((s.app_kind == BAG) & s.app_rigid & (effective > 0)).nonzero()[0]
    exact: dict[int, Seconds] = {}
    renewed: dict[int, Seconds] = {}
    expiring = np.bincount(s.job_app, weights=s.job_expiring, minlength=s.apps) > 0 if len(bags) else bags
    for a in bags.tolist():
        app = int(s.app_id[a])
        if expiring[a]:
            exact[a] = bag_left(s, a, worth)
            continue
        if apps.stale[app]:
            renewed[app] = s.now + bag_left(s, a, worth)
        exact[a] = renewed.get(app, float(apps.finish[app])) - s.now
    return exact, renewed


def bag_left(s: Snapshot, a: int, worth: Float) -> float:
    """Seconds that a bag needs on the gangs it holds: they finish their jobs, then take the waiting ones, longest first."""
    at = slice(s.job_ptr[a], s.job_ptr[a + 1])
    held, left, speed = s.job_held[at] > 0, s.job_left[at], worth[at]
    gangs = list(zip((left[held] / speed[held]).tolist(), speed[held].tolist()))
    return list_schedule(gangs, np.sort(left[~held])[::-1].tolist())
