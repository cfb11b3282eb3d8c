"""The least utilisation at which every job gets a rate, as one program with a row for each job, in HiGHS.

    minimise u;   sum_k T[j, k] X[j, k] >= R_j;   sum_k X[j, k] <= 1;   sum of gpus_j X[j, k] over a pool <= u workers

For few jobs this is quicker than cutting planes over the prices of pools (``level``): the model is built once, only the
right-hand sides change from one level to the next, and HiGHS goes on from the last basis.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
from scipy.sparse import coo_array, csc_array

from themis.errors import NotSolved
from themis.model.units import Float, Int
from themis.optimize.columns import ColumnProgram
from themis.optimize.shares.problem import Problem

CELLS = 300
"""Up to so many (job, type) with a rate it is the quicker way: some 100 jobs on three types."""


_SHORT = 1e-10
"""Of what a job needs, that it may miss."""

_PROGRAMS = 3
"""Most programs for needs in straight lines: where many jobs end on the way, a search from above takes fewer."""


@dataclass(frozen=True, slots=True, eq=False)
class Straight:
    """The highest level of needs in straight lines.

    Attributes
    ----------
    level : what ``x`` [J, K] reaches; ``bound`` : what the prices prove that no shares exceed.
    worth : [M], of each pool, summing to 1 (zeros where no pool is full).
    """

    level: float
    bound: float
    x: Float
    worth: Float


@dataclass(slots=True)
class LeastUse:
    """The program for one problem, rates relative to each job's fastest type.

    Attributes
    ----------
    scale : [J], steps/s of each job's fastest type.
    """

    problem: Problem
    scale: Float
    job: Int = field(init=False)
    kind: Int = field(init=False)
    program: ColumnProgram | None = None

    def _build(self, need: Float) -> ColumnProgram:
        jobs, pools = self.problem.jobs, len(self.problem.workers)
        return self._program(2 * jobs + np.arange(pools), -np.ones(pools), -1.0, need, np.zeros(pools))

    def _program(self, rows: Int, values: Float, gain: float, need: Float, room: Float) -> ColumnProgram:
        """A first column with these entries, then the shares of each (job, type) with a rate."""
        problem, jobs, pools = self.problem, self.problem.jobs, len(self.problem.workers)
        self.job, self.kind = np.nonzero(problem.rate > 0)
        cells, pool = len(self.job), problem.pool[self.kind]
        index, value = np.empty((cells, 3), dtype=np.int64), np.ones((cells, 3))
        index[:, 0], index[:, 1], index[:, 2] = self.job, jobs + self.job, 2 * jobs + pool
        value[:, 0] = problem.rate[self.job, self.kind] / self.scale[self.job]
        value[:, 2] = problem.gpus[self.job] / problem.workers[pool]
        start = np.concatenate([[0], len(rows) + 3 * np.arange(cells + 1)])
        matrix = csc_array(
            (np.concatenate([values, value.ravel()]), np.concatenate([rows, index.ravel()]), start),
            shape=(2 * jobs + pools, cells + 1),
        )
        low = np.concatenate([need, np.full(jobs + pools, -np.inf)])
        high = np.concatenate([np.full(jobs, np.inf), np.ones(jobs), room])
        program = ColumnProgram(low, high)
        program.add(np.append(gain, np.zeros(cells)), matrix)
        program.tighten()
        return program

    def highest(self, base: Float, slope: Float, top: Float) -> Straight | None:
        """The largest t at which every job gets the relative rate ``min(base + slope t, top)``.

        Whoever comes to its end before t needs no more than that, so t only rises from one program to the next. None where
        nobody rises any more, where one after the other ends, or where rounding has left no room for the base.
        """
        rises = slope > 0
        rows, need, step = np.flatnonzero(rises), base.copy(), slope.copy()
        program = self._program(rows, -slope[rows], 1.0, base, np.ones(len(self.problem.workers)))
        for _ in range(_PROGRAMS):
            if not rises.any():
                return None
            try:
                found = self._proven(program, need, step)
            except NotSolved:
                return None
            ends = slope * found.bound >= (top - base) * (1.0 - 1e-9)
            over = np.flatnonzero(rises & ends)
            if not len(over):
                return found if ends[step < slope].all() else None
            rises[over], step[over], need[over] = False, 0.0, top[over]
            program.change_column(0, over, np.zeros(len(over)))
            program.change_low(over, top[over])
        return None

    def _proven(self, program: ColumnProgram, base: Float, slope: Float) -> Straight:
        """Solve for the level; its bound follows from the prices by weak duality, whatever the rounding."""
        problem, jobs = self.problem, self.problem.jobs
        found = program.solve()
        level = max(float(found.x[0]), 0.0)  # its tolerance lets it end below
        x = self._shares(found.x[1:], base + level * slope)
        # A job's price for rate, the pools' for GPUs, the rest for its time.
        worth, rate = np.maximum(found.duals[2 * jobs :], 0.0), np.maximum(-found.duals[:jobs], 0.0)
        earned = rate[self.job] * (problem.rate[self.job, self.kind] / self.scale[self.job])
        pool = problem.pool[self.kind]
        paid, time = worth[pool] * problem.gpus[self.job] / problem.workers[pool], np.zeros(jobs)
        np.maximum.at(time, self.job, earned - paid)
        total = float(worth.sum())
        bound = (total + float(time.sum()) - float(rate @ base)) / max(float(rate @ slope), 1e-300)
        return Straight(level, bound, x, worth / total if total > 0 else worth)

    def solve(self, relative: Float) -> tuple[float, Float, Float]:
        """(least utilisation of the fullest pool, shares [J, K] that have it, worth of each pool [M], summing to 1).

        Raises
        ------
        NotSolved : neither this program nor the one of ``_in_place_of_fastest`` is solved.
        """
        jobs = self.problem.jobs
        if self.program is None:
            self.program = self._build(relative)
        else:
            self.program.change_low(np.arange(jobs), relative)
        try:
            found = self.program.solve()
        except NotSolved:
            self.program = None
            return self._in_place_of_fastest(relative)
        x = self._shares(found.x[1:], relative)
        worth = np.maximum(found.duals[2 * jobs :], 0.0)
        return -found.objective, x, worth / max(float(worth.sum()), 1e-300)

    def _in_place_of_fastest(self, relative: Float) -> tuple[float, Float, Float]:
        """The same program without a row that has no interior: a job that needs its fastest rate leaves HiGHS no room there.

        Every job runs on its fastest type; the variables y[j, k] >= 0 are the time that it spends on another type instead.
        With a = rate relative to the fastest, the fastest type keeps R_j - sum_k a[j, k] y[j, k] of the time:

            sum_k (1 - a[j, k]) y[j, k] <= 1 - R_j;   sum_k a[j, k] y[j, k] <= R_j;   pools as above

        y = 0 with a large u is feasible for every R in [0, 1], so HiGHS cannot find it infeasible by rounding.
        """
        problem, jobs, pools = self.problem, self.problem.jobs, len(self.problem.workers)
        best = problem.rate.argmax(axis=1)
        cell = problem.rate > 0
        cell[np.arange(jobs), best] = False
        job, kind = np.nonzero(cell)
        cells, part = len(job), problem.rate[job, kind] / self.scale[job]
        workers = np.where(problem.workers > 0, problem.workers, 1.0)
        size, pool, home = problem.gpus[job], problem.pool[kind], problem.pool[best[job]]
        column = np.arange(1, cells + 1)
        row = np.concatenate([job, jobs + job, 2 * jobs + pool, 2 * jobs + home, 2 * jobs + np.arange(pools)])
        value = np.concatenate(
            [1.0 - part, part, size / workers[pool], -part * size / workers[home], -np.ones(pools)]
        )  # fmt: skip
        where = np.concatenate([column, column, column, column, np.zeros(pools, dtype=np.int64)])
        matrix = csc_array(coo_array((value, (row, where)), shape=(2 * jobs + pools, cells + 1)))
        fixed = np.bincount(problem.pool[best], weights=problem.gpus * relative, minlength=pools) / workers
        high = np.concatenate([1.0 - relative, relative, -fixed])
        program = ColumnProgram(np.full(2 * jobs + pools, -np.inf), high)
        program.add(np.append(-1.0, np.zeros(cells)), matrix)
        program.tighten()
        found = program.solve()
        x, other = np.zeros((jobs, problem.types)), np.clip(found.x[1:], 0.0, 1.0)
        x[job, kind] = other
        x[np.arange(jobs), best] = np.maximum(relative - np.bincount(job, weights=part * other, minlength=jobs), 0.0)
        x /= np.maximum(x.sum(axis=1, keepdims=True), 1.0)
        over = float((problem.usage(x) / workers).max())
        worth = np.maximum(found.duals[2 * jobs :], 0.0)
        return over, x, worth / max(float(worth.sum()), 1e-300)

    def _shares(self, x: Float, relative: Float) -> Float:
        """[J, K], the program's shares, with what its tolerance left out of a job's need on the job's fastest type.

        A job that has almost nothing left to do needs less time than the tolerance is, and would get none for ever.
        """
        problem = self.problem
        out = np.zeros((problem.jobs, problem.types))
        out[self.job, self.kind] = np.clip(x, 0.0, 1.0)
        scale = np.where(self.scale > 0, self.scale, 1.0)
        short = relative - problem.throughput(out) / scale
        rows = np.flatnonzero(short > _SHORT * relative)
        out[rows, problem.rate[rows].argmax(axis=1)] += short[rows]
        out /= np.maximum(out.sum(axis=1, keepdims=True), 1.0)
        return out
