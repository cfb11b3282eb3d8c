"""Seconds that each job has left by GPU type and gang size: the column ``job_seconds``, for policies that choose gang sizes.

Each regime that is known counts at its own speed. A job that reports its goodput runs on at most twice the GPUs that it ran on so
far, one that is one process on at most those of a machine. A gang is taken to be on the narrowest place that the machines in
service have.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from themis.core.goodput import most_gpus
from themis.core.needs import reach_in_service
from themis.core.state import State
from themis.model.speed import Speeds
from themis.model.units import Float, Int, Locality
from themis.model.workload import Job, Regime

LEAST_S = 1e-3
"""No job that is not finished has less time left."""


@dataclass(slots=True)
class Kept:
    """Tables of regimes of earlier calls, as of these speeds and places; may be dropped at any moment."""

    speeds: Speeds | None = None
    places: tuple[tuple[int, ...], ...] = ()
    tables: dict[tuple[int, float], tuple[tuple[Regime, ...], Float, Float]] = field(default_factory=dict)


def seconds_left(state: State, job_id: Int, done: Float, left: Float, kept: Kept) -> Float:
    """[J, K, S + 1], seconds to each job's target; infinite where it cannot run, and on 0 GPUs.

    Parameters
    ----------
    done : [J], steps. ``left`` : [J], reference GPU-seconds. ``kept`` : renewed here.
    """
    t, speeds = state.jobs, state.speeds
    reach = reach_in_service(state)
    places = tuple(reach.get(kind, (0, 0, 0, 0)) for kind in state.gpu_types)
    if kept.speeds is not speeds or kept.places != places:
        kept.speeds, kept.places, kept.tables = speeds, places, {}
    sizes = np.arange(speeds.scale.shape[2])
    span = np.stack([np.searchsorted(np.array(most[:3]), sizes) for most in places])
    out = np.empty((len(job_id), len(places), len(sizes)))
    rows = t.config[job_id]
    with np.errstate(divide="ignore", invalid="ignore"):
        worth = speeds.scale[rows] / speeds.slowdown[rows[:, None, None], span[None]]
        out[:] = left[:, None, None] / worth
        for i in np.flatnonzero(t.later[job_id] > 0).tolist():
            j = int(job_id[i])
            if t.target[j] < t.total[j]:
                continue  # a rung: what follows it is no work of the job yet
            each, after = _table(state, state.job_specs[j], state.regimes[j], span, kept)
            r = int(t.regime[j])
            out[i] = (float(t.regime_end[j]) - done[i]) * each[r] + after[r + 1]
    for i, j in enumerate(job_id.tolist()):
        if state.job_specs[j].adaptive is not None:
            out[i, :, most_gpus(state, j) + 1 :] = np.inf
        if j in state.one_machine:
            for k, most in enumerate(places):
                out[i, k, most[Locality.MACHINE] + 1 :] = np.inf
    out[:, :, 0] = np.inf
    return np.maximum(np.where(np.isnan(out), np.inf, out), LEAST_S)


def _table(state: State, job: Job, known: tuple[Regime, ...], span: Int, kept: Kept) -> tuple[Float, Float]:
    """[R, K, S + 1] seconds per step of each regime, and [R + 1, K, S + 1] of all steps from it on."""
    key = id(known), job.step_scale
    if (found := kept.tables.get(key)) is None:
        speeds = state.speeds
        rows = np.array([speeds.index[job.model, regime.batch] for regime in known])
        steps = np.array([regime.steps for regime in known])
        serial = speeds.serial[rows] * np.array([job.scale(regime.batch) for regime in known])
        each = serial[:, None, None] * speeds.slowdown[rows][:, span] / speeds.scale[rows]
        after = np.zeros((len(rows) + 1, *each.shape[1:]))
        after[:-1] = np.cumsum((steps[:, None, None] * each)[::-1], axis=0)[::-1]
        # The regimes are kept, so that no others get their identity.
        found = kept.tables[key] = known, each, after
    return found[1], found[2]
