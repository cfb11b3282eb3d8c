"""The least utilisation at which every job gets a rate, as one program with a row for each job, in HiGHS.

    minimise u;   sum_k T[j, k] X[j, k] >= R_j;   sum_k X[j, k] <= 1;   sum of gpus_j X[j, k] over a pool <= u workers

For few jobs this is quicker than cutting planes over the prices of pools (``level``): the model is built once, only the
right-hand sides change from one level to the next, and HiGHS goes on from the last basis.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
from scipy.sparse import csc_array

from themis.gavel.problem import Problem
from themis.model.units import Float, Int
from themis.solvers.columns import ColumnProgram

CELLS = 300
"""Up to so many (job, type) with a rate it is the quicker way: some 100 jobs on three types."""


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
        problem, jobs, pools = self.problem, self.problem.jobs, len(self.problem.workers)
        self.job, self.kind = np.nonzero(problem.rate > 0)
        cells, pool = len(self.job), problem.pool[self.kind]
        relative = problem.rate[self.job, self.kind] / self.scale[self.job]
        rows = np.stack([self.job, jobs + self.job, 2 * jobs + pool], axis=1)
        values = np.stack([relative, np.ones(cells), problem.gpus[self.job] / problem.workers[pool]], axis=1)
        shape, start = (2 * jobs + pools, cells + 1), pools + 3 * np.arange(cells + 1)
        matrix = csc_array(
            (
                np.concatenate([-np.ones(pools), values.ravel()]),
                np.concatenate([2 * jobs + np.arange(pools), rows.ravel()]),
                np.concatenate([[0], start]),
            ),
            shape=shape,
        )
        low = np.concatenate([need, np.full(jobs + pools, -np.inf)])
        high = np.concatenate([np.full(jobs, np.inf), np.ones(jobs), np.zeros(pools)])
        program = ColumnProgram(low, high)
        program.add(np.append(-1.0, np.zeros(cells)), matrix)
        program.tighten()
        return program

    def solve(self, relative: Float) -> tuple[float, Float, Float]:
        """(least utilisation of the fullest pool, shares [J, K] that have it, worth of each pool [M], summing to 1)."""
        jobs = self.problem.jobs
        if self.program is None:
            self.program = self._build(relative)
        else:
            self.program.change_low(np.arange(jobs), relative)
        found = self.program.solve()
        x = np.zeros((jobs, self.problem.types))
        x[self.job, self.kind] = np.clip(found.x[1:], 0.0, 1.0)
        worth = np.maximum(found.duals[2 * jobs :], 0.0)
        return -found.objective, x, worth / max(float(worth.sum()), 1e-300)
