"""Objectives that are sums over jobs and types: Gavel §4.2. One linear program each, in HiGHS.

- FIFO and shortest job first: throughput relative to the fastest type, weighted by M - m in the order of precedence
- total throughput, cost-adjusted throughput, and the latter with deadlines

Differs from the paper: the printed ratio of sums is best where only the one best (job, type) runs; see ``cost_adjusted``.
"""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass

import numpy as np
from scipy.sparse import coo_array, csc_array, hstack, vstack

from themis.errors import NotSolved
from themis.model.units import NONE, Bool, Float, Int
from themis.optimize import MixedIntegerProgram, solve
from themis.optimize.column_generation import ColumnProgram
from themis.optimize.shares.level import highest_level
from themis.optimize.shares.problem import Problem, Shares
from themis.optimize.shares.totals import most

FITS = 1e-9
"""Relative overuse of a pool that valid shares may have."""

MANY = 200
"""Jobs from which prices of the pools (``optimize.shares.totals``) are quicker than a program over all jobs."""


def best_total(problem: Problem, gain: Float, least: Float | None = None) -> Shares:
    """Maximise ``sum gain X`` over valid shares.

    Parameters
    ----------
    gain : [J, K]. ``least`` : [J], throughput that every job must get; together they must be possible.

    Raises
    ------
    NotSolved : ``least`` cannot be met.
    """
    job, kind = np.nonzero(problem.rate > 0)
    if not len(job):
        return Shares(x=np.zeros_like(problem.rate), objective=0.0, bound=0.0, price=np.zeros(len(problem.workers)))
    rows, pools = problem.jobs, len(problem.workers)
    asked = np.zeros(rows) if least is None else least
    if rows >= MANY:
        with suppress(NotSolved):
            return most(problem, gain, asked)
    matrix, low, high = _rows(problem, job, kind, asked)
    program = ColumnProgram(low, high, interior=True)
    scale = float(np.abs(gain).max(initial=0.0)) or 1.0
    program.add(gain[job, kind] / scale, matrix)
    found = program.solve()
    x = np.zeros_like(problem.rate)
    x[job, kind] = np.clip(found.x, 0.0, 1.0)
    over = np.divide(problem.usage(x), problem.workers, out=np.zeros(pools), where=problem.workers > 0)
    x /= np.where(over > 1.0 + FITS, over, 1.0)[problem.pool]  # the solver's tolerance is wider
    price = np.maximum(found.duals[rows : rows + pools], 0.0) * scale
    return Shares(x=x, objective=float((gain * x).sum()), bound=found.objective * scale, price=price)


def in_order(problem: Problem, order: Int) -> Shares:
    """FIFO's objective for any order of precedence: ``sum (M - m) throughput / fastest``, m from 0.

    Parameters
    ----------
    order : [J], jobs from the first to the last.
    """
    return best_total(problem, precedence(order)[:, None] * relative(problem))


def precedence(order: Int) -> Float:
    """[J], FIFO's weights ``M - m``.

    Parameters
    ----------
    order : [J], jobs from the first to the last.
    """
    weight = np.empty(len(order))
    weight[order] = len(order) - np.arange(len(order), dtype=np.float64)
    return weight


def shortest_first(problem: Problem, left: Float) -> Int:
    """[J], jobs in order of work left over fastest rate, those that cannot run last.

    Differs from the paper: the minimum of a minimum that it prints settles one job only.
    """
    seconds = np.divide(left, problem.fastest, out=np.full(problem.jobs, np.inf), where=problem.active)
    return np.argsort(seconds, kind="stable")


def relative(problem: Problem) -> Float:
    """[J, K], rates relative to the job's fastest type, so that jobs' steps compare."""
    return problem.rate / np.where(problem.active, problem.fastest, 1.0)[:, None]


def cost_adjusted(problem: Problem, cost: Float, least: Float | None = None) -> Shares:
    """Maximise ``sum_jk T[j, k] / T_fastest_j X[j, k] / cost_k``.

    Parameters
    ----------
    cost : [K], of a GPU for an hour (or any time), > 0.
    """
    return best_total(problem, relative(problem) / cost[None, :], least)


def cost_ratio(problem: Problem, cost: Float, least: Float | None = None) -> Shares:
    """The printed form: maximise ``sum throughput / sum cost`` (Dinkelbach's method, exact).

    Without deadlines it is best to run the one job with most steps per cost and no other.
    """
    spent = problem.gpus[:, None] * cost[None, :]
    found, ratio = best_total(problem, problem.rate, least), 0.0
    while (bill := float((spent * found.x).sum())) > 0:
        better = float((problem.rate * found.x).sum()) / bill
        if better <= ratio * (1 + 1e-12):
            break
        ratio = better
        following = best_total(problem, problem.rate - ratio * spent, least)
        if float((spent * following.x).sum()) <= 1e-12:
            break
        found = following
    return Shares(x=found.x, objective=ratio, bound=ratio, price=found.price)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Kept:
    """Deadlines that can be kept together.

    Attributes
    ----------
    kept : Bool[J]. ``impossible`` : Bool[J], not even alone. ``most`` : of no set proven impossible are more than these kept.
    """

    kept: Bool
    impossible: Bool
    most: int


def keep_deadlines(problem: Problem, required: Float, nodes: int = 20_000) -> Kept:
    """Keep as many deadlines as possible; of equally many, those that leave their jobs most slack.

    Parameters
    ----------
    required : [J], throughput from now on that meets the job's deadline; 0 without one, infinite when it has passed.

    Raises
    ------
    NotSolved : the largest number is not proven within this many branch-and-bound nodes.
    """
    impossible = required > problem.fastest * (1 + 1e-9)
    asked = (required > 0) & ~impossible
    least = np.where(asked, np.minimum(required, problem.fastest), 0.0)
    if not asked.any() or highest_level(problem, lambda t: t * least, 1.0).level >= 1.0 - 1e-9:
        return Kept(kept=asked, impossible=impossible, most=int(asked.sum()))
    at = np.flatnonzero(asked)
    some = problem.only(at)
    most = _choose(some, least[at], np.ones(len(at)), 0, nodes)
    slack = 1.0 - least[at] / some.fastest
    chosen = _choose(some, least[at], slack + 1e-3, int(most.sum()), nodes)
    kept = np.zeros(problem.jobs, dtype=bool)
    kept[at[chosen]] = True
    return Kept(kept=kept, impossible=impossible, most=int(most.sum()))


def _choose(problem: Problem, least: Float, worth: Float, count: int, nodes: int) -> Bool:
    """The most valuable jobs whose needs fit together, at least ``count`` of them; proven in count, not in ties."""
    job, kind = np.nonzero(problem.rate > 0)
    matrix, low, high = _rows(problem, job, kind, least)
    jobs, shares = problem.jobs, len(job)
    needs = len(low) - jobs
    picks = coo_array((-np.ones(jobs), (needs + np.arange(jobs), np.arange(jobs))), shape=(len(low), jobs))
    total = np.concatenate([np.zeros(shares), np.ones(jobs)])[None, :]
    low[needs:] = 0.0
    rows = vstack([hstack([matrix, picks]), total]).tocsr()
    proven = 0.999 if count == 0 else 1e-6
    found = solve(
        MixedIntegerProgram(
            gain=np.concatenate([np.zeros(shares), worth]),
            low=np.zeros(shares + jobs),
            high=np.ones(shares + jobs),
            whole=np.repeat([False, True], [shares, jobs]),
            row_low=np.append(low, float(count)),
            row_high=np.append(high, np.inf),
            start=rows.indptr.astype(np.int64),
            column=rows.indices.astype(np.int64),
            value=rows.data,
        ),
        gap=proven,
        nodes=nodes,
        accept=proven if count == 0 else np.inf,
    )
    chosen: Bool = found.x[shares:] > 0.5
    return chosen


def _rows(problem: Problem, job: Int, kind: Int, least: Float) -> tuple[csc_array, Float, Float]:
    """Time of each job, GPUs of each pool, and throughput over what is needed of each job that needs some."""
    jobs, pools = problem.jobs, len(problem.workers)
    at = np.flatnonzero(least > 0)
    place = np.full(jobs, NONE)
    place[at] = np.arange(len(at))
    asked = np.flatnonzero(place[job] >= 0)
    columns = np.arange(len(job))
    row = np.concatenate([job, jobs + problem.pool[kind], jobs + pools + place[job[asked]]])
    value = np.concatenate(
        [np.ones(len(job)), problem.gpus[job], problem.rate[job[asked], kind[asked]] / least[job[asked]]]
    )
    shape = (jobs + pools + len(at), len(job))
    matrix = coo_array((value, (row, np.concatenate([columns, columns, columns[asked]]))), shape=shape).tocsc()
    low = np.concatenate([np.full(jobs + pools, -np.inf), np.ones(len(at))])
    high = np.concatenate([np.ones(jobs), problem.workers, np.full(len(at), np.inf)])
    return matrix, low, high
