"""The phases of apps, their budgets and most GPUs: what T_id and the forecast of T_sh are computed from.

A bag is one phase, a sweep in rungs has one a rung, bracket after bracket. An app under curve stopping is one phase
too: all its jobs to their end, the most optimistic forecast of each; a job that is stopped counts with what it did.

Functions over the state's tables; they decide nothing.
"""

from __future__ import annotations

import numpy as np

from themis.core import needs, reference
from themis.core.state import State
from themis.core.tables import Status
from themis.model.units import Float, Int
from themis.model.workload import App, Halving, brackets_of


def plan(state: State, a: int, app: App, rows: slice) -> None:
    """Fill an app's phases as it arrives: (GPU-seconds at the gang's best size, longest job, jobs) of each.

    Future rungs are counted at the median job's speed of their bracket (Themis §4.3.3). The most GPUs that the app can
    ever use (app_demand_max) are those of its widest rung; of Hyperband, whose brackets run concurrently and are
    all widest at first, of the widest rungs together.
    """
    brackets = brackets_of(app.tuner)
    phases = max(sum(len(bracket.rungs) for bracket in brackets), 1)
    _grow(state, a + 1, phases)
    work = state.work_left(rows)
    high = state.jobs.gpus_max[rows]
    if not brackets:
        needs.fill(state, a)
        _one_phase(state, a, _cost(state, rows, work))
        state.apps.demand[a] = int(np.sort(high)[::-1][: app.at_once or None].sum())
        return
    cost, first, p = _cost(state, rows, work), rows.start, 0
    for b, bracket in enumerate(brackets):
        members = slice(first, first + bracket.rungs[0].jobs)
        here = slice(p, p + len(bracket.rungs))
        own = cost[members.start - rows.start : members.stop - rows.start]
        state.phase[:, a, here], state.future[:, a, here] = _rungs(state, a, bracket, members, own)
        state.phase_bracket[a, here] = b
        state.jobs.bracket[members] = b
        first, p = members.stop, here.stop
    widest = sum(max(rung.jobs for rung in bracket.rungs) for bracket in brackets)
    state.apps.budget[a] = state.phase[0, a, :p].sum()
    state.apps.demand[a] = widest * int(high.max())
    state.apps.longest_s[a] = 0.0
    needs.fill(state, a)


def revise(state: State, a: int) -> None:
    """Revise the forecast of an app whose jobs may end early or change speed: ended jobs count with their work done.

    Others count in full, dynamic ones at their present speed.

    B = attained + forecast GPU-seconds (Themis §4.3.2); once all jobs have ended, it is the realised work.
    """
    reference.advance(state)
    rows = state.app_jobs(a)
    at = slice(int(rows[0]), int(rows[-1]) + 1)
    ended = state.jobs.status[at] == Status.ENDED
    steps = np.where(ended, state.jobs.done[at], state.jobs.total[at])
    work = np.array(
        [sum(w for _, w in needs.stretches(state, j, 0.0, upto)) for j, upto in zip(rows.tolist(), steps.tolist())]
    )
    _one_phase(state, a, _cost(state, at, work))
    needs.fill(state, a)


def phase_column(app: App, bracket: int, rung: int) -> int:
    """Index of a rung among its app's phases."""
    return sum(len(before.rungs) for before in brackets_of(app.tuner)[:bracket]) + rung


def _one_phase(state: State, a: int, cost: Float) -> None:
    first = int(state.apps.first_job[a])
    high, whole = state.jobs.gpus_max[first : first + len(cost)], cost.sum()
    state.phase[:, a, 0] = whole, (cost * narrower(state, a, high)).max(), len(cost)
    state.apps.budget[a] = whole
    state.apps.longest_s[a] = (cost / high).max()


def narrower(state: State, a: Int | int, gpus_max: Float | Int) -> Float:
    """Ratio of the widest gang of the app to these jobs' own: a job alone takes that much longer than on the widest."""
    out: Float = state.apps.gang_max[a] / gpus_max
    return out


def _rungs(state: State, a: int, bracket: Halving, members: slice, cost: Float) -> tuple[Float, Float]:
    """All phases of a bracket, and the future ones at the median job's speed, [3, P] each."""
    t = state.jobs
    table, future = np.zeros((3, len(bracket.rungs))), np.zeros((3, len(bracket.rungs)))
    wider = narrower(state, a, t.gpus_max[members])
    table[:, 0] = cost.sum(), (cost * wider).max(), len(cost)
    usual = float(np.median(wider))
    serial, best = float(np.median(t.serial[members])), float(np.median(_best_size_cost(state, members)))
    for p, rung in enumerate(bracket.rungs[1:], start=1):
        each = serial * rung.steps
        future[:, p] = each * rung.jobs, each * usual, rung.jobs
        table[:, p] = future[:, p] * best
        table[2, p] = rung.jobs
    return table, future


def _cost(state: State, rows: slice, work: Float) -> Float:
    """GPU-seconds that this work takes at each job's most GPUs, best placement."""
    return work * _best_size_cost(state, rows)


def _best_size_cost(state: State, rows: slice) -> Float:
    """GPU-seconds per reference GPU-second at each job's most GPUs: more than 1 where speed-up is not linear.

    Against one GPU of the same type, the one on which the gang is fastest: T_id itself counts how fast types are.
    """
    # T_id counts a job at its maximum GPUs, with their real cost.
    high, scale = state.jobs.gpus_max[rows], state.speeds.scale[state.jobs.config[rows]]
    gang = scale[np.arange(len(high)), :, high]
    best = np.arange(len(high)), gang.argmax(axis=1)
    out: Float = high * scale[..., 1][best] / gang[best]
    return out


def _grow(state: State, apps: int, phases: int) -> None:
    _, rows, width = state.phase.shape
    grow_rows, grow_width = rows if apps > rows else 0, max(phases - width, 0)
    if grow_rows or grow_width:
        pad = ((0, grow_rows), (0, grow_width))
        tables = (state.phase, state.future, state.need)
        state.phase, state.future, state.need = (np.pad(table, ((0, 0), *pad)) for table in tables)
        state.phase_bracket = _padded(state.phase_bracket, pad)


def _padded(table: Int, pad: tuple[tuple[int, int], tuple[int, int]]) -> Int:
    out: Int = np.pad(table, pad)
    return out
