"""Depth-first search over rows, bounded by the tables, with an exact packing check at every step.

The tables give the most that the remaining bidders could still gain, so a branch that cannot beat the best packable
choice is cut, and the first leaf reached is the tables' own choice repaired as late as possible.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from themis.optimize.winners.auction_problem import WIDE, WinnerProblem
from themis.optimize.winners.bid_tables import NEVER, Tables
from themis.optimize.winners.capacities import broken
from themis.optimize.winners.gang_packing import Packer


@dataclass(frozen=True, slots=True, kw_only=True)
class Seen:
    """Best packable rows of the problem and their worth; `done` when nothing better exists."""

    rows: list[int]
    worth: int
    done: bool
    nodes: int


def search(problem: WinnerProblem, packer: Packer, table: Tables, *, leaves: int, known: list[int]) -> Seen:
    """Search all choices of the table's bidders that beat the packable rows `known`, for at most `leaves` nodes."""
    walk = _Walk(problem, packer, table, leaves, known)
    done = walk.descend(0, table.full, [], table.constant)
    return Seen(rows=walk.rows, worth=walk.worth, done=done, nodes=leaves - walk.left)


class _Walk:
    def __init__(self, problem: WinnerProblem, packer: Packer, table: Tables, leaves: int, known: list[int]) -> None:
        self.problem, self.packer, self.table, self.left = problem, packer, table, leaves
        self.rows = known
        self.worth = int(problem.score[known].sum())
        self.score = problem.score.tolist()
        self.wide = (problem.kind == WIDE).tolist()
        ends = [np.searchsorted(problem.who, table.who, side).tolist() for side in ("left", "right")]
        self.span = list(zip(*ends))

    def descend(self, i: int, state: int, rows: list[int], bound: int) -> bool:
        """Try all options of bidder i on; False when the limit or an unsure packing left something open.

        `bound` is the priced worth of `rows` plus the table's constant.
        """
        table = self.table
        if i == table.who.size:
            worth = sum(self.score[r] for r in rows)
            if worth > self.worth:
                self.rows, self.worth = rows, worth
            return True
        first, stop = self.span[i]
        states = table.sources(np.array([state]))[0]
        ahead = table.ahead[i + 1]
        after = np.append(table.score[first:stop] + ahead[states[table.column[first:stop]]], ahead[state])
        for k in np.argsort(-after, kind="stable").tolist():
            if after[k] <= NEVER // 2 or bound + after[k] <= self.worth:
                break
            row = first + k
            if row == stop:
                settled = self.descend(i + 1, state, rows, bound)
            else:
                taken = [*rows, row]
                self.left -= 1
                packed = None if self.left < 0 else self._packs(taken)
                if packed is False:
                    continue
                after_row = int(states[table.column[row]])
                settled = packed is True and self.descend(i + 1, after_row, taken, bound + int(table.score[row]))
            if not settled:
                return False
        return True

    def _packs(self, rows: list[int]) -> bool | None:
        """True if `rows` pack, when all except the last do and the total of GPUs suffices, by the tables."""
        if self.wide[rows[-1]]:
            return True
        if (self.problem.certain or not self.packer.chain) and broken(self.problem, np.array(rows)):
            return False
        return True if self.problem.certain else self.packer.fits(rows)
