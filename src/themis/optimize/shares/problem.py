"""Allocation problem and its answer (Gavel §3.1).

    0 <= X <= 1;   sum_k X[j, k] <= 1;   sum of gpus_j X[j, k] over jobs and the types k of a pool <= workers of the pool

A type may be virtual: with placement sensitivity a pool of GPUs has two types, consolidated and unconsolidated, with
their own rates. Leaves out pairs of jobs: see ``pairs``.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from themis.errors import InputError
from themis.model.units import Bool, Float, Int

Need = Callable[[float], Float]
"""Rate [J] that every job needs at a level; rises with the level, never beyond a job's fastest rate."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Problem:
    """Jobs J that share GPUs of types K, which belong to pools M.

    Attributes
    ----------
    rate
        Shape [J, K], T of the paper, steps/s (or any other unit of work/s) while the job runs on the type; 0 = barred.
    gpus
        Shape [J], GPUs that the job runs on (scale factor); >= 1.
    workers
        Shape [M], GPUs of each pool; > 0 where any job may run.
    pool
        Shape [K], the pool of each type; by default every type is a pool of its own.
    """

    rate: Float
    gpus: Int
    workers: Float
    pool: Int

    def __post_init__(self) -> None:
        jobs, types = self.rate.shape
        if self.gpus.shape != (jobs,) or self.pool.shape != (types,):
            raise InputError(
                f"rates are of {jobs} jobs and {types} types, but gpus has shape {self.gpus.shape} and pool "
                f"{self.pool.shape}; expected ({jobs},) and ({types},)."
            )
        if not np.isfinite(self.rate).all() or (self.rate < 0).any():
            j, k = np.argwhere(~np.isfinite(self.rate) | (self.rate < 0))[0]
            raise InputError(
                f"the rate of job {j} on type {k} is {self.rate[j, k]}, expected a number >= 0 (0 bars it)."
            )
        if (self.gpus < 1).any():
            j = int(np.argmin(self.gpus))
            raise InputError(f"job {j} wants {self.gpus[j]} GPUs, expected at least 1.")
        if types and not 0 <= self.pool.min() <= self.pool.max() < len(self.workers):
            raise InputError(
                f"pools of the types are {self.pool.tolist()}, expected numbers below {len(self.workers)}."
            )

    @classmethod
    def of(cls, rate: Float, gpus: Int, workers: Float, pool: Int | None = None) -> Problem:
        """A problem from plain arrays; a type is barred to gangs larger than its pool."""
        own = np.arange(rate.shape[1]) if pool is None else pool
        number = np.asarray(workers, dtype=np.float64)
        fits = gpus[:, None] <= number[own][None, :]
        return cls(rate=np.where(fits, rate, 0.0), gpus=gpus, workers=number, pool=own)

    def only(self, rows: Int) -> Problem:
        """Restriction to these jobs."""
        return replace(self, rate=self.rate[rows], gpus=self.gpus[rows])

    @property
    def jobs(self) -> int:
        """Number of jobs J."""
        return len(self.gpus)

    @property
    def types(self) -> int:
        """Number of types K."""
        return len(self.pool)

    @property
    def fastest(self) -> Float:
        """Shape [J], rate on the best single type all of the time: throughput(m, X_fastest); 0 if barred from all."""
        out: Float = np.zeros(self.jobs)
        for k in range(self.types):  # along the few types this is several times as fast as a reduction
            np.maximum(out, self.rate[:, k], out=out)
        return out

    @property
    def active(self) -> Bool:
        """Shape [J], jobs that can run at all."""
        return self.fastest > 0

    def best_of_pool(self) -> Float:
        """Shape [J, M], the better of a pool's types; a barred pool counts 0."""
        best: Float = np.zeros((self.jobs, len(self.workers)))
        for k, m in enumerate(self.pool.tolist()):
            best[:, m] = np.maximum(best[:, m], self.rate[:, k])
        return best

    def equal_rate(self) -> Float:
        """Shape [J], throughput(m, X_equal): the workers' mean rate, equal time on each worker."""
        out: Float = self.best_of_pool() @ (self.workers / max(float(self.workers.sum()), 1e-300))
        return out

    def isolated_rate(self, shares: Float | float | None = None) -> Float:
        """Shape [J], throughput(m, X_isolated): on 1/n of every pool, at most all of the time.

        Parameters
        ----------
        shares : n, how many shares the cluster is cut into; by default the number of jobs.
        """
        n = np.broadcast_to(np.asarray(self.jobs if shares is None else shares, dtype=np.float64), (self.jobs,))
        x = self.workers[None, :] / (np.maximum(n, 1e-300) * self.gpus)[:, None]
        x = x / np.maximum(x.sum(axis=1, keepdims=True), 1.0)
        out: Float = (x * self.best_of_pool()).sum(axis=1)
        return out

    def usage(self, x: Float) -> Float:
        """Shape [M], GPUs of each pool that shares ``x`` [J, K] use on average."""
        out: Float = np.bincount(self.pool, weights=self.gpus @ x, minlength=len(self.workers)).astype(np.float64)
        return out

    def throughput(self, x: Float) -> Float:
        """Shape [J], effective throughput: sum over types of rate times share."""
        out: Float = np.zeros(self.jobs)
        for k in range(self.types):
            out += self.rate[:, k] * x[:, k]
        return out


_MIX, _HALF = np.uint64(0x9E3779B97F4A7C15), np.uint64(29)
"""An odd factor that spreads bits, and a shift that brings high bits down: rows of numbers become one number each."""


def _differs(rows: NDArray[np.uint64]) -> Bool:
    """Shape [R], rows of [R, n] that are not like the one before; the first always."""
    out = np.ones(len(rows), dtype=bool)
    out[1:] = (rows[1:] != rows[:-1]).any(axis=1)
    return out


@dataclass(frozen=True, slots=True, eq=False)
class Alike:
    """Groups of jobs that no problem can tell apart: what one of a group gets in an optimum, all may get.

    Attributes
    ----------
    first : [C], a job of each group, in order of first appearance. ``of`` : [J], the group of each job.
    """

    first: Int
    of: Int

    @classmethod
    def by(cls, *columns: Float | Int) -> Alike:
        """Jobs with the same numbers in all of these columns, [J] or [J, n]."""
        bits = np.ascontiguousarray(np.column_stack(columns), dtype=np.float64).view(np.uint64)
        mixed = np.zeros(len(bits), dtype=np.uint64)
        for k in range(bits.shape[1]):
            mixed = (mixed ^ bits[:, k]) * _MIX
            mixed ^= mixed >> _HALF
        order = np.argsort(mixed, kind="stable")
        new, by_mixed = _differs(bits[order]), _differs(mixed[order, None])
        if (new != by_mixed).any():  # two kinds of jobs with one number
            order = np.lexsort(bits.T)
            new = _differs(bits[order])
        # Both orders are stable, so that the first of a group's rows is the least.
        first: Int = order[new]
        rank = np.empty_like(first)
        rank[np.argsort(first)] = np.arange(len(first))
        of = np.empty_like(order)
        of[order] = rank[new.cumsum() - 1]
        return cls(np.sort(first), of)

    def merged(self, problem: Problem) -> Problem:
        """One job for each group, on the GPUs of all of them together."""
        rows, members = self.first, np.bincount(self.of, minlength=len(self.first))
        gpus = problem.gpus[rows] * members
        return Problem(rate=problem.rate[rows], gpus=gpus, workers=problem.workers, pool=problem.pool)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Shares:
    """Time shares with their proof.

    Attributes
    ----------
    x
        Shape [J, K], valid for its problem.
    objective, bound
        Value of ``x`` and what no valid shares can better: ``|bound - objective|`` is the proven gap.
    price
        Shape [M], price of a GPU of each pool in the proof (zeros if there is none).
    due
        Shape [J], part of ``x`` that the objective needs; the rest is what it left over. None where it was not asked for.
    late
        Shape [J], jobs whose deadline is given up. None where there are no deadlines.
    """

    x: Float
    objective: float
    bound: float
    price: Float
    due: Float | None = None
    late: Bool | None = None

    @property
    def gap(self) -> float:
        """Relative gap."""
        return abs(self.bound - self.objective) / max(abs(self.bound), 1e-300)
