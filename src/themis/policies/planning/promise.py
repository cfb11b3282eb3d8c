"""Promised end of each job: its fair finish where that can be kept, else a later one that can (Shockwave §2.2, §4).

A fair finish is arrival + P N. Whether a set of finishes can be kept is asked of the cluster as one machine of all its GPUs: in
order of the finishes, the work up to each must fit before it, and no job has longer to go than that.

1. *c*, the least factor for which everybody can end by arrival + c P N: no plan makes the worst rho less than this.
2. If c <= 1, every job is promised its fair finish. Otherwise some job will be late. The fewest are chosen by Moore and
   Hodgson's rule (in order of the finishes, where one cannot be kept, the one of these with most work waits), and are
   promised arrival + ``patience`` c P N.

All in seconds and factors of the jobs' own times, so jobs five times longer, or clusters eight times larger, get equal
promises. Leaves out: gangs that do not pack, and jobs that are yet to come; promises are renewed with every plan.
"""

from __future__ import annotations

import heapq
from dataclasses import dataclass

import numpy as np

from themis.model.units import Bool, Float, Int

_STEPS = 30
"""Halvings of the interval in which c lies."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Claims:
    """Inputs of the claims of J jobs.

    Attributes
    ----------
    since : Float[J], seconds since arrival, >= 0. ``fair`` : P N, seconds from arrival to the fair finish, above 0.
    left : seconds left alone on its own gang (R). ``gpus`` : Int[J], gangs. ``capacity`` : GPUs, above 0.
    """

    since: Float
    fair: Float
    left: Float
    gpus: Int
    capacity: int

    @property
    def work(self) -> Float:
        """GPU-seconds left of each job."""
        out: Float = self.gpus * self.left
        return out

    def within(self, factor: float) -> Float:
        """[J], seconds from now to arrival + factor P N; below 0 where that is past."""
        out: Float = factor * self.fair - self.since
        return out


def least_factor(claims: Claims) -> float:
    """c, to nine digits: the least factor of all fair finishes that can be kept by everybody."""
    if not len(claims.fair):
        return 0.0
    low = float(((claims.since + claims.left) / claims.fair).max())
    if _kept(claims, low):
        return low
    high = 2.0 * low
    while not _kept(claims, high):
        low, high = high, 2.0 * high
    for _ in range(_STEPS):
        middle = 0.5 * (low + high)
        low, high = (low, middle) if _kept(claims, middle) else (middle, high)
    return high


def promised(claims: Claims, patience: float) -> Float:
    """[J], seconds from now to the finish that each job is promised.

    Parameters
    ----------
    patience : at least 1, how much later than the least that all could keep those are promised to end who must be late.
    """
    factor = least_factor(claims)
    due = claims.within(1.0)
    if factor <= 1.0:
        return due
    late = claims.within(max(patience * factor, 1.0))
    due = np.where(claims.left <= due + 1e-6, due, late)
    work = claims.work
    waiting = [(seconds, j) for j, seconds in enumerate(due.tolist())]
    heapq.heapify(waiting)
    most: list[tuple[float, int]] = []  # jobs taken in so far that may still wait, by work
    used = 0.0
    while waiting:
        seconds, j = heapq.heappop(waiting)
        used += float(work[j])
        if due[j] < late[j]:
            heapq.heappush(most, (-float(work[j]), j))
        while used > claims.capacity * seconds + 1e-6 and most:
            _, other = heapq.heappop(most)
            due[other] = late[other]
            used -= float(work[other])
            heapq.heappush(waiting, (float(late[other]), other))
    return due


def _kept(claims: Claims, factor: float) -> bool:
    due = claims.within(factor)
    order = np.argsort(due, kind="stable")
    fits: Bool = np.cumsum(claims.work[order]) <= claims.capacity * due[order] + 1e-6
    return bool(fits.all()) and bool((claims.left <= due + 1e-6).all())
