"""Rounds of gangs: which gangs run side by side, and for how many rounds (Shockwave, appendix H).

Counts that fit a window in sum (``knapsack``) need not fit its rounds, as a gang runs whole or not at all. So the columns
here are sets of gangs that fit the GPUs together, each with a number of rounds; in which order they come is left open.

1. Sets are generated for the linear relaxation (Dantzig and Wolfe 1960): at its prices the best set is a knapsack. Each of
   these prices bounds all plans.
2. Sets that may be part of a plan within the gap are listed. An integer program over them finds the best plan. If the list
   is complete, its bound is a bound on all plans.

Leaves out: columns of several rounds, in which gangs follow one another.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

import numpy as np
from scipy.sparse import coo_array

from themis.errors import NotSolved
from themis.model.units import Bool, Float, Int, Seconds
from themis.optimize.column_generation import ColumnProgram
from themis.optimize.rounds.sets import heaviest
from themis.optimize.rounds.window import Window
from themis.optimize.rounds.window_program import ChoiceRows, with_plan

SETS = 400
"""Sets generated for the relaxation at most."""
LISTED, STEPS = 500, 20_000
"""Sets listed for the integer program at most, and steps of the search for them."""
LARGEST = 2000
"""Choices and sets in the integer program; beyond that it is not tried."""


@dataclass(frozen=True, slots=True, kw_only=True)
class GangRounds:
    """Rounds as ``sets`` Bool[P, J] of gangs, each ``times`` Int[P], with ``objective <= optimum <= bound``."""

    sets: Bool
    times: Int
    objective: float
    bound: float


def best_rounds(
    window: Window,
    run: Int,
    choice: Bool,
    floor: Int,
    *,
    bound: float,
    gap: float,
    nodes: int,
    seconds: Seconds = math.inf,
    seed: int = 0,
) -> GangRounds:
    """The best rounds to a ``gap``, or the best found within the limits, with the gap that is proven.

    Parameters
    ----------
    window : of single rounds. ``run`` : Int[J, C], a plan to begin from. ``bound`` : on all plans.
    choice : Bool[J, C+1], all choices of plans that are better than ``run``. ``floor`` : Int[J], the lowest of each job.
    gap : absolute. ``nodes``, ``seconds`` : of the integer program at most. seed : of HiGHS' own choices.
    """
    w = window
    sets, times = rounds_of(run)
    n = w.reached(run.sum(axis=1))
    objective = w.objective(n)
    best = GangRounds(sets=sets, times=times, objective=objective, bound=bound)
    try:
        relaxed = _Relaxation(w, with_plan(choice, n), sets)
        relaxed.solve(enough=objective + gap)
        best = replace(best, bound=max(min(bound, relaxed.bound), objective))
        if best.bound - objective <= gap:
            return best
        sets, complete = relaxed.within(relaxed.bound - objective)
        rows = ChoiceRows.of(w, with_plan(relaxed.chances(objective), n), own=True)
        if len(rows.job) + len(sets) > LARGEST:
            return best
        times = np.append(times, np.zeros(len(sets) - len(times), dtype=np.int64))
        n, times, proven = rows.best(w, floor, n, sets, times, gap=0.5 * gap, nodes=nodes, seconds=seconds, seed=seed)
    except NotSolved:
        return best  # the plan and the bound at hand stand
    if complete:
        best = replace(best, bound=min(best.bound, max(proven, objective)))
    if (value := w.objective(n)) > objective:
        best = replace(best, sets=sets[times > 0], times=times[times > 0], objective=value)
    return replace(best, bound=max(best.bound, best.objective))


def rounds_of(run: Int) -> tuple[Bool, Int]:
    """The sets of gangs of a plan, [J, C], and the number of rounds of each."""
    sets, times = np.unique(run.T > 0, axis=0, return_counts=True)
    return sets, times


class _Relaxation:
    """Any parts of choices, and sets for any parts of rounds. Rows: of the choices, then one for all rounds.

    Attributes
    ----------
    bound : on all plans of these choices. ``price`` : Float[J], of a round of each job, and ``of_round`` : of a round of all GPUs,
        that prove it. ``reduced`` : Float[Q], what the bound loses with each choice, below 0.
    """

    def __init__(self, w: Window, choice: Bool, sets: Bool) -> None:
        self.w, self.choice, self.sets = w, choice, list(sets)
        rows = self.rows = ChoiceRows.of(w, choice, own=True)
        self.base = len(rows.low)
        shape = self.base + 1, len(rows.gain)
        self.matrix = coo_array((rows.value, (rows.row, rows.column)), shape=shape).tocsc()
        # Columns of a program are >= 0: the last one is H less the lowest H.
        low = np.append(rows.low, -np.inf) - rows.least * self.matrix[:, [-1]].toarray()[:, 0]
        self.program = ColumnProgram(low, np.append(rows.high, float(w.rounds)))
        self.program.add(rows.gain, self.matrix)
        self._add(np.vstack([sets, np.eye(w.jobs, dtype=bool)]))
        self.bound = np.inf

    def solve(self, enough: float) -> None:
        """Lower the bound, to ``enough`` if that can be had."""
        w = self.w
        for _ in range(SETS):
            found = self.program.solve()
            price = np.maximum(-found.duals[self.base - w.jobs : self.base], 0.0)
            chosen = heaviest(price, w.gpus, w.capacity)
            worth = float(price[chosen].sum())
            value = found.objective - w.pull * self.rows.least
            bound = value + w.rounds * max(worth - float(found.duals[-1]), 0.0)
            if bound < self.bound:
                self.bound, self.price, self.of_round = bound, price, max(worth, float(found.duals[-1]))
                self.reduced = (self.rows.gain - self.matrix.T @ found.duals)[:-1]
            if self.bound <= enough or self.bound - value <= 1e-9 * max(abs(value), 1.0):
                return
            column = np.zeros((1, w.jobs), dtype=bool)
            column[0, chosen] = True
            self.sets.append(column[0])
            self._add(column)

    def chances(self, objective: float) -> Bool:
        """The choices that a plan better than ``objective`` may have."""
        out = self.choice.copy()
        out[self.rows.job, self.rows.rounds] = self.bound + self.reduced >= objective
        return out

    def within(self, gap: float) -> tuple[Bool, bool]:
        """The sets known, and those that a plan within ``gap`` of the bound may have; whether these are all."""
        w = self.w
        listed, complete = maximal_sets(w.gpus, w.capacity, self.price, self.of_round - gap - 1e-9)
        known = dict.fromkeys(map(bytes, [*self.sets, *listed]))
        return np.array([np.frombuffer(one, dtype=bool) for one in known]), complete

    def _add(self, sets: Bool) -> None:
        one, jobs = np.nonzero(sets)
        row = np.concatenate([self.base - self.w.jobs + jobs, np.full(len(sets), self.base)])
        column = np.concatenate([one, np.arange(len(sets))])
        matrix = coo_array((np.ones(len(row)), (row, column)), shape=(self.base + 1, len(sets)))
        self.program.add(np.zeros(len(sets)), matrix.tocsc())


def maximal_sets(gpus: Int, room: int, price: Float, least: float) -> tuple[list[Bool], bool]:
    """Sets that fit, to which no gang can be added and that are worth ``least``; whether these are all of them."""
    order = np.lexsort((gpus, -price / gpus))
    size, worth = gpus[order].tolist(), price[order].tolist()
    jobs = len(size)
    after = np.append(np.cumsum(gpus[order][::-1])[::-1], 0).tolist()
    out: list[Bool] = []
    stack: list[tuple[int, int, float, float, tuple[int, ...]]] = [(0, room, 0.0, math.inf, ())]
    for _ in range(STEPS):
        if not stack or len(out) >= LISTED:
            break
        i, room, value, skipped, chosen = stack.pop()
        if room - after[i] >= skipped:
            continue  # a gang that was left out would fit
        if i == jobs:
            if value >= least:
                one = np.zeros(jobs, dtype=bool)
                one[order[list(chosen)]] = True
                out.append(one)
            continue
        if value + worth[i] / size[i] * room < least:
            continue
        stack.append((i + 1, room, value, min(skipped, size[i]), chosen))
        if size[i] <= room:
            stack.append((i + 1, room - size[i], value + worth[i], skipped, (*chosen, i)))
    return out, not stack
