"""The planning problem as arrays: how many rounds of a window each job gets (Shockwave §6, appendix G).

    maximise  sum_j value[j, n_j] - pull * H(n),   H = max(sum_j gpus_j * left[j, n_j] / capacity, max_j left[j, n_j])

over whole rounds n_j in 0..T with sum_j gpus_j * n_j <= capacity * T: a multiple-choice knapsack. The objective depends on how
many rounds a job gets, not on which.

A long window has few columns: the first ones are one round each, later ones are longer. Then n_j is one of the columns'
ends, or all that the job needs; arrays count these choices, and ``spent`` says how many rounds they are.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from themis.model.units import Float, Int, Seconds


@dataclass(frozen=True, slots=True, kw_only=True)
class Window:
    """The planning problem of J jobs over T rounds in C columns, of which a job has C + 1 choices.

    Attributes
    ----------
    gpus : Int[J], gang sizes, at least 1 and at most ``capacity``.
    lengths : Int[C], rounds in each column, at least 1; they add up to T.
    spent : Int[J, C+1], rounds of each choice: all up to a column's end, but no more than the job needs.
    value : Float[J, C+1], weighted log of progress at each choice; never falls.
    left : Float[J, C+1], isolated seconds left if the job turns out long; falls by at most a round's length for each
        round, never below 0.
    useful : Int[J], choices after which more change nothing.
    pull : price of a second of H, >= 0.
    capacity : GPUs in each round.
    """

    gpus: Int
    lengths: Int
    spent: Int
    value: Float
    left: Float
    useful: Int
    pull: float
    capacity: int

    @property
    def jobs(self) -> int:
        """J."""
        return len(self.gpus)

    @property
    def rounds(self) -> int:
        """T."""
        return int(self.lengths.sum())

    @property
    def room(self) -> int:
        """GPU-rounds in the window."""
        return self.capacity * self.rounds

    def takes(self, n: Int) -> Int:
        """Rounds of these choices, [J]."""
        out: Int = self.spent[np.arange(self.jobs), n]
        return out

    def reached(self, rounds: Int) -> Int:
        """[J], the last choice that this many rounds hold."""
        out: Int = np.minimum((self.spent <= rounds[:, None]).sum(axis=1) - 1, self.useful)
        return out

    def makespan(self, n: Int) -> Seconds:
        """H, the lower bound of the time that all jobs' work takes after these choices (eq. 10, with gangs)."""
        if not self.jobs:
            return 0.0
        left = self.left[np.arange(self.jobs), n]
        return max(float(self.gpus @ left) / self.capacity, float(left.max()))

    def objective(self, n: Int) -> float:
        """Welfare less the price of H at these choices, [J]."""
        return float(self.value[np.arange(self.jobs), n].sum()) - self.pull * self.makespan(n)
