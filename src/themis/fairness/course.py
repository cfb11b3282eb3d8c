"""A run of the fluid reference from one end of a phase to the next, each O(log apps): the machinery of ``fluid.run``.

The level is what an app of weight 1 gets while it can use more. Apps that can use no more than their part of it are full: their
phase ends at a known time. The phases of all others end when the integral of the level over time, ``water``, has come to a
known amount. So an event touches the apps that become full or cease to be, and leaves all others as they are.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from heapq import heapify, heappop, heappush
from typing import NamedTuple

import numpy as np

from themis.model.units import Bool, Float, Int, Seconds

Entry = tuple[float, int, int]
"""(key, app, number of the app's entry): void once the app has another number."""
ROUNDING = 1e-12
"""Part by which caps may exceed the capacity and still fit."""


class Begun(NamedTuple):
    """The first ends of phases, in order, while no app is full: the course before it needs a heap.

    Attributes
    ----------
    ended, finish : apps, and the times of their ends. ``rest`` : all other apps, rising.
    now, water, level, total : at the last of these ends, or at 0; ``total`` : weights of the other apps.
    complete : nothing else ends by the time that was asked for.
    """

    ended: Int
    finish: Float
    rest: Int
    now: Seconds
    water: float
    level: float
    total: float
    complete: bool


def begin(left: Float, cap: Float, weight: Float, last: Bool, capacity: float, until: Seconds) -> Begun:
    """Do what ``Course`` does until the first app is full or goes on to its next phase, to the last bit, in a few operations.

    Where hundreds of apps wait, nearly all of them end before that.

    Parameters
    ----------
    left, cap : [A], GPU-seconds and GPUs of the present phase, > 0; no app is full at first. ``last`` : no other phase follows.
    """
    water = left / weight
    order = np.argsort(water, kind="stable")
    water, part = water[order], weight[order]
    total = np.subtract.accumulate(np.append(np.cumsum(weight)[-1], part))
    with np.errstate(divide="ignore"):
        level = capacity / total[:-1]
    fills = np.minimum.accumulate((cap / weight)[order][::-1])[::-1]
    stops = (fills <= level) | ~last[order] | (total[1:] < ROUNDING * part)
    stops[-1] = True
    # The level after the last end, too, leaves all apps as they are.
    most = max(int(stops.argmax()) - 1, 0)
    time = np.cumsum(np.diff(water[:most], prepend=0.0) / level[:most])
    n = int(np.searchsorted(time, until, side="right"))
    at = (float(time[n - 1]), float(water[n - 1])) if n else (0.0, 0.0)
    return Begun(order[:n], time[:n], np.sort(order[n:]), *at, float(level[n]), float(total[n]), n < most)


@dataclass(slots=True)
class _Side:
    """Apps that are full, or those that are not.

    Attributes
    ----------
    ends : by when their phases end, a time of full apps, an amount of water of the others.
    levels : by the level at which they are full; of full apps the highest first, its sign turned.
    total : caps of full apps; weights of the others.
    """

    ends: list[Entry] = field(default_factory=list)
    levels: list[Entry] = field(default_factory=list)
    count: int = 0
    total: float = 0.0


class Course:
    """State of a run, and its continuation.

    Parameters
    ----------
    work, cap : [A, P], GPU-seconds and GPUs of each phase. ``weight`` : [A]. ``floor`` : [A, P], work below it counts as done.
    capacity : GPUs, > 0. ``level`` : GPUs that an app of weight 1 gets at first if it can use them; infinite where all are full.
    begun : what others ended before, all of these apps having been there.
    """

    def __init__(
        self,
        work: Float,
        cap: Float,
        weight: Float,
        floor: Float,
        capacity: float,
        level: float,
        begun: Begun | None = None,
    ) -> None:
        self.given, self.floor, self.capacity = work, floor, capacity
        self.work: list[list[float]] = work.tolist()
        self.cap: list[list[float]] = cap.tolist()
        self.weight: list[float] = weight.tolist()
        wanted: Bool = work > floor
        self.wanted: list[list[bool]] = wanted.tolist()
        apps, self.phases = work.shape
        self.finish = np.full(apps, np.inf)
        self.now, self.water, self.level = 0.0, 0.0, level
        self.full, self.below = _Side(), _Side()
        self.on: list[_Side | None] = [None] * apps
        """The app's side; None for an app that has finished, or whose phase can use no GPU."""
        self.entry = [0] * apps
        self.began = [0.0] * apps
        """Time or water from which on the app has been on its side."""
        self.had = [0.0] * apps
        """GPU-seconds of its present phase that the app had by then."""
        self.done = [0.0] * apps
        """GPU-seconds of its finished phases."""
        self._begin(work, cap, weight, wanted)
        if begun is not None:
            self.now, self.water, self.below.total = begun.now, begun.water, begun.total
        self._settle()

    def _begin(self, work: Float, cap: Float, weight: Float, wanted: Bool) -> None:
        """``_next_phase`` of all apps at once, at time 0."""
        some = wanted.any(axis=1)
        phase = np.where(some, wanted.argmax(axis=1), self.phases)
        self.phase: list[int] = phase.tolist()
        self.finish[~some] = 0.0
        apps = np.flatnonzero(some)
        most, left = cap[apps, phase[apps]], work[apps, phase[apps]]
        able = most > 0
        apps, most, left = apps[able], most[able], left[able]
        part = weight[apps]
        full = most <= part * self.level
        for side, rows, by, size in ((self.full, full, most, most), (self.below, ~full, part, part)):
            ids, levels = apps[rows].tolist(), most[rows] / part[rows]
            side.ends = [(end, a, 1) for end, a in zip((left[rows] / by[rows]).tolist(), ids)]
            side.levels = [(at, a, 1) for at, a in zip((-levels if side is self.full else levels).tolist(), ids)]
            heapify(side.ends)
            heapify(side.levels)
            side.count = len(ids)
            side.total = float(np.cumsum(size[rows])[-1]) if ids else 0.0
            for a in ids:
                self.on[a], self.entry[a] = side, 1

    def go_on(self, until: Seconds) -> None:
        """Run up to this time, or until all apps that can finish have finished."""
        while True:
            full, below = _top(self.full.ends, self.entry), _top(self.below.ends, self.entry)
            time = full[0] if full else np.inf
            if below and self.level > 0 and (rises := self.now + (below[0] - self.water) / self.level) <= time:
                time, a, water = rises, below[1], below[0]
            elif full:
                a, water = full[1], self.water + self.level * (time - self.now) if self.below.count else self.water
            if not time <= until or time == np.inf:
                break
            self.now, self.water = max(time, self.now), water
            self._end_phase(a)
            self._settle()
        if until < np.inf:
            self.water += self.level * (until - self.now) if self.below.count else 0.0
            self.now = until
            for a in [a for a, phase in enumerate(self.phase) if phase < self.phases]:
                if self.work[a][self.phase[a]] - self._had(a) <= self.floor[a, self.phase[a]]:
                    self._end_phase(a)

    def got(self) -> Float:
        """[A], GPU-seconds that each app has had."""
        return np.array([done + self._had(a) for a, done in enumerate(self.done)])

    def _had(self, a: int) -> float:
        """GPU-seconds that an app had of its present phase."""
        if self.on[a] is None:
            return 0.0
        if self.on[a] is self.full:
            return self.had[a] + self.cap[a][self.phase[a]] * (self.now - self.began[a])
        return self.had[a] + self.weight[a] * (self.water - self.began[a])

    def _end_phase(self, a: int) -> None:
        self._leave(a)
        self.done[a] += self.work[a][self.phase[a]]
        self.had[a] = 0.0
        self._next_phase(a)

    def _next_phase(self, a: int) -> None:
        phase, wanted = self.phase[a] + 1, self.wanted[a]
        while phase < self.phases and not wanted[phase]:
            phase += 1
        self.phase[a] = phase
        if phase >= self.phases:
            self.finish[a] = self.now
        elif self.cap[a][phase] > 0:
            self._enter(a, self.cap[a][phase] <= self.weight[a] * self.level)

    def _enter(self, a: int, full: bool) -> None:
        """Put an app on a side; its phase continues from its earlier value."""
        phase, weight, number = self.phase[a], self.weight[a], self.entry[a] + 1
        cap = self.cap[a][phase]
        left = self.work[a][phase] - self.had[a]
        if full:
            side, began, end, level, size = self.full, self.now, self.now + left / cap, -cap / weight, cap
        else:
            if not self.below.count:
                self.water = 0.0
            side, began, end, level, size = self.below, self.water, self.water + left / weight, cap / weight, weight
        self.on[a], self.entry[a], self.began[a] = side, number, began
        heappush(side.ends, (end, a, number))
        heappush(side.levels, (level, a, number))
        side.count += 1
        side.total += size

    def _leave(self, a: int) -> None:
        """Take an app off its side; its entries there are void."""
        if (side := self.on[a]) is None:
            return
        self.had[a] = self._had(a)
        side.count -= 1
        size = self.cap[a][self.phase[a]] if side is self.full else self.weight[a]
        self.on[a] = None
        side.total -= size
        if not side.count or side.total < ROUNDING * size:
            # The rest of the sum may be rounding alone.
            rest = [b for b, other in enumerate(self.on) if other is side]
            side.total = math.fsum(self.cap[b][self.phase[b]] if side is self.full else self.weight[b] for b in rest)
        self.entry[a] += 1

    def _settle(self) -> None:
        """Find the level: the set of full apps depends on it, and it on that set."""
        self._find_level()
        while (top := _top(self.full.levels, self.entry)) and -top[0] > self.level:
            self._change_side(top[1], False)
        while (top := _top(self.below.levels, self.entry)) and top[0] <= self.level:
            self._change_side(top[1], True)

    def _change_side(self, a: int, full: bool) -> None:
        self._leave(a)
        self._enter(a, full)
        self._find_level()

    def _find_level(self) -> None:
        spare = self.capacity - self.full.total
        if self.below.count:
            self.level = spare / self.below.total
        else:
            self.level = np.inf if spare >= -ROUNDING * self.capacity else -np.inf


def _top(heap: list[Entry], entry: list[int]) -> Entry | None:
    """The least entry that is not void."""
    while heap and entry[heap[0][1]] != heap[0][2]:
        heappop(heap)
    return heap[0] if heap else None
