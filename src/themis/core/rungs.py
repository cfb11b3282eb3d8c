"""Sweeps in rungs: when all jobs of a bracket's rung have reached its end, the best continue and the others end."""

from __future__ import annotations

from themis.core import needs, reference, regimes
from themis.core.job_lifecycle import END, JobChange, move
from themis.core.phases import phase_column
from themis.core.state import State
from themis.core.tables import Status
from themis.model.units import Int
from themis.model.workload import Halving, brackets_of
from themis.policies.tuning.halving import survivors


def advance(state: State, a: int) -> list[int]:
    """Advance every bracket of an app whose rung is finished; returns the jobs that end with it."""
    ended: list[int] = []
    for b, bracket in enumerate(brackets_of(state.app_specs[a].tuner)):
        jobs = state.app_jobs(a)
        jobs = jobs[state.jobs.bracket[jobs] == b]
        status = state.jobs.status[jobs]
        working = (status <= Status.RUNNING) | (status == Status.HELD)
        if not working.any() and (status == Status.PAUSED).any():
            ended += _next_rung(state, a, bracket, jobs[status == Status.PAUSED])
    return ended


def _next_rung(state: State, a: int, bracket: Halving, jobs: Int) -> list[int]:
    t, b, rung = state.jobs, int(state.jobs.bracket[jobs[0]]), int(state.jobs.rung[jobs[0]]) + 1
    on = survivors(t.loss[jobs], bracket.rungs[rung].jobs)
    target = Halving(rungs=bracket.rungs[: rung + 1]).steps
    for j, promoted in zip(jobs.tolist(), on.tolist()):
        move(t, j, JobChange.PROMOTE if promoted else END, state.now)
    t.rung[jobs[on]] = rung
    for j in jobs[on].tolist():
        regimes.set_target(state, j, target)
    state.future[:, a, phase_column(state.app_specs[a], b, rung)] = 0.0
    reference.advance(state)
    needs.fill(state, a)
    ended: list[int] = jobs[~on].tolist()
    return ended
