"""The integer program over the choices that may be part of the best plan: few are left once the prices are known."""

from __future__ import annotations

import math

import numpy as np

from themis.model.units import Bool, Int, Seconds
from themis.optimize.programs import MixedIntegerProgram, solve
from themis.optimize.rounds.window import Window


def best_of_choices(
    window: Window,
    choice: Bool,
    floor: Int,
    n: Int,
    *,
    gap: float,
    nodes: int,
    seconds: Seconds = math.inf,
    seed: int = 0,
) -> tuple[Int, float]:
    """The best plan of these choices, and a bound on all plans that are made of them.

    Parameters
    ----------
    choice : [J, C+1]; ``floor`` : [J], no job gets a lower choice than this. ``n`` : a plan to begin from.
    gap : absolute, at which to stop. nodes, seconds : most branch-and-bound nodes, and time. seed : of HiGHS' own choices.

    Raises
    ------
    NotSolved : HiGHS finds no plan within its limits.
    """
    w = window
    choice = choice.copy()
    choice[np.arange(w.jobs), n] = True
    job, rounds = np.nonzero(choice)
    columns, first = len(job), np.flatnonzero(np.diff(job, prepend=-1))
    left = w.left[job, rounds]
    least = float(np.minimum.reduceat(left, first).max())
    long = np.flatnonzero(np.maximum.reduceat(left, first) > least) if w.pull > 0 else np.zeros(0, dtype=np.int64)
    row_of = np.full(w.jobs, -1)
    row_of[long] = np.arange(len(long))
    own = np.flatnonzero(row_of[job] >= 0)
    every, jobs, rows = np.arange(columns), w.jobs, w.jobs + 2 + len(long)
    # One choice a job; capacity; H at least all work left over the GPUs; H at least what each long job has left.
    row = np.concatenate(
        [
            job,
            np.full(columns, jobs),
            np.full(columns, jobs + 1),
            jobs + 2 + row_of[job[own]],
            np.arange(jobs + 1, rows),
        ]
    )
    column = np.concatenate([every, every, every, own, np.full(1 + len(long), columns)])
    value = np.concatenate(
        [
            np.ones(columns),
            w.gpus[job] * w.spent[job, rounds],
            -w.gpus[job] * left / w.capacity,
            -left[own],
            np.ones(1 + len(long)),
        ]
    )
    order = np.lexsort((column, row))
    begin = np.append(n[job] == rounds, w.makespan(n)).astype(np.float64)
    solution = solve(
        MixedIntegerProgram(
            gain=np.append(w.value[job, rounds], -w.pull),
            low=np.append(np.zeros(columns), least),
            high=np.append(np.ones(columns), np.inf),
            whole=np.append(np.ones(columns, dtype=bool), False),
            row_low=np.concatenate([np.ones(jobs), [-np.inf], np.zeros(1 + len(long))]),
            row_high=np.concatenate([np.ones(jobs), [float(w.room)], np.full(1 + len(long), np.inf)]),
            start=np.concatenate([[0], np.cumsum(np.bincount(row, minlength=rows))]),
            column=column[order],
            value=value[order],
        ),
        gap=gap,
        nodes=nodes,
        accept=np.inf,
        start=begin,
        seconds=seconds,
        seed=seed,
    )
    out = floor.copy()
    picked = solution.x[:columns] > 0.5
    out[job[picked]] = rounds[picked]
    return out, solution.bound
