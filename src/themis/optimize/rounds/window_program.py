"""Integer programs over the choices that may be part of the best plan: few are left once the prices are known."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from themis.model.units import Bool, Float, Int, Seconds
from themis.optimize.programs import MixedIntegerProgram, Solution, solve
from themis.optimize.rounds.window import Window


@dataclass(frozen=True, slots=True, kw_only=True)
class ChoiceRows:
    """A program over choices: a column for each of them, and the last one for H.

    Rows: one choice a job; GPU-rounds; H at least all work left over the GPUs; H at least the time left of each long job; with
    ``own``, a row for each job of its rounds, below 0.

    Attributes
    ----------
    job, rounds : Int[Q], of each column. ``gain`` : Float[Q+1]. ``least`` : lowest H.
    row, column, value : the matrix' entries. ``low``, ``high`` : of the rows.
    """

    job: Int
    rounds: Int
    gain: Float
    least: Seconds
    row: Int
    column: Int
    value: Float
    low: Float
    high: Float

    @classmethod
    def of(cls, w: Window, choice: Bool, *, own: bool = False) -> ChoiceRows:
        job, rounds = np.nonzero(choice)
        columns, first = len(job), np.flatnonzero(np.diff(job, prepend=-1))
        left, spent = w.left[job, rounds], w.spent[job, rounds]
        least = float(np.minimum.reduceat(left, first).max())
        long = np.flatnonzero(np.maximum.reduceat(left, first) > least) if w.pull > 0 else np.zeros(0, dtype=np.int64)
        row_of = np.full(w.jobs, -1)
        row_of[long] = np.arange(len(long))
        late = np.flatnonzero(row_of[job] >= 0)
        every, jobs, rows = np.arange(columns), w.jobs, w.jobs + 2 + len(long)
        row = [job, np.full(columns, jobs), np.full(columns, jobs + 1), jobs + 2 + row_of[job[late]]]
        value = [np.ones(columns), w.gpus[job] * spent, -w.gpus[job] * left / w.capacity, -left[late]]
        column = [every, every, every, late]
        more = jobs if own else 0
        if own:
            row, value, column = [*row, rows + job], [*value, -spent], [*column, every]
        return cls(
            job=job,
            rounds=rounds,
            gain=np.append(w.value[job, rounds], -w.pull),
            least=least,
            row=np.concatenate([*row, np.arange(jobs + 1, rows)]),
            column=np.concatenate([*column, np.full(1 + len(long), columns)]),
            value=np.concatenate([*value, np.ones(1 + len(long))]),
            low=np.concatenate([np.ones(jobs), [-np.inf], np.zeros(1 + len(long) + more)]),
            high=np.concatenate([np.ones(jobs), [float(w.room)], np.full(1 + len(long) + more, np.inf)]),
        )

    def best(
        self,
        w: Window,
        floor: Int,
        n: Int,
        sets: Bool,
        times: Int,
        *,
        gap: float,
        nodes: int,
        seconds: Seconds,
        seed: int,
    ) -> tuple[Int, Int, float]:
        """The best of these choices, the rounds of each of these sets, and a bound; parameters as of ``best_of_choices``."""
        columns = len(self.job)
        one, jobs = np.nonzero(sets)
        bars = len(sets) > 0
        rows, all_columns = len(self.low) + bars, columns + 1 + len(sets)
        row = np.concatenate([self.row, len(self.low) - w.jobs + jobs, np.full(len(sets), len(self.low))])
        column = np.concatenate([self.column, columns + 1 + one, columns + 1 + np.arange(len(sets))])
        value = np.concatenate([self.value, np.ones(len(one) + len(sets))])
        order = np.lexsort((column, row))
        whole = np.ones(all_columns, dtype=bool)
        whole[columns] = False
        solution: Solution = solve(
            MixedIntegerProgram(
                gain=np.append(self.gain, np.zeros(len(sets))),
                low=np.concatenate([np.zeros(columns), [self.least], np.zeros(len(sets))]),
                high=np.concatenate([np.ones(columns), [np.inf], np.full(len(sets), float(w.rounds))]),
                whole=whole,
                row_low=np.append(self.low, np.full(int(bars), -np.inf)),
                row_high=np.append(self.high, np.full(int(bars), float(w.rounds))),
                start=np.concatenate([[0], np.cumsum(np.bincount(row, minlength=rows))]),
                column=column[order],
                value=value[order],
            ),
            gap=gap,
            nodes=nodes,
            accept=np.inf,
            start=np.concatenate([n[self.job] == self.rounds, [w.makespan(n)], times]).astype(np.float64),
            seconds=seconds,
            seed=seed,
        )
        out = floor.copy()
        picked = solution.x[:columns] > 0.5
        out[self.job[picked]] = self.rounds[picked]
        return out, solution.x[columns + 1 :].astype(np.int64), solution.bound


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
    rows = ChoiceRows.of(window, with_plan(choice, n))
    none = np.zeros((0, window.jobs), dtype=bool)
    out, _, bound = rows.best(
        window, floor, n, none, none[:, 0].astype(int), gap=gap, nodes=nodes, seconds=seconds, seed=seed
    )
    return out, bound


def with_plan(choice: Bool, n: Int) -> Bool:
    """These choices, and those of a plan, [J]."""
    out = choice.copy()
    out[np.arange(len(n)), n] = True
    return out
