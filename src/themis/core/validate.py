"""The invariants of the state, checked after every step of every test."""

from __future__ import annotations

import numpy as np

from themis.core.state import State
from themis.core.tables import Status
from themis.errors import InvariantBroken
from themis.model.units import NONE


def validate(state: State) -> None:
    """Raise InvariantBroken, with the figures, where the state contradicts itself."""
    t, a = state.jobs, state.apps
    running = np.flatnonzero(t.status[: t.size] == Status.RUNNING)
    _check(set(running.tolist()) == set(state.job_gpus), "the jobs that run and the jobs that hold GPUs differ")
    seats = state.gpu_job[state.gpu_job != NONE]
    for j in running.tolist():
        gpus = list(state.job_gpus[j])
        low, high = int(t.gpus_min[j]), int(t.gpus_max[j])
        _check(low <= len(gpus) <= high, f"job {j} holds {len(gpus)} GPUs, wants {low} to {high}")
        _check(bool((state.gpu_job[gpus, state.job_seat[j]] == j).all()), f"job {j} does not hold its GPUs {gpus}")
        _check(bool(state.machine_up[state.gpu_machine[gpus]].all()), f"job {j} holds GPUs of a failed machine")
        _check(bool(state.gpu_there[gpus].all()), f"job {j} holds GPUs that their machine has no more")
        _check(len(np.unique(state.machine_type[state.gpu_machine[gpus]])) == 1, f"job {j} mixes GPU types")
        _check(bool(a.active[t.app[j]]), f"job {j} runs but its app has ended")
        on = np.unique(state.gpu_machine[gpus])
        _check(len(on) == 1 or j not in state.one_machine, f"job {j} is one process and holds GPUs of machines {on}")
        own = state.on_machine.get(int(t.app[j]))
        _check(own is None or on.tolist() == [own], f"job {j} is not on its machine, {own}")
    both = (state.gpu_job != NONE).all(axis=1)
    for first, second in np.unique(state.gpu_job[both], axis=0).tolist():
        _check(
            state.job_gpus[first] == state.job_gpus[second], f"jobs {first} and {second} share only some of their GPUs"
        )
    _check(len(seats) == sum(len(g) for g in state.job_gpus.values()), "a seat is leased that no job holds")
    leased = np.bincount(t.app[running], weights=t.gpus[running], minlength=a.size)[: a.size]
    _check(bool((leased == a.leased[: a.size]).all()), "an app's count of leased GPUs is wrong")
    _check(bool((t.done[: t.size] <= t.total[: t.size] * (1 + 1e-9) + 1e-6).all()), "a job did more than its work")
    weight = float(a.weight[: a.size][(a.active[: a.size] == 1) & (a.held[: a.size] == 0)].sum())
    _check(abs(weight - state.weight_in_system) < 1e-6 * max(weight, 1.0), "the weight in the system is wrong")
    up = np.bincount(state.machine_type, weights=state.machine_size * state.machine_up, minlength=len(state.type_gpus))
    _check(bool((up == state.type_gpus).all()), "the count of GPUs in service is wrong")
    _check(state.count_jobs() == state.jobs_in_system, "the count of jobs in the system is wrong")


def _check(holds: bool, story: str) -> None:
    if not holds:
        raise InvariantBroken(f"{story}; this is a bug in Themis, please report it with the event log.")
