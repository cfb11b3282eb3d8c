"""Auctions with room for everyone: each bidder gets the row that it likes best, proven without tables or a search.

No allocation gives a bidder more than the best of its rows that the offer could hold alone. So:

- Where all these rows can be assigned together, their sum is the most that the bidders gain, and the gap is 0.
- Without any one of them the others keep their machines, and none of them could have more: what the others gain is the
  same with a and without a. Nobody's presence costs another anything, and c_a = 1 for everyone.

Plain numbers before any problem is built, for the many auctions of a handful of rows, bought less than 1.3 times (decision 36).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from themis.optimize.winners.assignment import arrays, assign
from themis.optimize.winners.capacities import broken
from themis.optimize.winners.packing import Packer
from themis.optimize.winners.problem import WinnerProblem


@dataclass(frozen=True, slots=True)
class Uncontested:
    """Rows of the bids that win, their bidders (rising), and what they get: bidders, machines and GPUs, sorted."""

    rows: Sequence[int]
    who: Sequence[int]
    grants: tuple[list[int], list[int], list[int]]


def uncontested(problem: WinnerProblem, packer: Packer) -> Uncontested | None:
    """Every bidder's best row and machines for it; None where these do not all fit.

    Raises
    ------
    NotSolved
        When the rows fit, but no packing of them is found within the packer's steps.
    """
    order = np.lexsort((-problem.score, problem.who))
    first = np.ones(order.size, np.bool_)
    first[1:] = problem.who[order][1:] != problem.who[order][:-1]
    best = order[first]
    if (problem.need[best].sum(0) > problem.have).any() or broken(problem, best):
        return None
    rows = best.tolist()
    if not packer.packs(rows):
        return None
    grants = assign(problem, packer, rows)
    return Uncontested(rows=problem.row[best].tolist(), who=problem.who[best].tolist(), grants=arrays(grants))
