"""Objectives that are sums over jobs, with pairs on one GPU: Gavel §4.2 with §3.1's space sharing.

    maximise sum_j worth_j sum_k throughput(j, k) / cost_k - expense_k GPUs   over shares of jobs and of pairs

FIFO, shortest job first, total throughput and throughput per cost differ in ``worth`` and ``cost`` alone. Pairs are
generated as in ``pairs``: the program's prices of time and GPUs say which would gain, and none is left in the end. Prices
that are raised by what the best pair still gains prove how far the optimum over all pairs can be. Jobs that are alike, worth
included, are one class with a multiplicity.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
from scipy.sparse import coo_array

from themis.errors import NotSolved
from themis.gavel.dealing import deal
from themis.gavel.pairs import GAP, Classes, PairRates, PairShares, best_partners, paired_throughput
from themis.gavel.problem import Problem
from themis.model.units import NONE, Float, Int
from themis.solvers.columns import ColumnProgram

_ROUNDS = 400


def best_total_paired(
    problem: Problem, pairs: PairRates, worth: Float, cost: Float | None = None, expense: Float | None = None
) -> PairShares:
    """The shares of jobs and pairs with the largest sum; ``bound`` is what no shares exceed.

    Parameters
    ----------
    worth : [J], of a unit of throughput; >= 0. ``cost`` : [K], divides it, > 0. ``expense`` : [K], of a GPU used.

    Raises
    ------
    NotSolved : columns do not settle.
    """
    if not problem.active.any():
        none = np.zeros((0, problem.types))
        return PairShares(
            combos=np.zeros((0, 2), np.int64), x=none, throughput=np.zeros(problem.jobs), bound=0.0, columns=0
        )
    classes = Classes.of(problem, pairs, worth[:, None])
    first, count = classes.first, classes.count
    rate, gpus, model = problem.rate[first], problem.gpus[first].astype(np.float64), pairs.model[first]
    value = worth[first, None] / np.broadcast_to(1.0 if cost is None else cost, (problem.types,))
    spent = np.zeros(problem.types) if expense is None else expense
    alone = value * rate - gpus[:, None] * spent
    scale = float(np.abs(alone).max(initial=0.0)) or 1.0
    value, spent, alone = value / scale, spent / scale, alone / scale
    sharers = np.flatnonzero((gpus == 1) & (model >= 0))
    high = np.concatenate([count, problem.workers])
    program = ColumnProgram(np.full(len(high), -np.inf), high, interior=True)
    at, kind = np.nonzero(rate > 0)
    columns = np.stack([at, np.full(len(at), NONE), kind], axis=1)
    _add(program, problem, gpus, columns, alone[at, kind])
    known: set[tuple[int, int, int]] = set()
    for _ in range(_ROUNDS):
        optimum = program.solve()
        price = np.maximum(optimum.duals[len(first) :], 0.0)
        gpu = price[problem.pool]
        # A class's time is worth what it gains alone beyond the GPUs that it takes, and at least what the program says.
        net = np.where(rate > 0, alone - gpus[:, None] * gpu, 0.0)
        time = np.maximum(np.maximum(optimum.duals[: len(first)], 0.0), net.max(axis=1, initial=0.0))
        found, most = best_partners(
            problem, pairs, first[sharers], value[sharers], gpu + spent, time[sharers], count[sharers] < 2
        )
        bound = float(time @ count) + 0.5 * float(most @ count[sharers]) + float(price @ problem.workers)
        fresh = sorted({(int(sharers[a]), int(sharers[b]), k) for a, b, k in found} - known)
        if bound - optimum.objective <= GAP * max(bound, 1.0) or not (fresh or program.tighten()):
            combos, x = deal(classes.members, _masses(columns, optimum.x, problem.types), problem.types)
            throughput = paired_throughput(problem, pairs, combos, x)
            return PairShares(combos=combos, x=x, throughput=throughput, bound=bound * scale, columns=len(columns))
        if fresh:
            more = np.array(fresh, dtype=np.int64)
            a, b, k = more.T
            forth, back = pairs.rate[model[a], model[b], k], pairs.rate[model[b], model[a], k]
            _add(program, problem, gpus, more, value[a, k] * forth + value[b, k] * back - spent[k])
            columns = np.vstack([columns, more])
            known.update(fresh)
    raise NotSolved(f"pairs of {len(first)} classes of jobs did not settle within {_ROUNDS} rounds.")


def cost_ratio_paired(problem: Problem, pairs: PairRates, cost: Float) -> tuple[PairShares, float]:
    """The printed form of ``total.cost_ratio`` over jobs and pairs, by Dinkelbach's method: shares and their ratio."""

    def of(found: PairShares) -> tuple[float, float]:
        return float(found.throughput.sum()), float((problem.gpus[found.combos[:, 0]] @ found.x) @ cost)

    worth = np.ones(problem.jobs)
    found, ratio = best_total_paired(problem, pairs, worth), 0.0
    while (bill := of(found)[1]) > 0:
        better = of(found)[0] / bill
        if better <= ratio * (1 + 1e-12):
            break
        ratio = better
        following = best_total_paired(problem, pairs, worth, expense=ratio * cost)
        if of(following)[1] <= 1e-12:
            break
        found = following
    return found, ratio


def _add(program: ColumnProgram, problem: Problem, gpus: Float, columns: Int, gain: Float) -> None:
    """Rows: time of each class, GPUs of each pool."""
    first, second, kind = columns.T
    at, two = np.arange(len(first)), second != NONE
    rows = np.concatenate([first, second[two], len(gpus) + problem.pool[kind]])
    values = np.concatenate([np.ones(len(first) + int(two.sum())), gpus[first]])
    shape = (len(gpus) + len(problem.workers), len(first))
    # tocsc sums the two halves of a pair of one class
    program.add(gain, coo_array((values, (rows, np.concatenate([at, at[two], at]))), shape=shape).tocsc())


def _masses(columns: Int, time: Float, types: int) -> Iterator[tuple[int, int, Float]]:
    """(class, other class or -1, time [K] in all) of what runs."""
    runs = np.flatnonzero(time > 1e-12)
    both, row = np.unique(columns[runs, :2], axis=0, return_inverse=True)
    mass = np.zeros((len(both), types))
    np.add.at(mass, (row.reshape(-1), columns[runs, 2]), time[runs])
    for (a, b), one in zip(both.tolist(), mass):
        yield a, b, one
