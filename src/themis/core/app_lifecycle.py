"""An app's life cycle in the tables: arrival, hold and release by its user, end.

Functions over the state's tables, which only the scheduler calls in a running system.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import islice

import numpy as np

from themis.core import fairness_unit, needs, phases, reference, regimes
from themis.core.state import State
from themis.core.tables import ENDED
from themis.fairness.finish_time import t_id_exact, t_id_paper
from themis.fairness.fluid import Scaling
from themis.model.cluster import UNNAMED
from themis.model.events import AppFinished
from themis.model.snapshot import Kind
from themis.model.speed import ANY_TYPE
from themis.model.units import GpuSeconds, Locality, Seconds
from themis.model.workload import App, Job, brackets_of


def add_app(state: State, app: App, weight: float, *, unknown: bool = False) -> int:
    """Append an app and its jobs, all waiting; returns its id. ``unknown`` : its work was not given."""
    if not state.app_specs:
        state.origin = state.now
    reference.advance(state)
    _learn(state, app)
    state.restricted |= any(job.gpu_types for job in app.jobs)
    state.changing |= any(job.dynamic and len(job.dynamic.batches) > 1 for job in app.jobs)
    first = [(b.rungs[0].steps, b.steps) for b in brackets_of(app.tuner) for _ in range(b.rungs[0].jobs)]
    ends = first or [(job.steps, job.steps) for job in app.jobs]
    a = int(state.apps.extend(1).start)
    rows = state.jobs.extend(len(app.jobs))
    state.app_specs.append(app)
    state.job_specs.extend(app.jobs)
    state.regimes.extend(job.expected_regimes for job in app.jobs)
    _grow_round_columns(state)
    for j, job, (target, total) in zip(range(rows.start, rows.stop), app.jobs, ends):
        _fill_job(state, j, a, job, target, min(total, job.steps))
    _fill_app(state, a, app, weight, rows)
    state.apps.unknown[a] = unknown
    phases.plan(state, a, app, rows)
    state.weight_in_system += weight
    if state.between != "apps":
        fairness_unit.joined(state, a)
        fairness_unit.reweigh(state)
    state.jobs_in_system += len(app.jobs)
    reference.enter(state, a)
    return a


def _fill_app(state: State, a: int, app: App, weight: float, rows: slice) -> None:
    t, low, high = state.apps, state.jobs.gpus_min[rows], state.jobs.gpus_max[rows]
    rungs = bool(brackets_of(app.tuner))
    single = len(app.jobs) == 1 and not rungs
    t.arrival[a], t.weight[a], t.since[a] = state.now, weight, state.now
    t.given[a], t.own[a] = weight, app.weight
    t.contention_0[a], t.capacity_0[a] = state.weight_integral, state.capacity_integral
    t.jobs_0[a] = state.jobs_integral
    t.reference[a] = np.nan
    t.finish[a], t.deadline[a] = np.nan, np.inf if app.deadline is None else app.deadline
    t.user[a] = state.users.setdefault(app.user, len(state.users))
    t.kind[a] = Kind.HALVING if rungs else Kind.SINGLE if single else Kind.BAG
    t.gang_min[a], t.gang_max[a] = low.min(), high.max()
    t.rigid[a] = bool((low == high).all() and low.min() == low.max())
    if app.at_once:
        state.at_once[a] = app.at_once
    if app.machine and (of_name := [n for n, machine in enumerate(state.machines) if machine.name == app.machine]):
        state.on_machine[a] = of_name[0]
    t.first_job[a], t.jobs[a], t.active[a], t.config[a] = rows.start, len(app.jobs), 1, state.jobs.config[rows.start]


def _fill_job(state: State, j: int, a: int, job: Job, target: float, total: float) -> None:
    t = state.jobs
    t.app[j] = a
    t.gpus_min[j], t.gpus_max[j], t.total[j] = job.gpus_min, job.gpus_max, total
    t.loss_a[j], t.loss_b[j] = job.loss.a, job.loss.b
    t.synced[j] = t.since[j] = state.now
    t.until[j], t.locality[j], t.gpu_type[j] = np.inf, Locality.SLOT, 0
    if job.one_machine and job.gpus_max > 1:
        state.one_machine.add(j)
    regimes.set_target(state, j, target)


def _grow_round_columns(state: State) -> None:
    while len(state.received) < state.jobs.size:
        state.received = np.concatenate([state.received, np.zeros_like(state.received)])


def _learn(state: State, app: App) -> None:
    """Tabulate speeds that this app is the first to need, and know the types of GPUs that it waits for."""
    for job in {(job.configs, job.gpu_types): job for job in app.jobs}.values():
        for gpu_type in awaited_types(state, job):
            state.add_type(gpu_type)
    state.learn((config for job in app.jobs for config in job.configs), max(job.gpus_max for job in app.jobs))


def awaited_types(state: State, job: Job) -> tuple[str, ...]:
    """Types that a job may use and runs on, if it runs on none of those known: the first of them is enough; else none."""
    profiles = [(state.book.get(model), batch) for model, batch in job.configs]

    def runs(kinds: Iterable[str]) -> Iterator[str]:
        return (kind for kind in kinds if all(profile.curve(kind, batch) for profile, batch in profiles))

    if next(runs(kind for kind in state.gpu_types if not job.gpu_types or kind in job.gpu_types), None):
        return ()
    named = dict.fromkeys(kind for profile, _ in profiles for kind, _ in profile.curves if kind != ANY_TYPE)
    return tuple(islice(runs(job.gpu_types or (*named, UNNAMED)), 1))


def finish_app(state: State, a: int, outcome: str) -> AppFinished:
    """Close an app: its figures over its whole life, in both forms of rho."""
    t = state.apps
    state.sync_app(a)
    if outcome != "completed":
        reference.advance(state)
        reference.leave(state, a)
    t.active[a], t.ended[a] = 0, state.now
    state.ended_with(t.attained.item(a))
    if state.between != "apps":
        fairness_unit.left(state, a)
    _leave(state, a)
    state.at_once.pop(a, None)
    state.on_machine.pop(a, None)
    for j in state.app_jobs(a).tolist() if state.goodput else ():
        state.goodput.pop(j, None)
    state.one_machine.difference_update(state.app_jobs(a).tolist())
    jct = state.now - float(t.arrival[a])
    life = jct - float(t.away[a])
    one = slice(a, a + 1)  # a view, where a list of one row would be a copy of each column
    contention, capacity = (float(x[0]) for x in state.averages(one))
    # Where no GPU is in service the reference's speed stands in, so that the app can be ended.
    speed = float(state.config_speed[t.config[a]]) or 1.0
    paper = t_id_paper(
        t.budget[one], t.longest_s[one], t.demand[one].astype(float), np.array([capacity]), np.array([contention])
    )
    exact = t_id_exact(
        state.phase[0, one],
        state.phase[1, one],
        t.gang_max[one].astype(float),
        np.array([capacity]),
        np.array([contention]),
        state.phase_bracket[one],
    )
    t_paper, t_exact = float(paper[0]) / speed, float(exact[0]) / speed
    needed, curve = _needed(state, a, speed)
    return AppFinished(
        app=a,
        outcome=outcome,
        jct=jct,
        rho_paper=_over(life, t_paper),
        rho_exact=_over(life, t_exact),
        t_id_paper=t_paper,
        t_id_exact=t_exact,
        contention=contention,
        capacity=capacity,
        gpu_seconds=float(t.attained[a]),
        needed=needed,
        scaling=curve,
        alone=needs.alone_s(state, a) if outcome == "completed" else 0.0,
    )


def _needed(state: State, a: int, speed: float) -> tuple[tuple[tuple[GpuSeconds, float], ...], Scaling]:
    """Need of the app, and its scaling, as ``AppFinished`` has them."""
    jobs = state.app_jobs(a)
    curve = needs.scaling(state, int(jobs[0])) if len(jobs) == 1 else ()
    found = reference.needs(state, a, speed)
    if not curve or len(found) != 1:
        return found, ()
    # At full speed it takes as long as its best gangs take.
    (work, most), widest = found[0], curve[-1][0]
    return ((work / most * widest, widest),), curve


def _over(life: Seconds, ideal: Seconds) -> float:
    """rho; 1 without any work done, because there is no ideal to compare with."""
    return life / ideal if ideal > 0 else 1.0


def set_aside(state: State, a: int) -> None:
    """The app's user holds it: its clock stops, and it does not contend with other apps."""
    t = state.apps
    reference.advance(state)
    reference.leave(state, a)
    t.held[a], t.held_at[a] = 1, state.now
    _turn_integrals(state, a)
    _leave(state, a)
    state.jobs_in_system -= _unfinished(state, a)


def take_back(state: State, a: int) -> None:
    """The app takes part again."""
    t = state.apps
    t.held[a] = 0
    reference.advance(state)
    reference.enter(state, a)
    t.away[a] += state.now - t.held_at[a]
    _turn_integrals(state, a)
    state.weight_in_system += float(t.weight[a])
    if state.between != "apps":
        fairness_unit.reweigh(state)
    state.jobs_in_system += _unfinished(state, a)


def _leave(state: State, a: int) -> None:
    """The app contends no more."""
    t = state.apps
    state.weight_in_system -= float(t.weight[a])
    if t.held[state.active_apps()].all():
        state.weight_in_system = 0.0
    if state.between != "apps":
        fairness_unit.reweigh(state)


def _turn_integrals(state: State, a: int) -> None:
    """Convert time integrals between absolute values and those since the app's arrival."""
    t = state.apps
    t.contention_0[a] = state.weight_integral - t.contention_0[a]
    t.capacity_0[a] = state.capacity_integral - t.capacity_0[a]
    t.jobs_0[a] = state.jobs_integral - t.jobs_0[a]


def _unfinished(state: State, a: int) -> int:
    return int((state.jobs.status[state.app_jobs(a)] != ENDED).sum())
