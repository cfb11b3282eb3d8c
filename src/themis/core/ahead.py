"""The column ``ahead`` of a snapshot: what is forecast of each job, for policies that plan (Shockwave §5, §6).

Of a job's regimes as far as they are known, the last one is taken to last for ever.
"""

from __future__ import annotations

import numpy as np

from themis.core.state import State
from themis.model.ahead import Ahead
from themis.model.units import Bool, Float, Int, Locality


def ahead(state: State, job_id: Int, done: Float) -> Ahead:
    """The regimes ahead of these jobs, of which ``done`` steps are done, [J]."""
    counts, share, seconds, progress, isolated = [], [], [], [], []
    may = state.allowed(job_id)
    for j, steps, types in zip(job_id.tolist(), done.tolist(), may):
        left, takes, whole = _stretches(state, j, steps, types)
        counts.append(len(left))
        share.append(left / state.jobs.total[j])
        seconds.append(takes)
        progress.append(min(steps / state.jobs.total[j], 1.0))
        isolated.append(whole)
    return Ahead(
        ptr=np.concatenate([[0], np.cumsum(counts, dtype=np.int64)]).astype(np.int64),
        share=np.concatenate([*share, np.zeros(0)]), seconds=np.concatenate([*seconds, np.zeros(0)]),
        progress=np.array(progress), isolated_s=np.array(isolated), contention=state.job_contention(job_id),
    )  # fmt: skip


def _stretches(state: State, j: int, done: float, types: Bool) -> tuple[Float, Float, float]:
    """(steps left, their seconds) of the regimes from the current one on, and seconds of the whole job."""
    total = float(state.jobs.total[j])
    known = state.regimes[j]
    steps = np.array([regime.steps for regime in known])
    begin = np.cumsum(steps) - steps
    steps = np.clip(total - begin, 0.0, steps)
    pace = np.array([step_seconds(state, j, regime.batch, types) for regime in known])
    left = np.clip(begin + steps - done, 0.0, steps)
    now = min(int(state.jobs.regime[j]), len(steps) - 1)
    return left[now:], (left * pace)[now:], float(steps @ pace)


def step_seconds(state: State, j: int, batch: int, types: Bool) -> float:
    """Seconds per step of a job alone on its most GPUs: best placement, the fastest of these types, [K]."""
    job = state.job_specs[j]
    config = state.speeds.index[job.model, batch]
    scale = state.speeds.scale[config, types, state.jobs.gpus_max[j]]
    best = float(scale.max()) / float(state.speeds.slowdown[config, Locality.SLOT])
    return float(state.speeds.serial[config]) * job.scale(batch) / best
