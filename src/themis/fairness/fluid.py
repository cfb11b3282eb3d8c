"""The reference of ``fair_finish``: a cluster whose capacity is divided at every instant by weight, among all that can use it.

Each app gets GPUs by weighted water filling, at most what its current phase can use; no policy influences it. When an app
finishes there is when it would have finished on its own share of the cluster.

Source: Friedman and Henderson, Fairness and efficiency in web server protocols (SIGMETRICS 2003): a server in the order
in which a fair fluid reference finishes completes no app later than the reference does.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeAlias

import numpy as np

from themis.fairness.course import Course, begin
from themis.model.units import Bool, Float, Seconds

Scaling: TypeAlias = tuple[tuple[float, float], ...]
"""(GPUs, rising; part of the full speed there, not falling) of an app that does not train in proportion to its GPUs."""
TINY = 1e-9
"""Work below this part of a phase counts as done."""
LEEWAY = 0.05
"""Part by which the horizon is later than work over capacity, and than the longest critical path, and a narrow app's due than its
finish in the reference: starts and packing cost time."""


def fill(weight: Float, cap: Float, capacity: float) -> Float:
    """GPUs of each app, [A]: proportional to weight, none above its cap, all of the capacity used if the caps allow it.

    Parameters
    ----------
    weight : [A], above 0. ``cap`` : [A], GPUs that each can use, >= 0. ``capacity`` : GPUs, >= 0.
    """
    if cap.sum() <= capacity:
        return cap.copy()
    level = cap / weight  # at which an app is full
    order = np.argsort(level, kind="stable")
    full = np.concatenate([[0.0], np.cumsum(cap[order])[:-1]])
    rest = np.cumsum(weight[order][::-1])[::-1]  # weight of this and of all that fill later
    reached = (capacity - full) / rest
    first = int(np.argmax(reached <= level[order]))
    out: Float = np.minimum(cap, weight * reached[first])
    return out


def run(work: Float, cap: Float, weight: Float, capacity: float, seconds: Seconds = np.inf) -> tuple[Float, Float]:
    """Run the reference without further arrivals: (GPU-seconds that each app received [A], its finish time [A]).

    Parameters
    ----------
    work : [A, P], GPU-seconds left of each phase; phases follow one another, those without work are passed over.
    cap : [A, P], GPUs that the phase can use; with 0 the app stands still. ``weight`` : [A], above 0.
    capacity : GPUs in service. ``seconds`` : how long; infinite: to the end.

    Returns
    -------
    ``got`` : GPU-seconds. ``finish`` : seconds from now; infinite for apps that have not finished by then.
    """
    apps = len(work)
    floor = np.maximum(work * TINY, TINY)
    wanted = work > floor
    got, finish = np.zeros(apps), np.where(wanted.any(axis=1), np.inf, 0.0)
    rows = np.flatnonzero(np.isinf(finish))
    if not len(rows) or capacity <= 0:
        return got, finish
    first = wanted[rows].argmax(axis=1)
    left, most = work[rows, first], cap[rows, first]
    if np.isinf(seconds) and _widest(wanted[rows], cap[rows]) <= capacity:
        alone = np.divide(work, cap, out=np.zeros_like(work), where=wanted)
        return np.where(wanted, work, 0.0).sum(axis=1), alone.sum(axis=1)
    rate = fill(weight[rows], most, capacity)
    if np.isfinite(seconds) and (left - rate * seconds > floor[rows, first]).all():
        got[rows] = rate * seconds
        return got, finish
    level = np.inf if most.sum() <= capacity else float((rate / weight[rows]).max())
    begun = None
    if (most > weight[rows] * max(level, 0.0)).all():
        begun = begin(left, most, weight[rows], wanted[rows].sum(axis=1) == 1, capacity, seconds)
        ended = rows[begun.ended]
        got[ended], finish[ended] = left[begun.ended], begun.finish
        rows, left, level = rows[begun.rest], left[begun.rest], 0.0
        if begun.complete:
            had = weight[rows] * (begun.water + begun.level * (seconds - begun.now))
            over = left - had <= floor[rows, first[begun.rest]]
            got[rows] = np.where(over, left, had)
            finish[rows[over & (wanted[rows].sum(axis=1) == 1)]] = seconds
            return got, finish
    course = Course(work[rows], cap[rows], weight[rows], floor[rows], capacity, level, begun)
    course.go_on(seconds)
    got[rows], finish[rows] = course.got(), course.finish
    return got, finish


def run_scaled(
    work: Float, cap: Float, weight: Float, capacity: float, curves: Sequence[Scaling], seconds: Seconds = np.inf
) -> tuple[Float, Float]:
    """``run`` for apps that do not train in proportion to their GPUs; each end of a phase costs O(apps).

    Parameters
    ----------
    work : [A, P], GPU-seconds left of each phase at its full speed, that of ``cap`` GPUs. The others as in ``run``.
    curves : [A], of each app: GPUs, rising, and its speed there as a part of the full one; a straight line from none to the first
        and between them. Empty: in proportion.

    Returns
    -------
    As ``run``; GPU-seconds are those at full speed.
    """
    apps = np.arange(len(work))
    floor = np.maximum(work * TINY, TINY)
    left = np.where(work > floor, work, 0.0)
    got, finish, now = np.zeros(len(work)), np.where(left.any(axis=1), np.inf, 0.0), 0.0
    points = [(np.array([0.0, *(g for g, _ in c)]), np.array([0.0, *(u for _, u in c)])) if c else None for c in curves]
    while now < seconds and len(rows := np.flatnonzero(np.isinf(finish))) and capacity > 0:
        phase = (left[rows] > 0).argmax(axis=1)
        most = cap[rows, phase]
        rate = fill(weight[rows], most, capacity)
        for i, a in enumerate(rows.tolist()):
            if (curve := points[a]) is not None:
                rate[i] = most[i] * np.interp(rate[i], *curve)
        ends = np.divide(left[rows, phase], rate, out=np.full(len(rows), np.inf), where=rate > 0)
        passed = min(float(ends.min()), seconds - now)
        if np.isinf(passed):
            break
        now += passed
        got[rows] += rate * passed
        left[rows, phase] -= rate * passed
        left[left <= floor] = 0.0
        finish[apps[np.isinf(finish) & ~left.any(axis=1)]] = now
    return got, finish


def _widest(wanted: Bool, cap: Float) -> float:
    """GPUs that apps can use together at most, whatever phase each is in; infinite where a phase can use none."""
    if (wanted & (cap == 0)).any():
        return np.inf
    return float(np.where(wanted, cap, 0.0).max(axis=1).sum())


def lacking(work: Float, cap: Float, due: Float, capacity: float) -> Float:
    """Missing GPU-seconds by each app's due for all dues to be kept, [A]: above 0 where they cannot.

    Exact for divisible apps of one phase: dues can be kept if and only if no app is later than it would be alone
    (``work <= cap * due``) and at each due ``t``, what must be done by then, ``sum_i (w_i - c_i (d_i - t)+)+``, fits
    ``capacity * t``. For several phases in one row, with their mean width as cap, it is an estimate: it may find
    lacking what is not, and the other way round (``tests/fairness/test_fluid_borders.py``).

    Parameters
    ----------
    work : [A], GPU-seconds left. ``cap`` : [A], most GPUs, > 0. ``due`` : [A], seconds from now, > 0. ``capacity`` : GPUs.
    """
    # (w - c (d - t)+)+ rises at rate c from d - w / c to d.
    out: Float = _risen(cap, due - work / cap, due) - _risen(cap, due, due) - capacity * due
    return out


def _risen(rate: Float, since: Float, until: Float) -> Float:
    """Sum of what has accrued at these rates since these times, at each time of ``until``, [len(until)]."""
    order = np.argsort(since, kind="stable")
    rates = np.concatenate([[0.0], np.cumsum(rate[order])])
    begun = np.concatenate([[0.0], np.cumsum((rate * since)[order])])
    at = np.searchsorted(since[order], until, side="right")
    out: Float = rates[at] * until - begun[at]
    return out


def slack(work: Float, cap: Float, due: Float, capacity: float) -> Float:
    """Seconds that each app may still wait, all dues kept, [A]: below 0 where its due cannot be kept.

    Its own, ``due - work / cap``, and that of all who must be served by its due or by a later one.
    """
    order = np.argsort(due, kind="stable")
    spare = -lacking(work, cap, due, capacity)[order] / max(capacity, 1e-9)
    by_later = np.empty_like(spare)
    by_later[order] = np.minimum.accumulate(spare[::-1])[::-1]
    out: Float = np.minimum(due - work / cap, by_later)
    return out
