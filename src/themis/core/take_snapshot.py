"""Read the state out into one immutable ``Snapshot``: an indexing call per block of columns, no loop over jobs."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import partial

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
from themis.policies.placement.lease_lengths import shortened

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


def take(state: State, *, needs: frozenset[str] = frozenset()) -> Snapshot:
    """An immutable snapshot of the state at its ``now``; leases that end at this instant count as free.

    ``needs`` : optional columns that the policy asks for.
    """
    return take_renewing(state, needs=needs)[0]


def take_renewing(
    state: State,
    *,
    needs: frozenset[str] = frozenset(),
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
    table = state.jobs
    job_id = state.present() if present is None else present
    later, room = np.zeros(0, dtype=np.int64), None
    if state.quotas or state.at_once or state.delayed:
        why, room = quota_limits.blocked(state, job_id)
        later, job_id, room = job_id[why == quota_limits.AT_ONCE], job_id[why == 0], room[why == 0]
    f: dict[str, Float] = {name: getattr(table, name).take(job_id) for name in _JOB_FLOATS}
    i: dict[str, Int] = {name: getattr(table, name).take(job_id) for name in _JOB_INTS}
    running = i["status"] == RUNNING
    held_on = running & (f["until"] > state.now + EPS)
    job_held = np.where(held_on, i["gpus"], 0)
    if room is not None:
        i["gpus_max"] = np.maximum(np.minimum(i["gpus_max"] - job_held, room) + job_held, i["gpus_min"])

    # Ids of jobs rise with those of their apps.
    first = np.ones(len(job_id), dtype=bool)
    np.not_equal(i["app"][1:], i["app"][:-1], out=first[1:])
    ptr = np.append(first.nonzero()[0], len(job_id))
    app_id, job_app = i["app"][ptr[:-1]], first.cumsum() - 1
    apps = state.apps
    af = dict(zip(apps.floats, np.take(apps.f, app_id, axis=1)))
    ai = dict(zip(apps.ints, np.take(apps.i, app_id, axis=1)))
    contention, capacity = state.averages_of(af)
    gpu_free = free_gpus(state, state.now) if free is None else free
    done = _done(state, f)
    phase, future = np.take(state.phase, app_id, axis=1), np.take(state.future, app_id, axis=1)

    snapshot = Snapshot.of(
        version=state.version,
        round=state.round,
        seed=state.settings.seed,
        now=state.now,
        origin=state.origin,
        lease_s=state.settings.lease_s,
        full_lease_s=state.settings.lease_s,
        shortest_lease_s=state.settings.shortest_lease_s,
        step_s=state.settings.step_s,
        tick_s=state.settings.tick_s,
        restart_s=state.settings.container_s,
        gpu_types=tuple(state.gpu_types),
        users=tuple(state.users),
        speeds=state.speeds,
        machine_gpus=_gpus(state),
        machine_type=state.machine_type,
        machine_rack=state.machine_rack,
        machine_slot=state.machine_slot,
        free=np.bincount(state.gpu_machine[gpu_free], minlength=len(state.machines)),
        gpu_machine=state.gpu_machine,
        gpu_slot=state.gpu_slot,
        gpu_free=gpu_free,
        gpu_job=state.gpu_job.copy(),
        app_id=app_id,
        app_user=ai["user"],
        app_kind=ai["kind"],
        app_weight=af["weight"],
        app_arrival=af["arrival"],
        app_contention=contention,
        app_capacity=capacity,
        app_speed=state.config_speed[ai["config"]],
        app_attained=af["attained"] + ai["leased"] * (state.now - af["since"]),
        app_held=np.bincount(job_app, weights=job_held, minlength=len(app_id)).astype(np.int64),
        app_gang_min=ai["gang_min"],
        app_gang_max=ai["gang_max"],
        app_rigid=ai["rigid"].astype(bool),
        app_budget=af["budget"],
        app_demand=ai["demand"],
        app_longest=af["longest_s"],
        app_deadline=af["deadline"],
        app_away=af["away"],
        phase_work=phase[0],
        phase_longest=phase[1],
        phase_jobs=phase[2].astype(np.int64),
        phase_bracket=np.take(state.phase_bracket, app_id, axis=0),
        future_work=future[0],
        future_longest=future[1],
        future_jobs=future[2].astype(np.int64),
        job_ptr=ptr,
        job_id=job_id,
        job_app=job_app,
        job_bracket=i["bracket"],
        job_config=i["config"],
        job_gpus_min=i["gpus_min"],
        job_gpus_max=i["gpus_max"],
        job_allowed=state.allowed(job_id),
        job_left=not_nothing((f["regime_end"] - done) * f["serial"] + f["later"], done * f["serial"]),
        job_attained=f["attained"] + i["gpus"] * (state.now - f["since"]),
        job_held=job_held,
        job_expiring=np.where(running & ~held_on, i["gpus"], 0),
        job_attempt=i["attempt"],
        job_since=f["since"],
        job_until=f["until"],
        job_locality=i["locality"],
        job_gpu_type=i["gpu_type"],
        job_done=done,
        job_serial=f["serial"],
        job_order=i["order"],
        job_loss_a=f["loss_a"],
        job_loss_b=f["loss_b"],
        received=state.received_now(job_id),
        between=state.between,
    )
    if state.between != "apps":
        received, entitled, rate = fairness_unit.balance(state, app_id)
        snapshot = snapshot.filled(unit_received=received, unit_entitled=entitled, unit_rate=rate)
    if state.settings.shortest_lease_s and not state.settings.step_s:
        snapshot.filled(lease_s=shortened(snapshot, state.settings.shortest_lease_s))
    if len(later):
        snapshot = _with_later(state, snapshot, later)
    expected = forecast_jobs(state, job_id, done, memo.forecasts) if "ahead" in needs else None
    finishes = reference.finishes(state, app_id, memo.finishes) if "reference" in needs else None
    snapshot.filled(ahead=expected, reference=finishes, horizon=None if finishes is None else state.horizon)
    if finishes is not None:
        left, alone, whole = app_needs.left(state, app_id)
        snapshot.filled(need_left=left, need_alone=alone, need_whole=whole)
    if "job_seconds" in needs:
        left = snapshot.job_left
        snapshot.filled(job_seconds=gang_times.seconds_left(state, job_id, done, left, memo.times))
    service = partial(_rising, state.finished_service)
    if ((snapshot.app_kind == BAG) & snapshot.app_rigid & (snapshot.app_held > 0)).any():
        exact, renewed = _bags(state, snapshot)
        return snapshot.deferring(app_left_held=partial(_left_with, exact), finished_service=service), renewed
    return snapshot.deferring(app_left_held=_left_held, finished_service=service), {}


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


def _done(state: State, f: dict[str, Float]) -> Float:
    """Steps done by now, extrapolated up to the regime's end."""
    out: Float = np.minimum(f["done"] + f["rate"] * (state.now - f["synced"]), f["regime_end"])
    return out


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
