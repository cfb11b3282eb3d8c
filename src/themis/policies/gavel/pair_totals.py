"""Objectives that are sums over jobs, with pairs on one GPU: Gavel §4.2 with §3.1's space sharing.

    maximise sum_j worth_j sum_k throughput(j, k) / cost_k - expense_k GPUs   over shares of jobs and of pairs
    subject to  least_j <= throughput(j) <= most_j   for the jobs that have such limits

FIFO, shortest job first, total throughput and throughput per cost differ in ``worth`` and ``cost`` alone. Pairs are
generated as in ``pairs``: the program's prices of time and GPUs say which would gain, and none is left in the end. Prices
that are raised by what the best pair still gains prove how far the optimum over all pairs can be. Jobs that are equal,
worth included, are one class with a multiplicity.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from scipy.sparse import coo_array, csc_array

from themis.errors import NotSolved
from themis.model.units import NONE, Float, Int
from themis.optimize.column_generation import ColumnProgram
from themis.optimize.shares.classes import allocate
from themis.optimize.shares.pairs import (
    GAP,
    Classes,
    PairProgram,
    PairRates,
    PairShares,
    paired_throughput,
)
from themis.optimize.shares.partners import Partners
from themis.optimize.shares.problem import Problem

_ROUNDS = 400


def best_total_paired(
    problem: Problem,
    pairs: PairRates,
    worth: Float,
    cost: Float | None = None,
    expense: Float | None = None,
    least: Float | None = None,
) -> PairShares:
    """The shares of jobs and pairs with the largest sum; ``bound`` is what no shares exceed.

    Parameters
    ----------
    worth : [J], of a unit of throughput; >= 0. ``cost`` : [K], divides it, > 0. ``expense`` : [K], of a GPU used.
    least : [J], throughput that every job must get, up to a few parts in 10⁹; together they must be possible.

    Raises
    ------
    NotSolved : columns do not settle, or ``least`` cannot be met.
    """
    none = np.zeros(problem.jobs)
    low = none if least is None else least * (1.0 - 5 * GAP)
    return priced_total(problem, pairs, worth, low, none, cost, expense)[0]


def priced_total(
    problem: Problem,
    pairs: PairRates,
    worth: Float,
    low: Float,
    high: Float,
    cost: Float | None = None,
    expense: Float | None = None,
) -> tuple[PairShares, Float, float]:
    """Same as ``best_total_paired``, between limits of throughput, with the proof's bound on every job's rate.

    Parameters
    ----------
    low, high : [J], minimum and maximum throughput of a job; 0 without a limit.

    Returns
    -------
    Shares; [J], what a unit of each job's throughput is worth, limits included, if neither cost nor expense is given;
    and the most that all throughput can be worth by that.
    """
    if not problem.active.any():
        none = np.zeros((0, problem.types))
        return (
            PairShares(
                combos=np.zeros((0, 2), np.int64), x=none, throughput=np.zeros(problem.jobs), bound=0.0, columns=0
            ),
            np.zeros(problem.jobs),
            0.0,
        )
    classes = Classes.of(problem, pairs, np.column_stack([worth, low, high]))
    first, count = classes.first, classes.count
    rate, gpus, model = problem.rate[first], problem.gpus[first].astype(np.float64), pairs.model[first]
    value = worth[first, None] / np.broadcast_to(1.0 if cost is None else cost, (problem.types,))
    spent = np.zeros(problem.types) if expense is None else expense
    alone = value * rate - gpus[:, None] * spent
    scale = float(np.abs(alone).max(initial=0.0)) or 1.0
    value, spent, alone = value / scale, spent / scale, alone / scale
    sharers = np.flatnonzero(model >= 0)
    partners = Partners.of(problem, pairs.model, pairs.rate, first[sharers], count[sharers] < 2)
    rows = _Rows.of(problem, classes, low[first], high[first])
    program = ColumnProgram(rows.low, rows.high, interior=True)
    at, kind = np.nonzero(rate > 0)
    columns = np.stack([at, np.full(len(at), NONE), kind], axis=1)
    program.add(alone[at, kind], rows.matrix(columns, rate[at, kind], np.zeros(len(at))))
    known: set[tuple[int, int, int]] = set()

    def grow(fresh: list[tuple[int, int, int]]) -> None:
        nonlocal columns
        more = np.array(fresh, dtype=np.int64)
        a, b, k = more.T
        forth, back = pairs.rate[model[a], model[b], k], pairs.rate[model[b], model[a], k]
        gain = value[a, k] * forth + value[b, k] * back - gpus[a] * spent[k]
        program.add(gain, rows.matrix(more, forth, back))
        columns = np.vstack([columns, more])
        known.update(fresh)

    if low.any() and (seeds := _reaching(problem, pairs, classes, low)):
        grow(seeds)
    for _ in range(_ROUNDS):
        optimum = program.solve()
        price = np.maximum(optimum.duals[len(first) : len(first) + len(problem.workers)], 0.0)
        gpu, limit = price[problem.pool], rows.limits(optimum.duals)
        asked = value - limit[:, None]
        # A class's time is worth its gain alone beyond the GPUs that it takes, and at least the program's value.
        net = np.where(rate > 0, alone - limit[:, None] * rate - gpus[:, None] * gpu, 0.0)
        time = np.maximum(np.maximum(optimum.duals[: len(first)], 0.0), net.max(axis=1, initial=0.0))
        found, most = partners.best(asked[sharers], gpu + spent, time[sharers])
        there = float(time @ count) + 0.5 * float(most @ count[sharers]) + float(price @ problem.workers)
        bound = there + float((limit * np.where(limit > 0, high[first], low[first])) @ count)
        fresh = sorted({(int(sharers[a]), int(sharers[b]), k) for a, b, k in found} - known)
        if bound - optimum.objective <= GAP * max(bound, 1.0) or not (fresh or program.tighten()):
            combos, x = allocate(classes.members, _masses(columns, optimum.x, problem.types), problem.types)
            throughput = paired_throughput(problem, pairs, combos, x)
            shares = PairShares(combos=combos, x=x, throughput=throughput, bound=bound * scale, columns=len(columns))
            job = np.where(problem.active, asked.max(axis=1, initial=0.0)[classes.kind(problem.jobs)], 0.0)
            return shares, job * scale, there * scale
        if fresh:
            grow(fresh)
    raise NotSolved(f"pairs of {len(first)} classes of jobs did not settle within {_ROUNDS} rounds.")


def _reaching(problem: Problem, pairs: PairRates, classes: Classes, low: Float) -> list[tuple[int, int, int]]:
    """Pairs of classes that, together with single jobs, give every job its least throughput."""
    program = PairProgram(problem, pairs, classes)
    if (part := program.solve(classes.mean(low) * (1.0 + 2 * GAP))) < 1.0 - 2 * GAP:
        raise NotSolved(f"the least throughputs of {problem.jobs} jobs cannot be had together: {part:.9f} of them can.")
    runs = [(a, b, k) for a, b, mass in program.masses() for k in np.flatnonzero(mass).tolist()]
    return sorted((a, b, k) for a, b, k in runs if b != NONE)


def cost_ratio_paired(
    problem: Problem, pairs: PairRates, cost: Float, least: Float | None = None
) -> tuple[PairShares, float]:
    """The printed form of ``total.cost_ratio`` over jobs and pairs, by Dinkelbach's method: shares and their ratio.

    A pair's GPU is paid once. ``least`` : as of ``best_total_paired``.
    """

    def of(found: PairShares) -> tuple[float, float]:
        return float(found.throughput.sum()), float((problem.gpus[found.combos[:, 0]] @ found.x) @ cost)

    worth = np.ones(problem.jobs)
    found, ratio = best_total_paired(problem, pairs, worth, least=least), 0.0
    while (bill := of(found)[1]) > 0:
        better = of(found)[0] / bill
        if better <= ratio * (1 + 1e-12):
            break
        ratio = better
        following = best_total_paired(problem, pairs, worth, expense=ratio * cost, least=least)
        if of(following)[1] <= 1e-12:
            break
        found = following
    return found, ratio


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class _Rows:
    """Rows: time of each class, GPUs of each pool, throughput of each class with a limit, in units of the limit.

    Attributes
    ----------
    place : [C], the limit's row of each class, -1 without. ``unit`` : [C], the limit; 1 without.
    """

    gpus: Float
    pool: Int
    place: Int
    unit: Float
    low: Float
    high: Float

    @classmethod
    def of(cls, problem: Problem, classes: Classes, least: Float, most: Float) -> _Rows:
        limited = np.flatnonzero((least > 0) | (most > 0))
        plain = len(classes.first) + len(problem.workers)
        place = np.full(len(classes.first), NONE)
        place[limited] = plain + np.arange(len(limited))
        unit = np.where(least > 0, least, np.where(most > 0, most, 1.0))
        count = classes.count[limited]
        upper = np.where(most[limited] > 0, most[limited] / unit[limited], np.inf)
        return cls(
            gpus=problem.gpus[classes.first].astype(np.float64),
            pool=problem.pool,
            place=place,
            unit=unit,
            low=np.concatenate([np.full(plain, -np.inf), count * least[limited] / unit[limited]]),
            high=np.concatenate([classes.count, problem.workers, count * upper]),
        )

    def limits(self, duals: Float) -> Float:
        """[C], price of a unit of throughput: > 0 at an upper limit, < 0 at a lower limit."""
        out: Float = np.where(self.place != NONE, duals[self.place], 0.0) / self.unit
        return out

    def matrix(self, columns: Int, forth: Float, back: Float) -> csc_array:
        """Columns of (class, other or -1, type) with the rates of each of the two."""
        first, second, kind = columns.T
        at, two = np.arange(len(first)), second != NONE
        rows = [first, second[two], len(self.gpus) + self.pool[kind]]
        values = [np.ones(len(first)), np.ones(int(two.sum())), self.gpus[first]]
        where = [at, at[two], at]
        for one, rate in ((first, forth), (second, back)):
            has = np.flatnonzero((one != NONE) & (self.place[one] != NONE))
            rows.append(self.place[one[has]])
            values.append(rate[has] / self.unit[one[has]])
            where.append(has)
        shape = (len(self.low), len(first))
        # tocsc sums the two halves of a pair of one class
        return coo_array((np.concatenate(values), (np.concatenate(rows), np.concatenate(where))), shape=shape).tocsc()


def _masses(columns: Int, time: Float, types: int) -> Iterator[tuple[int, int, Float]]:
    """(class, other class or -1, total time [K]) of the columns that run."""
    runs = np.flatnonzero(time > 1e-12)
    both, row = np.unique(columns[runs, :2], axis=0, return_inverse=True)
    mass = np.zeros((len(both), types))
    np.add.at(mass, (row.reshape(-1), columns[runs, 2]), time[runs])
    for (a, b), one in zip(both.tolist(), mass):
        yield a, b, one
