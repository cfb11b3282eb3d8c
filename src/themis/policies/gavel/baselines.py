"""Baselines of Gavel (§7): AlloX, Gandiva's random packing, Gandiva-fair's trading."""

from __future__ import annotations

import numpy as np
from scipy.optimize import linear_sum_assignment

from themis.model.units import NONE, Float, Int
from themis.optimize.shares.pairs import PairRates
from themis.optimize.shares.problem import Problem, Shares
from themis.policies.gavel.max_min import least

_NEVER = 1e30


def allox(problem: Problem, left: Float) -> Shares:
    """AlloX (EuroSys'20): least mean completion time of the jobs present, as an assignment to places in queues.

    A job that is the q-th from the end on a GPU delays q jobs, itself among them: it costs q times its duration there.
    Only the first of each queue run now. Places beyond ceil(J / GPUs of the type) are never used, as nearer ones cost less.

    Differs from the paper: gangs, which it leaves out, stand in queues of single GPUs for as long as their GPU-time; those
    that would start first run as far as there is room, so no GPU stays idle for a queue's sake. Decisions are made
    again each time.

    Returns
    -------
    Shares of 0 or 1, with the mean completion time of the assignment, seconds.
    """
    jobs = np.flatnonzero(problem.active)
    nothing = np.zeros((problem.jobs, problem.types))
    if not len(jobs):
        return Shares(x=nothing, objective=0.0, bound=0.0, price=np.zeros(len(problem.workers)))
    rate = problem.rate[jobs]
    seconds = np.divide(
        left[jobs, None] * problem.gpus[jobs, None], rate, out=np.full(rate.shape, np.inf), where=rate > 0
    )
    slots = np.floor(problem.workers[problem.pool]).astype(np.int64)
    depth = np.where(slots > 0, -(-len(jobs) // np.maximum(slots, 1)), 0)
    kind = np.repeat(np.arange(problem.types), slots * depth)
    place = np.concatenate([np.repeat(np.arange(1, d + 1), n) for n, d in zip(slots, depth)])
    queue = np.concatenate([np.tile(np.arange(n), d) for n, d in zip(slots, depth)])
    cost = np.where(np.isfinite(seconds[:, kind]), seconds[:, kind] * place[None, :], _NEVER)
    row, column = linear_sum_assignment(cost)
    mean = float(cost[row, column].sum()) / len(jobs)
    duration, start = seconds[row, kind[column]], np.zeros(len(row))
    after = np.lexsort((-place[column], queue[column], kind[column]))
    ahead, last = 0.0, (-1, -1)
    for i in after.tolist():
        here = (int(kind[column[i]]), int(queue[column[i]]))
        ahead = ahead if here == last else 0.0
        start[i], ahead, last = ahead, ahead + duration[i], here
    return Shares(
        x=_as_they_fit(problem, jobs[row], kind[column], start),
        objective=mean,
        bound=mean,
        price=np.zeros(len(problem.workers)),
    )


def _as_they_fit(problem: Problem, job: Int, kind: Int, start: Float) -> Float:
    free, x = problem.workers.copy(), np.zeros((problem.jobs, problem.types))
    order = np.lexsort((job, start))
    for fallback in (False, True):
        for i in order.tolist():
            j = int(job[i])
            types = np.argsort(-problem.rate[j], kind="stable").tolist() if fallback else [int(kind[i])]
            fits = [k for k in types if problem.rate[j, k] > 0 and problem.gpus[j] <= free[problem.pool[k]]]
            if fits and not x[j].any():
                x[j, fits[0]] = 1.0
                free[problem.pool[fits[0]]] -= problem.gpus[j]
    return x


def gandiva_packing(problem: Problem, pairs: PairRates, key: Float) -> tuple[Int, Float]:
    """Gandiva (OSDI'18) as Gavel describes it: random pairs, until one improves performance, where demand exceeds supply.

    In a random order each single-GPU job is joined with the first after it with which the two keep more than one job's speed
    together, the mean over the types that both run on by their workers; no more pairs are formed than the cluster lacks GPUs.
    Differs from Gandiva: which pairs improve is known, not tried out; trials cost nothing.

    Parameters
    ----------
    key : [J], random numbers that order the jobs; constant for each job, so that pairs last.

    Returns
    -------
    Combos [C, 2], the second -1 for a job alone, and x [C, K]: every combo has its share of every type.
    """
    able = np.flatnonzero(problem.active)
    loose = able[(pairs.model[able] >= 0) & (problem.gpus[able] == 1)]
    loose = loose[np.argsort(key[loose], kind="stable")]
    lacking = float(problem.gpus[able].sum() - problem.workers.sum())
    gain = _gain(problem, pairs)
    together: list[tuple[int, int]] = []
    waiting = loose.tolist()
    while waiting and len(together) < lacking:
        one = waiting.pop(0)
        better = np.flatnonzero(gain[pairs.model[one], pairs.model[np.array(waiting, dtype=np.int64)]] > 1.0)
        if len(better):
            together.append((one, waiting.pop(int(better[0]))))
    alone = np.setdiff1d(able, np.array(together, dtype=np.int64).ravel())
    combos = np.array(together + [(int(j), NONE) for j in alone], dtype=np.int64).reshape(-1, 2)
    paired = combos[:, 1] != NONE
    model = pairs.model[combos]
    both = pairs.rate[model[:, 0], model[:, 1]] > 0 if len(pairs.rate) else np.zeros((len(combos), problem.types), bool)
    may = np.where(paired[:, None], both, problem.rate[combos[:, 0]] > 0)
    share = problem.workers[problem.pool] / np.bincount(problem.pool)[problem.pool] / max(len(combos), 1)
    x = np.where(may, share[None, :] / problem.gpus[combos[:, 0]][:, None], 0.0)
    return combos, x / np.maximum(x.sum(axis=1, keepdims=True), 1.0)


def _gain(problem: Problem, pairs: PairRates) -> Float:
    """[A, A], speed of two models on one GPU, relative to jobs alone: the workers' mean over types that both run on."""
    models = len(pairs.rate)
    alone = np.zeros((models, problem.types))
    known = np.flatnonzero(pairs.model >= 0)
    alone[pairs.model[known]] = problem.rate[known]
    kept = np.divide(pairs.rate, alone[:, None, :], out=np.zeros(pairs.rate.shape), where=alone[:, None, :] > 0)
    both = (kept > 0) & (kept.transpose(1, 0, 2) > 0)
    weight = both * problem.workers[problem.pool]
    total = ((kept + kept.transpose(1, 0, 2)) * weight).sum(axis=2)
    out: Float = np.divide(total, weight.sum(axis=2), out=np.zeros((models, models)), where=weight.sum(axis=2) > 0)
    return out


def gandiva_fair(problem: Problem, weight: Float) -> Shares:
    """Gandiva-fair (EuroSys'20): everybody's share of every type, then trades of fast GPU-time against slow.

    For each two types, who gains least from the faster sells it to who gains most, for as much slow GPU-time as the runner-up
    would have paid (its speedup); both are better off or as well off. Trades that would leave the seller with more GPU-time than
    it can use are cut short.

    Returns
    -------
    Shares, whose objective is the least weighted normalised throughput.
    """
    share = np.where(problem.active, weight, 0.0)
    part = problem.workers[problem.pool] / np.bincount(problem.pool)[problem.pool]
    held = np.outer(share / max(float(share.sum()), 1e-300), part) * (problem.rate > 0)
    held = held * np.minimum(problem.gpus / np.maximum(held.sum(axis=1), 1e-300), 1.0)[:, None]
    order = np.argsort(-problem.rate.sum(axis=0), kind="stable").tolist()
    for i, fast in enumerate(order):
        for slow in order[i + 1 :]:
            _trade(problem, held, fast, slow)
    x = held / problem.gpus[:, None]
    value = least(problem, weight, x)
    return Shares(x=x, objective=value, bound=value, price=np.zeros(len(problem.workers)))


def _trade(problem: Problem, held: Float, fast: int, slow: int) -> None:
    """Trade the fast type against the slow one, in place."""
    may = np.flatnonzero((problem.rate[:, fast] > 0) & (problem.rate[:, slow] > 0))
    speedup = problem.rate[may, fast] / problem.rate[may, slow]
    rising = may[np.argsort(speedup, kind="stable")].tolist()
    gain = {int(j): float(s) for j, s in zip(may, speedup)}
    sell, buy = 0, len(rising) - 1
    while sell < buy:
        seller, buyer = rising[sell], rising[buy]
        price = max(gain[rising[buy - 1]], gain[seller])
        if gain[buyer] <= gain[seller] * (1 + 1e-9):
            return
        idle = problem.gpus[seller] - float(held[seller].sum())
        most = idle / (price - 1) if price > 1 else np.inf
        room = problem.gpus[buyer] - float(held[buyer].sum())
        cap = room / (1 - price) if price < 1 else np.inf
        amount = max(min(float(held[seller, fast]), float(held[buyer, slow]) / price, most, cap), 0.0)
        held[seller, fast] -= amount
        held[buyer, fast] += amount
        held[seller, slow] += amount * price
        held[buyer, slow] -= amount * price
        if held[buyer, slow] <= 1e-12 or amount == cap:
            buy -= 1
        else:
            sell += 1
