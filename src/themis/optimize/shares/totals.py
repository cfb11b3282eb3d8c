"""The largest total gain of time shares, by prices of the pools: jobs choose separately, few are open near the best.

    maximise  sum gain X   over valid shares with  throughput_j >= least_j

A job is best off on one type all of the time, idle, or, where that is too slow for what it must get, with a mixture of two
types that is just fast enough (``ways``). Prices of the pools prove the total; they are found in boxes
(``boxes``), the first one over a part of the jobs and any price.
"""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass

import numpy as np

from themis.errors import NotSolved
from themis.model.units import Float, Int
from themis.optimize.shares.boxes import Box
from themis.optimize.shares.problem import Alike, Problem, Shares
from themis.optimize.shares.smooth import near, part_of, roughly
from themis.optimize.shares.ways import Mixes, Ways

_BOXES, _FEW_BOXES, _COLUMNS, _FIRST = 60, 2, 20, 0.1

_SAMPLE = 128
"""Jobs of the part for which a program finds prices."""

_WIDTH = 0.008
"""Relative width of a box around ``smooth.near``'s prices in which the best ones mostly lie."""

_ABSURD = 100.0
"""Smoothed prices of all GPUs together over the jobs' largest gains, above which they diverged."""

_LEAST = 1e-12
"""Minimum price at which a search begins, relative to the largest gain."""

_SETTLED = 2e-9
"""Relative overuse of a pool that is taken: what the programs' tolerance allows."""

_GAP = 1e-10
"""Proven relative gap."""


@dataclass(frozen=True, kw_only=True, eq=False)
class Worths(Mixes):
    """Ways with their gains.

    Attributes
    ----------
    gain : [K + 1, J], of all of the time on each point. ``loss`` : [Q, J], minus what each way gains; infinite where it is barred.
    """

    gain: Float
    loss: Float

    @classmethod
    def of(cls, problem: Problem, gain: Float, least: Float) -> Worths:
        """Ways to have at least these rates [J], for gains [J, K]."""
        plain = Ways.of(problem)
        types, every = problem.types, np.arange(problem.types)
        need = plain.relative(least)
        mixes = plain.mixes(need)
        # Idleness is one way, not one with each type.
        idle = np.flatnonzero(need <= 0.0)
        mixes.bar[:, idle] = np.inf
        mixes.bar[plain.able[:, idle].argmax(axis=0), idle] = 0.0
        fast = plain.able[:types] & (plain.rate[:types] > need * (1.0 + 1e-12))
        ways = Ways(
            rate=plain.rate,
            scale=plain.scale,
            gpus=plain.gpus,
            first=np.append(plain.first, np.full(types, types)),
            second=np.append(plain.second, every),
            per_rise=np.vstack([plain.per_rise, plain.per_rise[:types]]),
            able=np.vstack([plain.able, fast]),
            pool=plain.pool,
        )
        part, of_points = np.vstack([mixes.part, np.ones(fast.shape)]), np.vstack([gain.T, np.zeros(problem.jobs)])
        bar = np.vstack([mixes.bar, np.where(fast, 0.0, np.inf)])
        gained = (1.0 - part) * of_points[ways.first] + part * of_points[ways.second]
        return cls(ways=ways, need=need, part=part, bar=bar, gain=of_points, loss=bar - gained)

    def only(self, rows: Int) -> Worths:
        """The same for some of the jobs."""
        return Worths(
            ways=self.ways.only(rows),
            need=self.need[rows],
            part=self.part[:, rows],
            bar=self.bar[:, rows],
            gain=self.gain[:, rows],
            loss=self.loss[:, rows],
        )

    def sizes(self) -> Float:
        """[J], GPUs of each job: it may use all of them."""
        return self.ways.gpus

    def costs(self, price: Float) -> Float:
        """[Q, J], price of each way beyond what it gains."""
        price = self.ways.of_points(price)
        first = price[self.ways.first, None]
        out: Float = self.part * (price[self.ways.second, None] - first)
        out += first
        out *= self.ways.gpus
        out += self.loss
        return out

    def gains(self, way: Int, job: Int) -> Float:
        """Gains of jobs from the ways chosen for them."""
        first, second, part = self.ways.first[way], self.ways.second[way], self.part[way, job]
        out: Float = (1.0 - part) * self.gain[first, job] + part * self.gain[second, job]
        return out


def most(problem: Problem, gain: Float, least: Float) -> Shares:
    """Maximise ``sum gain X`` where every job gets its least rate.

    Parameters
    ----------
    gain : [J, K]. ``least`` : [J], rates; 0 for jobs that need none.

    Raises
    ------
    NotSolved : the least rates cannot be had together, or prices do not settle.
    """
    rows = np.flatnonzero(problem.active)
    groups = Alike.by(problem.rate[rows], problem.gpus[rows], gain[rows], least[rows])
    some = groups.merged(problem.only(rows))
    of_group = gain[rows[groups.first]] * (some.gpus / problem.gpus[rows[groups.first]])[:, None]
    scale = float(np.abs(of_group).max(initial=0.0)) or 1.0
    worths = Worths.of(some, of_group / scale, least[rows[groups.first]])
    share, x, bound = _search(worths, problem.workers)
    out = np.zeros_like(problem.rate)
    out[rows] = x[groups.of]
    price = np.divide(share, problem.workers, out=np.zeros(len(share)), where=problem.workers > 0) * scale
    return Shares(x=out, objective=float((gain * out).sum()), bound=bound * scale, price=price)


def _search(worths: Worths, workers: Float) -> tuple[Float, Float, float]:
    """(Price of each pool's GPUs together, shares, the bound that the price proves), in units of the largest gain.

    Where jobs need rates, boxes begin at smoothed prices. Otherwise many jobs idle or run by one price alone: prices of a program
    for a part of the jobs are nearer then. They come second where smoothed ones are too far away: without bound where least rates
    fill the pools.
    """
    if worths.need.any():
        share = _smoothed(worths, workers)
        if share.sum() <= _ABSURD * worths.gain.max(axis=0).sum():
            with suppress(NotSolved):
                return _boxes(worths, workers, (share, _WIDTH), _FEW_BOXES)
    return _boxes(worths, workers, (_first(worths, workers), _FIRST), _BOXES)


def _boxes(worths: Worths, workers: Float, begin: tuple[Float, float], most_boxes: int) -> tuple[Float, Float, float]:
    """Same as ``_search``, from a price and a width on."""
    per_worker = np.divide(1.0, workers, out=np.zeros(len(workers)), where=workers > 0)
    jobs = np.arange(len(worths.need))
    (share, width), outside = begin, 0
    for _ in range(most_boxes):
        box = Box.around(worths, share, width, workers, level=False)
        for _ in range(_COLUMNS if box.scale == 1.0 else 1):
            costs = worths.costs(share * per_worker)
            way = costs.argmin(axis=0)
            bound = float(share.sum()) - float(costs[way, jobs].sum())
            box.add(worths.chosen(way))
            share, over = box.solve()
            if not box.within:
                box.widen(share)
            elif box.scale == 1.0 and over <= 1.0 + _SETTLED:
                costs = worths.costs(share * per_worker)
                bound = float(share.sum()) - float(costs.min(axis=0).sum())
                x = box.shares()
                value = float((worths.gain[:-1].T * x).sum())
                if bound - value <= _GAP * max(abs(bound), 1e-300):
                    return share, x, bound
        width, outside = box.next(width, outside)
    raise NotSolved(f"prices of {len(workers)} pools did not settle within {most_boxes} boxes.")


def _smoothed(worths: Worths, workers: Float) -> Float:
    """A price to begin with, by smoothed costs of all jobs."""
    # At this price of all GPUs about half of the jobs would idle.
    middle = float(np.median(worths.gain.max(axis=0) / worths.ways.gpus))
    price = np.where(workers > 0, max(middle, _LEAST), 0.0)
    rows, part = part_of(worths.ways.gpus, workers)
    price = roughly(worths.only(rows), part, level=False, price=price)
    return near(worths, workers, level=False, price=price) * workers


def _first(worths: Worths, workers: Float) -> Float:
    """A price to begin with: that of a part of the jobs with as large a part of the GPUs."""
    jobs, gpus = len(worths.need), worths.ways.gpus
    rows = np.arange(0, jobs, -(-jobs // _SAMPLE))
    some, part = worths.only(rows), float(gpus[rows].sum() / gpus.sum())
    box = Box.around(some, workers, np.inf, workers * part, level=False)
    box.add(some.chosen(np.zeros(len(rows), dtype=np.int64)))
    share, _ = box.solve()
    return share / part
