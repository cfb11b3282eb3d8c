"""Prices in a box: a linear program over the few jobs whose best way is open there (Marsten, Hogan and Blankenship 1975).

At a price nearly all jobs have one best way by far (``ways``), and keep it within a box of prices around that price. The
others go into a linear program with a row for each of them and for each pool, in which prices stay in the box. Where its
prices lie inside the box they are best of all, and the shares are an optimum of all jobs.

Two questions: the least use of the fullest pool (prices sum to 1), or the largest gain within the pools' GPUs.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
from scipy.sparse import coo_array, csc_array

from themis.model.units import Float, Int
from themis.optimize.column_generation import ColumnProgram
from themis.optimize.shares.ways import Chosen, Mixes

FITS = 1e-10
"""Relative overuse of a pool that counts as fitting; shares are scaled down by it."""

FREE = 1e-11
"""A pool with less than this share of the cluster's worth has price 0."""

OPEN = 300
"""Jobs that a program has rows for."""

_SHRINKS, _GROWS = 0.3, 2.5
"""Width of the next box, around a price inside of this one, or on the side of the second in a row."""

_DEAR = 1e6
"""Price of use beyond the GPUs where any price is allowed."""


@dataclass(slots=True)
class Box:
    """A program over prices between ``low`` and ``high`` [M], shares of the cluster's worth.

    Open jobs have a row and columns for their ways ``may`` [Q, J]. The others answer together: a column for each answer.
    """

    mixes: Mixes
    low: Float
    high: Float
    scale: float
    per_worker: Float
    level: bool
    open_: Int
    way: Int
    which: Int
    others: list[Chosen] = field(default_factory=list)
    used: list[Float] = field(default_factory=list)
    program: ColumnProgram = field(init=False)
    weight: Float = field(init=False)
    matrix: csc_array = field(init=False)
    gain: Float = field(init=False)
    within: bool = field(init=False, default=False)

    @classmethod
    def around(cls, mixes: Mixes, share: Float, width: float, workers: Float, *, level: bool) -> Box:
        """A box of this relative width. Of more than ``OPEN`` open jobs some stand for all, which finds prices, but no shares.

        ``share`` : [M], price of each pool's GPUs together. An infinite ``width`` allows any price. ``level`` : least use of
        the fullest pool; else most gain.
        """
        per_worker = np.divide(1.0, workers, out=np.zeros(len(workers)), where=workers > 0)
        if np.isinf(width):
            low, high = np.zeros(len(workers)), np.full(len(workers), np.inf)
            may = mixes.reach
            open_ = np.flatnonzero(may.any(axis=0))
        else:
            # Free GPUs may turn out scarce once the jobs that they are enough for must share them.
            even = share.sum() * workers / workers.sum()
            reach = np.where(share > 0.0, width * np.maximum(share, 0.05 * even), even)
            low, high = np.maximum(share - reach, 0.0), share + reach
            least = mixes.costs(high * per_worker).min(axis=0)
            costs = mixes.costs(low * per_worker)
            may = costs <= least + 1e-12 * np.abs(least)
            # Jobs that free GPUs are enough for can go anywhere there: they answer with the others.
            open_ = np.flatnonzero((may.sum(axis=0) > 1) & (mixes.costs(share * per_worker).min(axis=0) != 0.0))
        scale = 1.0
        if len(open_) > OPEN:
            gpus, open_ = mixes.ways.gpus[open_].sum(), open_[:: -(-len(open_) // OPEN)]
            scale = float(gpus / mixes.ways.gpus[open_].sum())
        way, which = np.nonzero(may[:, open_])
        return cls(mixes, low, high, scale, per_worker, level, open_, way, which)

    def __post_init__(self) -> None:
        pools, jobs = len(self.low), len(self.open_)
        room = np.full(pools, 0.0 if self.level else 1.0)
        self.program = ColumnProgram(
            np.concatenate([np.full(pools, -np.inf), np.ones(jobs + 1)]), np.concatenate([room, np.ones(jobs + 1)])
        )
        self.program.tighten()
        eye, whole = np.eye(pools, pools + jobs + 1), np.zeros(pools + jobs + 1)
        whole[:pools] = -1.0 if self.level else 0.0
        # The level; then use beyond it at the box's highest prices, and use short of it at the lowest.
        highest = np.where(np.isinf(self.high), _DEAR, self.high)
        sides = np.concatenate([[-1.0], -highest, self.low])
        self.program.add(sides, csc_array(np.vstack([whole, -eye, eye]).T))
        self.matrix = self._columns()
        self.gain = self.scale * self.mixes.gains(self.way, self.open_[self.which])
        self.program.add(self.gain, self.matrix)

    def add(self, chosen: Chosen) -> None:
        """An answer of all jobs that are not open."""
        open_ = chosen.only(self.open_)
        used = (chosen.usage() - self.scale * open_.usage()) * self.per_worker
        column = np.concatenate([used, np.zeros(len(self.open_)), [1.0]])
        self.program.add(np.array([chosen.gain() - self.scale * open_.gain()]), csc_array(column[:, None]))
        self.others.append(chosen)
        self.used.append(used)

    def solve(self) -> tuple[Float, float]:
        """(Price, use of the fullest pool); ``within`` says whether the price lies inside the box."""
        found, pools = self.program.solve(), len(self.low)
        share = np.maximum(found.duals[:pools], 0.0)
        if self.level:
            share /= max(float(share.sum()), 1e-300)
        share[share < FREE * share.sum()] = 0.0
        slack, self.weight = found.x[1 : 1 + 2 * pools], np.maximum(found.x[1 + 2 * pools :], 0.0)
        own = len(self.way)
        used = (self.matrix @ self.weight[:own])[:pools] + self.weight[own:] @ np.array(self.used)
        self.within = bool((slack[:pools] <= FITS).all() and ((slack[pools:] <= FITS) | (self.low == 0.0)).all())
        return share, float(used.max())

    def widen(self, share: Float) -> None:
        """Let prices go further from here, and keep all answers."""
        reach = (self.high - self.low) * 0.5 * _GROWS
        self.low, self.high = np.maximum(share - reach, 0.0), share + reach
        self.program.change_gains(np.arange(1, 1 + 2 * len(share)), np.concatenate([-self.high, self.low]))

    def next(self, width: float, outside: int) -> tuple[float, int]:
        """Width of the next box, and of how many boxes in a row the price lay on a side."""
        if self.within:
            return width * _SHRINKS, 0
        return min(width * (_GROWS if outside else 1.0), 1.0), outside + 1

    def shares(self) -> Float:
        """[J, K], the mixture of the last solution."""
        mixes, ways, own = self.mixes, self.mixes.ways, len(self.way)
        x = np.zeros((len(mixes.need), len(ways.rate)))
        closed = np.ones(len(x), dtype=bool)
        closed[self.open_] = False
        rows, weight = np.flatnonzero(closed), self.weight[own:] / self.weight[own:].sum()
        for i in np.flatnonzero(weight > 0.0).tolist():
            self.others[i].add_to(x, rows, float(weight[i]))
        some = np.flatnonzero(self.weight[:own] > 0.0)
        total = np.bincount(self.which, self.weight[:own], len(self.open_))
        way, which = self.way[some], self.which[some]
        part, time = mixes.part[way, self.open_[which]], self.weight[some] / total[which]
        np.add.at(x, (self.open_[which], ways.second[way]), time * part)
        np.add.at(x, (self.open_[which], ways.first[way]), time * (1.0 - part))
        return x[:, :-1]

    def _columns(self) -> csc_array:
        """Columns of the open jobs' ways: use of each pool, and time of the job."""
        ways, job, pools, count = self.mixes.ways, self.open_[self.which], len(self.low), len(self.way)
        part, gpus, at = self.mixes.part[self.way, job], self.scale * ways.gpus[job], np.arange(count)
        first, second = ways.pool[ways.first[self.way]], ways.pool[ways.second[self.way]]
        per = np.append(self.per_worker, 0.0)
        rows = np.concatenate([first, second, pools + self.which])
        values = np.concatenate([gpus * (1.0 - part) * per[first], gpus * part * per[second], np.ones(count)])
        some = np.concatenate([first < pools, np.ones(2 * count, dtype=bool)])
        shape = (pools + len(self.open_) + 1, count)
        return coo_array((values[some], (rows[some], np.tile(at, 3)[some])), shape=shape).tocsc()
