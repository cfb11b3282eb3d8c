"""The reference of ``fair_finish``: a cluster whose capacity is divided at every instant by weight, among all that can use it.

Each app gets GPUs by weighted water filling, at most what its current phase can use; no policy influences it. When an app
finishes there is when it would have finished on its own share of the cluster.

Source: Friedman and Henderson, Fairness and efficiency in web server protocols (SIGMETRICS 2003): whoever serves in the order
in which a fair fluid reference finishes ends nobody later than the reference does.
"""

from __future__ import annotations

import numpy as np

from themis.model.units import Float, Int, Seconds

TINY = 1e-9
"""Work below this part of a phase counts as done."""
LEEWAY = 0.05
"""Part by which the horizon is later than work over capacity, and than the longest critical path: starts and packing cost time."""


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
    """Let the reference run, nobody else coming: (GPU-seconds that each app got [A], when it finished [A]).

    Parameters
    ----------
    work : [A, P], GPU-seconds left of each phase; phases follow one another, those without work are passed over.
    cap : [A, P], GPUs that the phase can use; with 0 the app stands still. ``weight`` : [A], above 0.
    capacity : GPUs in service. ``seconds`` : how long; infinite: to the end.

    Returns
    -------
    ``got`` : GPU-seconds. ``finish`` : seconds from now; infinite for apps that have not finished by then.
    """
    apps, phases = work.shape
    left, got, finish = work.copy(), np.zeros(apps), np.full(apps, np.inf)
    floor = np.maximum(work * TINY, TINY)
    at, now = np.zeros(apps, dtype=np.int64), 0.0
    rows = np.arange(apps)
    _pass_over(left, floor, at, rows, phases)
    finish[at >= phases] = 0.0
    rows = rows[at < phases]
    while len(rows) and now < seconds and capacity > 0:
        if np.isinf(seconds) and _widest(left[rows], cap[rows]) <= capacity:
            with np.errstate(divide="ignore", invalid="ignore"):
                finish[rows] = now + np.where(left[rows] > 0, left[rows] / cap[rows], 0.0).sum(axis=1)
            got[rows] += np.where(np.isfinite(finish[rows]), left[rows].sum(axis=1), 0.0)
            break
        here = at[rows]
        rate = fill(weight[rows], cap[rows, here], capacity)
        with np.errstate(divide="ignore"):
            step = min(float((left[rows, here] / rate).min()), seconds - now)
        if not np.isfinite(step):
            break
        now += step
        served = np.minimum(rate * step, left[rows, here])
        got[rows] += served
        left[rows, here] -= served
        _pass_over(left, floor, at, rows, phases)
        over = at[rows] >= phases
        finish[rows[over]] = now
        rows = rows[~over]
    return got, finish


def _widest(left: Float, cap: Float) -> float:
    """GPUs that apps can use together at most, whatever phase each is in; infinite where a phase can use none."""
    most = np.where(left > 0, cap, 0.0)
    return np.inf if ((most == 0) & (left > 0)).any() else float(most.max(axis=1).sum())


def _pass_over(left: Float, floor: Float, at: Int, rows: Int, phases: int) -> None:
    """Move apps on to their next phase with work."""
    moving = rows
    while len(moving := moving[at[moving] < phases]):
        done = left[moving, at[moving]] <= floor[moving, at[moving]]
        moving = moving[done]
        at[moving] += 1


def lacking(work: Float, cap: Float, due: Float, capacity: float) -> Float:
    """GPU-seconds that are lacking by each app's due if all dues are to be kept, [A]: above 0 where they cannot.

    Exact for divisible apps of one phase: dues can be kept if and only if no app is later than it would be alone
    (``work <= cap * due``) and at each due ``t``, what must be done by then, ``sum_i (w_i - c_i (d_i - t)+)+``, fits
    ``capacity * t``. For several phases the test is necessary.

    Parameters
    ----------
    work : [A], GPU-seconds left. ``cap`` : [A], most GPUs, > 0. ``due`` : [A], seconds from now, > 0. ``capacity`` : GPUs.
    """
    # (w - c (d - t)+)+ rises at rate c from d - w / c to d.
    out: Float = _risen(cap, due - work / cap, due) - _risen(cap, due, due) - capacity * due
    return out


def _risen(rate: Float, since: Float, until: Float) -> Float:
    """The sum of what has risen at these rates since these times, at each time of ``until``, [len(until)]."""
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
