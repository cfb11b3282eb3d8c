"""Prices near the best ones by Newton's method, where jobs waver between ways instead of leaping from one to the next.

    smooth_j(p) = -mu_j log sum_q exp(-c_jq(p) / mu_j)   for the least cost min_q c_jq(p) of a job

At prices p a job takes its cheapest way (``ways``), so the use of a pool leaps as prices move. Smoothed, use falls steadily, and
a few Newton steps in as many dimensions as there are pools end where all pools are just full. As mu falls these prices
approach the best ones. They prove nothing: ``boxes`` begin there, narrow ones, and find the proof or continue.

A part of the jobs comes first. Then only ways count that may be the cheapest within a factor of the prices so far, and only
jobs that have two of them: ever fewer, as the factor falls.

The questions are those of ``boxes``: the most gain within the GPUs, or, with prices that are worth 1 together, the prices at
which given rates cost most.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from themis.model.units import Bool, Float, Int
from themis.optimize.shares.ways import Mixes

_SAMPLE = 256
"""Jobs of the part for which prices are sought first."""

_FIRST = (0.5, 0.5, 0.2)
"""Smoothing for the part of the jobs, relative to what a job's GPUs cost."""

Stages = tuple[tuple[float, tuple[float, ...]], ...]

STAGES: Stages = ((2.0, (0.05,)), (1.2, (0.02,)), (1.06, (0.01, 0.004)))
"""Factor within which prices may move, and smoothing."""

_STEPS, _HALVINGS = 8, 8
_ENOUGH = 0.5
"""A step that moves no price by more than this part of the smoothing is the last: the next would be far shorter."""

_STIFF = 1e-4
"""Minimum part of a pool's GPUs that leave it where its price doubles; it damps prices that nothing else determines."""

_DOWN, _UP = 0.9, 3.0
"""Maximum relative decrease of a price in one step, and maximum relative increase."""

_SPARE = 0.01
"""Unused part of a pool above which a small price becomes 0."""

_LEAST, _SMALL = 1e-9, 0.05
"""Prices relative to the mean: one that counts as 0, and the smallest base of relative steps and factors."""


def near(mixes: Mixes, workers: Float, *, level: bool, price: Float, stages: Stages = STAGES) -> Float:
    """[M], prices of a GPU near the best ones; with ``level`` all GPUs are worth as much as at first.

    Parameters
    ----------
    price : [M], where the search begins, as from ``roughly`` for a part of the jobs. ``stages`` : see ``STAGES``.
    """
    for factor, smoothings in stages:
        slack = (factor - 1.0) * np.maximum(price, _SMALL * _mean(price, workers)) * (workers > 0)
        least = mixes.costs(price + slack).min(axis=0)
        may = mixes.costs(np.maximum(price - slack / factor, 0.0)) <= least + 1e-12 * np.abs(least)
        wavering = Wavering.of(mixes, may, workers)
        for smoothing in smoothings:
            price = wavering.balanced(price, smoothing, level=level)
    return price


def roughly(mixes: Mixes, workers: Float, *, level: bool, price: Float) -> Float:
    """Same as ``near`` for few jobs: all of their ways, strongly smoothed."""
    wavering = Wavering.of(mixes, mixes.reach, workers)
    for smoothing in _FIRST:
        price = wavering.balanced(price, smoothing, level=level)
    # A pool with GPUs to spare in the part may be full for all.
    raised = np.where(workers > 0, np.maximum(price, _SMALL * _mean(price, workers)), 0.0)
    return raised * (float(price @ workers) / float(raised @ workers))


def part_of(gpus: Float, workers: Float) -> tuple[Int, Float]:
    """Rows of some of many jobs, and as large a part of the GPUs [M]."""
    rows = np.arange(0, len(gpus), max(len(gpus) // _SAMPLE, 1))
    return rows, workers * float(gpus[rows].sum() / gpus.sum())


def _mean(price: Float, workers: Float) -> float:
    return float(price @ workers / workers.sum())


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Wavering:
    """Ways E of jobs J that have several which may be the cheapest, ordered by job.

    Attributes
    ----------
    job : [E]. ``start`` : [J], the first way of each job.
    pool, use : [2, E], GPUs on two pools; the pool M is idleness. ``loss`` : [E], minus what the way gains.
    size : [J], GPUs that the job uses, about.
    fixed : [M], GPUs that all other jobs use; ``workers`` : [M].
    """

    job: Int
    start: Int
    pool: Int
    use: Float
    loss: Float
    size: Float
    fixed: Float
    workers: Float

    @classmethod
    def of(cls, mixes: Mixes, may: Bool, workers: Float) -> Wavering:
        """Restrict to the ways ``may`` [Q, J]; every job has at least one."""
        several = may.sum(axis=0) > 1
        rows = np.flatnonzero(several)
        job, way = np.nonzero(may.T[rows])
        ways, place = mixes.ways, rows[job]
        gpus, part = ways.gpus[place], mixes.part[way, place]
        return cls(
            job=job,
            start=np.searchsorted(job, np.arange(len(rows))),
            pool=np.stack([ways.pool[ways.first[way]], ways.pool[ways.second[way]]]),
            use=np.stack([gpus * (1.0 - part), gpus * part]),
            loss=-mixes.gains(way, place),
            size=mixes.sizes()[rows],
            fixed=mixes.chosen(may.argmax(axis=0)).usage(~several),
            workers=workers,
        )

    def at(self, price: Float, mu: Float) -> tuple[float, Float, Float]:
        """(Sum of smoothed costs, use [M], how use falls with prices [M, M]) at prices [M] of a GPU.

        Parameters
        ----------
        mu : [J], by how much more than the cheapest a way may cost that is taken often.
        """
        pools, jobs = len(self.workers) + 1, len(self.start)
        of_pool = np.append(price, 0.0)
        cost = of_pool[self.pool[0]] * self.use[0]
        cost += of_pool[self.pool[1]] * self.use[1]
        cost += self.loss
        least = np.minimum.reduceat(cost, self.start) if jobs else np.zeros(0)
        often = np.exp((least[self.job] - cost) / mu[self.job])
        total = np.add.reduceat(often, self.start) if jobs else np.zeros(0)
        often /= total[self.job]
        taken = often * self.use
        mean = np.bincount((self.job * pools + self.pool).ravel(), taken.ravel(), jobs * pools).reshape(jobs, pools)
        taken /= mu[self.job]
        first, second = self.pool
        alone = np.bincount(self.pool.ravel(), (taken * self.use).ravel(), pools)
        both = np.bincount(first * pools + second, taken[0] * self.use[1], pools**2).reshape(pools, pools)
        fall = np.diag(alone) + both + both.T - mean.T @ (mean / mu[:, None])
        value = float(self.fixed @ price) + float((least - mu * np.log(total)).sum())
        return value, self.fixed + mean.sum(axis=0)[:-1], fall[:-1, :-1]

    def balanced(self, price: Float, smoothing: float, *, level: bool) -> Float:
        """[M], about the prices at which the smoothed use is balanced, from ``price`` [M] on.

        Without ``level`` they minimise ``p @ workers - sum smooth(p)``: pools that have a price are full. With it, they maximise
        ``sum smooth(p)`` where ``p @ workers`` is as before: pools that have a price are used equally.
        """
        workers, mean = self.workers, _mean(price, self.workers)
        worth, least, mu = mean * float(workers.sum()), _LEAST * mean, smoothing * mean * self.size
        price = np.where(workers > 0, np.maximum(price, least), 0.0)
        cost, used, fall = self.at(price, mu)
        for _ in range(_STEPS):
            even = workers * float(used @ price) / worth if level else workers
            slope = even - used
            free = np.flatnonzero((workers > 0) & ((price > least) | (slope < 0.0)))
            stiff = fall[np.ix_(free, free)] + np.diag(_STIFF * workers[free] / np.maximum(price[free], _SMALL * mean))
            if level:
                stiff += np.outer(workers[free], workers[free]) * (float(used @ price) / worth**2)
            step = np.zeros(len(price))
            step[free] = -np.linalg.solve(stiff, slope[free])
            step = np.clip(step, -_DOWN * price, _UP * np.maximum(price, _SMALL * mean))
            gain = -float(slope @ step)
            for _ in range(_HALVINGS):
                there = np.where(workers > 0, np.maximum(price + step, least), 0.0)
                if level:
                    there *= worth / float(there @ workers)
                found, use, falls = self.at(there, mu)
                better = found - cost - (0.0 if level else float((there - price) @ workers))
                if better >= 1e-4 * gain:
                    break
                step, gain = 0.5 * step, 0.5 * gain
            else:
                break
            moved = np.abs(there - price) / np.maximum(price, _SMALL * mean)
            price, cost, used, fall = there, found, use, falls
            if moved.max() <= _ENOUGH * smoothing:
                break
        even = workers * float(used @ price) / worth if level else workers
        spare = (price < _SMALL * _mean(price, workers)) & (used < (1.0 - _SPARE) * even)
        return np.where(spare | (price <= least), 0.0, price)
