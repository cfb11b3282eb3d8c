"""Jobs' progress and future speeds: the known regimes of a job, the last of which is assumed to last for ever.

The scheduler learns of batch sizes through events alone. Every column that looks ahead (work left, targets, budgets)
follows this belief, which is the reactive one; what is expected beyond it is the business of ``core.forecasting``.
"""

from __future__ import annotations

import numpy as np

from themis.core import phases
from themis.core.state import State
from themis.fairness.forecasts.history import learn
from themis.model.units import NONE, Float, Int, Locality, Seconds
from themis.model.workload import Job, Regime, brackets_of

SAME = 1e-6
"""Epochs below which two points of a job are one."""


def serial(state: State, job: Job, batch: int) -> Seconds:
    """Seconds per step (of a dynamic job: per epoch) on one reference GPU."""
    return float(state.speeds.serial[state.speeds.index[job.model, batch]]) * job.scale(batch)


def set_target(state: State, j: int, target: float) -> None:
    """The job now works towards ``target`` steps; its regime columns follow."""
    state.jobs.target[j] = min(target, state.jobs.total[j])
    _set_regime(state, j)


def _set_regime(state: State, j: int) -> None:
    t, job, known = state.jobs.one, state.job_specs[j], state.regimes[j]
    if len(known) == 1:
        # Most jobs: no arrays of one.
        only = known[0]
        t.regime[j], t.regime_end[j], t.later[j] = 0, min(only.steps, t.target[j]), 0.0
        t.serial[j], t.config[j] = serial(state, job, only.batch), state.speeds.index[job.model, only.batch]
        return
    ends = np.cumsum([r.steps for r in known])
    r = min(int(np.searchsorted(ends, t.done[j] + 1e-9, side="right")), len(ends) - 1)
    serials = [serial(state, job, r.batch) for r in known]
    begins = np.concatenate([[0.0], ends[:-1]])
    beyond = np.clip(np.minimum(ends, t.target[j]) - begins, 0, None)
    t.regime[j], t.regime_end[j] = r, min(float(ends[r]), float(t.target[j]))
    t.serial[j], t.later[j] = serials[r], float((beyond * serials)[r + 1 :].sum())
    t.config[j] = state.speeds.index[job.model, known[r].batch]


def new_regime(state: State, j: int) -> None:
    """The job trains at another speed from now on."""
    _set_regime(state, j)
    state.rounds.version = NONE  # the new regime has other rates
    if state.jobs.rate[j] > 0:
        state.start(j)


def report(state: State, j: int, steps: float) -> None:
    """Replace the extrapolated steps by those that the executor reports."""
    t = state.jobs.one
    t.done[j], t.synced[j] = steps, state.now
    known = len(state.regimes[j])
    if known == 1 or rolled_back(state, j, steps):
        return
    if steps >= t.regime_end[j] - 1e-9 and t.regime[j] < known - 1:
        new_regime(state, j)


def batch_changed(state: State, j: int, steps: float, batch: int) -> bool:
    """A dynamic job trains at this batch size from ``steps`` on; whether that is news."""
    report(state, j, steps)
    job, known = state.job_specs[j], state.regimes[j]
    if job.dynamic is None or not job.dynamic.hidden:
        return False
    batch = _with_speed(state, job, batch)
    if batch == known[-1].batch:
        return False
    before = job.steps - known[-1].steps
    if steps - before <= SAME:
        # The regime never was: a job may change its batch size before its first epoch, or twice in one.
        kept, begin = known[:-1], before
    else:
        kept, begin = (*known[:-1], Regime(steps=steps - before, batch=known[-1].batch)), steps
    if kept and kept[-1].batch == batch:
        begin, kept = begin - kept[-1].steps, kept[:-1]
    if job.steps - begin > SAME:
        state.regimes[j] = (*kept, Regime(steps=job.steps - begin, batch=batch))
        renew(state, j)
    return True


def rolled_back(state: State, j: int, steps: float) -> bool:
    """A crash took a job back to before its last changes of batch size: they have not happened. Whether that is so."""
    job, known = state.job_specs[j], state.regimes[j]
    if len(known) == 1 or job.dynamic is None or not job.dynamic.hidden:
        return False
    begins = np.cumsum([0.0, *(r.steps for r in known[:-1])])
    there = max(int((begins <= steps + SAME).sum()), 1)
    if there == len(known):
        return False
    state.regimes[j] = (*known[: there - 1], Regime(steps=job.steps - begins[there - 1], batch=known[there - 1].batch))
    renew(state, j)
    return True


def remember(state: State, j: int) -> None:
    """A job completed: how often it changed teaches what to expect of the next ones."""
    job = state.job_specs[j]
    if job.dynamic is not None and job.dynamic.hidden and len(job.dynamic.batches) > 1:
        known = state.regimes[j]
        learn(state.history, str(job.dynamic.mode), job.model, known[0].batch, len(known) - 1)


def isolated_s(state: State, j: int, steps: float) -> Seconds:
    """Seconds of a job's first steps alone on its most GPUs with the best placement, of the fastest type in service."""
    job, known, begin, out = state.job_specs[j], state.regimes[j], 0.0, 0.0
    for regime in known:
        row = state.speeds.index[job.model, regime.batch]
        # A job that changes its batch size may use types by all of them, and so it is looked up anew.
        key = "alone", row, int(state.jobs.config[j]), job.gpus_min, job.gpus_max, job.gpu_types
        speed = None if job.dynamic is not None else state.best_gangs.get(key)
        if speed is None:
            speed = state.best_gangs[key] = float(rows_alone(state, np.array([row]), np.array([j]))[0])
        here = min(max(steps - begin, 0.0), regime.steps)
        out += here * (float(state.speeds.serial[row]) * job.scale(regime.batch)) / speed
        begin += regime.steps
    return out


def rows_alone(state: State, rows: Int, jobs: Int) -> Float:
    """Reference GPUs that each job's most GPUs are worth with this row of the speed table, best type and placement; > 0.

    The best of the types in service; of all types that it may use while none of them is.
    """
    there = np.bincount(state.machine_type, weights=state.machine_up, minlength=len(state.gpu_types)) > 0
    may = state.allowed(jobs)
    may &= there | ~(may & there).any(axis=1, keepdims=True)
    best = (state.speeds.scale[rows, :, state.jobs.gpus_max[jobs]] * may).max(axis=1, initial=0.0)
    out: Float = np.maximum(best / state.speeds.slowdown[rows, Locality.SLOT], 1e-12)
    return out


def renew(state: State, j: int) -> None:
    """Recompute the job's speed and forecast after a change."""
    new_regime(state, j)
    a = int(state.jobs.app[j])
    if not brackets_of(state.app_specs[a].tuner):
        phases.revise(state, a)
    state.apps.stale[a] = 1


def _with_speed(state: State, job: Job, batch: int) -> int:
    """The batch size itself, or the nearest declared one if the model's speed at it is unknown."""
    assert job.dynamic is not None
    if (job.model, batch) in state.speeds.index:
        return batch
    profile = state.book.get(job.model)
    if any(profile.curve(gpu_type, batch) for gpu_type in state.gpu_types):
        state.learn([(job.model, batch)])
        return batch
    return min(job.dynamic.batches, key=lambda known: abs(known - batch))
