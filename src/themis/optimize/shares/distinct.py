"""The highest level where all jobs differ: ``level``'s question, with programs over the few jobs whose way is open.

    C(p, R) = sum_j least price of R_j   at prices p of the pools; R can be reached if and only if C <= 1 for all p

At a price nearly all jobs have one cheapest way to reach their rate by far, and keep it within a box of prices around that
price. The others go into a linear program with a row for each of them and for each pool, in which prices stay in the box
(Marsten, Hogan and Blankenship 1975). Where its prices lie inside, they are best of all, and its shares reach the rates. A
price at which R(t) costs more than 1 lowers the level t, as in ``level``.

Boxes begin at prices for a part of the jobs. Where kinds of jobs are few whole kinds are open together; ``level`` is quicker.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
from scipy.optimize import brentq

from themis.errors import NotSolved
from themis.model.units import Bool, Float
from themis.optimize.shares.boxes import FITS, Box
from themis.optimize.shares.problem import Need, Problem
from themis.optimize.shares.smooth import STAGES, near, part_of, roughly
from themis.optimize.shares.ways import Chosen, Mixes, Ways

_SETTLED, _NOISE = 1e-9, 1e-12
_ROUGH, _NEAR = 0.02, 0.01
"""Relative gap at which boxes take over from prices alone; change of the level up to which its prices need no second search."""

_ONE = 0.9
"""Part of all worth from which one pool sets the level: boxes find the rest as quickly."""

_WIDTH = 0.0025
"""Relative width of a box around ``smooth.near``'s prices at which their error and the open jobs are both small."""

_BOXES, _LEVELS, _COLUMNS, _ALTERNATE = 15, 60, 30, 4


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Reached:
    """The highest level.

    Attributes
    ----------
    level : t. ``x`` : Float[J, K], shares that reach R(t) up to ``FITS``.
    share : Float[M], of the cluster's worth in each pool at the prices that prove t; zeros where the ceiling was reached.
    ties : Bool[J], jobs with two cheapest ways at these prices.
    solves : prices tried.
    """

    level: float
    x: Float
    share: Float
    ties: Bool
    solves: int


def highest(problem: Problem, need: Need, ceiling: float, floor: float) -> Reached:
    """The largest t in [floor, ceiling] at which shares exist that give every job ``need(t)``: as ``level.highest_level``.

    Raises
    ------
    NotSolved : the prices do not settle.
    """
    rows = np.flatnonzero(problem.active)
    search = _Search(Ways.of(problem).only(rows), problem.workers)
    found = search.run(lambda t: need(t)[rows], ceiling, floor)
    x, ties = np.zeros((problem.jobs, problem.types)), np.zeros(problem.jobs, dtype=bool)
    x[rows], ties[rows] = found.x, found.ties
    return Reached(level=found.level, x=x, share=found.share, ties=ties, solves=found.solves)


@dataclass(slots=True)
class _Search:
    ways: Ways
    workers: Float
    solves: int = 0
    per_worker: Float = field(init=False)

    def __post_init__(self) -> None:
        self.per_worker = np.divide(1.0, self.workers, out=np.zeros(len(self.workers)), where=self.workers > 0)

    def run(self, need: Need, ceiling: float, floor: float) -> Reached:
        mixes, width = self._mixes(need, ceiling), _WIDTH
        found = self._all_of(mixes, self.workers / self.workers.sum(), ceiling)
        if found is not None:
            return found
        level, share = self._near(need, ceiling, floor)
        binding = np.zeros(len(share))
        if level < ceiling:
            mixes, binding = self._mixes(need, level), share
        elif (found := self._all_of(mixes, share, ceiling)) is not None:
            return found
        for _ in range(_LEVELS):
            # Try the price alone first: far from the level it is enough.
            cost, chosen = self._answer(mixes, share)
            if cost <= 1.0 + _ROUGH:
                over, cost, share, x, width = self._boxes(mixes, share, width)
                if over <= 1.0 + FITS or (cost <= 1.0 + FITS and over <= 1.0 + _SETTLED):
                    ties = self._ties(mixes, binding) if binding.any() else np.zeros(len(mixes.need), dtype=bool)
                    return Reached(level=level, x=x / max(over, 1.0), share=binding, ties=ties, solves=self.solves)
                _, chosen = self._answer(mixes, share)
            lower = self._lower(need, chosen, share, level, floor)
            if level <= floor:
                raise NotSolved(
                    f"the rates of {len(mixes.need)} jobs at the least level need more GPUs than there are."
                )
            if lower >= level:
                raise NotSolved(
                    f"the level of {len(mixes.need)} jobs stands at {level:.6g}, above what the GPUs allow."
                )
            level, binding = lower, share
            mixes = self._mixes(need, level)
        raise NotSolved(f"the level of {len(self.ways.gpus)} jobs did not settle within {_LEVELS} steps.")

    def _all_of(self, mixes: Mixes, share: Float, ceiling: float) -> Reached | None:
        """The ceiling with GPUs to spare, if everybody's cheapest way at a price fits."""
        _, chosen = self._answer(mixes, share)
        if (chosen.usage() * self.per_worker).max() > 1.0:
            return None
        none = np.zeros(len(mixes.need), dtype=bool)
        return Reached(level=ceiling, x=chosen.shares(), share=np.zeros(len(share)), ties=none, solves=self.solves)

    def _near(self, need: Need, ceiling: float, floor: float) -> tuple[float, Float]:
        """A level that cannot be exceeded, mostly by little, and the prices that prove it."""
        rows, part = part_of(self.ways.gpus, self.workers)
        some = _Search(self.ways.only(rows), part)
        price = self._price(self.workers / self.workers.sum())

        def of_part(t: float) -> Float:
            return need(t)[rows]

        level = some._alone(of_part, ceiling, price * self.workers, (floor, ceiling))
        for _ in range(_ALTERNATE):
            price = roughly(some._mixes(of_part, level), part, level=True, price=price)
            before, level = level, some._alone(of_part, level, price * self.workers, (floor, ceiling))
            if level >= before * (1.0 - _ROUGH):
                break
        self.solves += some.solves
        within = floor, ceiling
        share = price * self.workers
        best = self._alone(need, level, share, within), share
        if share.max() > _ONE:
            return best
        for turn, stages in enumerate((STAGES[:1], STAGES[1:], STAGES[-1:])):
            mixes, before = self._mixes(need, best[0]), best[0]
            price = near(mixes, self.workers, level=True, price=price, stages=stages)
            share = price * self.workers
            if before == ceiling and self._all_of(mixes, share, ceiling) is not None:
                return ceiling, share
            level = self._alone(need, before, share, within)
            if level < before or before == ceiling:
                best = level, share
            if turn and level >= before * (1.0 - _NEAR):
                break
        return best

    def _alone(self, need: Need, level: float, share: Float, within: tuple[float, float]) -> float:
        """The level that a price proves almost exactly, by lines that support costs at levels ever nearer to it."""
        for _ in range(_LEVELS):
            _, chosen = self._answer(self._mixes(need, level), share)
            before, level = level, self._lower(need, chosen, share, within[1], within[0])
            if abs(level - before) <= _ROUGH * before:
                break
        return level

    def _mixes(self, need: Need, level: float) -> Mixes:
        return self.ways.mixes(self.ways.relative(need(level)))

    def _price(self, share: Float) -> Float:
        """[M], price of one GPU of each pool."""
        out: Float = share * self.per_worker
        return out

    def _answer(self, mixes: Mixes, share: Float) -> tuple[float, Chosen]:
        """Minimum cost of the rates at a price, and the ways that attain it."""
        self.solves += 1
        costs = mixes.costs(self._price(share))
        way = costs.argmin(axis=0)
        return float(costs[way, np.arange(len(way))] @ self.ways.gpus), mixes.chosen(way)

    def _ties(self, mixes: Mixes, share: Float) -> Bool:
        """[J], jobs with two ways of least cost that use different GPUs."""
        costs = mixes.costs(self._price(share))
        close = costs <= costs.min(axis=0) * (1.0 + 1e-9) + 1e-15
        out: Bool = (close.sum(axis=0) > 1) & (mixes.need > 0)
        return out

    def _lower(self, need: Need, chosen: Chosen, share: Float, level: float, floor: float) -> float:
        """The level at which the rates cost 1 by the lines that support the jobs' costs; at least the floor."""
        slope, cost = chosen.support(self._price(share))
        at = chosen.mixes.need

        def beyond(t: float) -> float:
            there = self.ways.relative(need(t)) - at
            there *= slope
            there += cost
            return float(np.maximum(there, 0.0, out=there).sum()) - 1.0 - _NOISE

        if beyond(floor) >= 0.0:
            return floor
        if beyond(level) <= 0.0:
            return level
        return float(brentq(beyond, floor, level, xtol=1e-18 * level, rtol=1e-14, maxiter=1000))

    def _boxes(self, mixes: Mixes, share: Float, width: float) -> tuple[float, float, Float, Float, float]:
        """(Use of the fullest pool, cost, price, shares, width): of the best price, or of one that costs well over 1."""
        cost, chosen = self._answer(mixes, share)
        outside = 0
        for _ in range(_BOXES):
            before = share, cost, chosen
            box = Box.around(mixes, share, width, self.workers, level=True)
            box.add(chosen)
            for _ in range(_COLUMNS if box.scale == 1.0 else 1):
                share, over = box.solve()
                cost, chosen = self._answer(mixes, share)
                if over - cost <= max(FITS, 0.3 * (cost - 1.0)) and (box.scale == 1.0 or cost > 1.0 + FITS):
                    x = box.shares() if over <= 1.0 + _SETTLED else np.zeros(0)
                    return over, cost, share, x, width * (0.5 if box.within else 1.0)
                if box.scale == 1.0 and over <= 1.0:
                    return over, cost, share, box.shares(), width
                if not box.within:
                    box.widen(share)
                box.add(chosen)
            if box.scale != 1.0 and cost < before[1]:
                # The jobs that stood for all misled: a smaller box around the better price.
                (share, cost, chosen), width, outside = before, 0.3 * width, 0
            else:
                width, outside = box.next(width, outside)
        raise NotSolved(f"prices of {len(self.workers)} pools did not settle within {_BOXES} boxes.")
