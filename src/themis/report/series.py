"""Step functions over time and lease intervals, gathered in one pass and bounded memory.

A step function is kept as its area in bins of one width; when time outgrows the bins, neighbours are merged. So the
area of every bin, and with it every mean over whole bins, stays exact however long the log.
"""

from __future__ import annotations

from array import array
from dataclasses import dataclass
from typing import Any

import numpy as np

from themis.model.units import Float, Int, Seconds

BINS = 2000
INTERVALS = 200_000


@dataclass(frozen=True, slots=True, kw_only=True)
class Series:
    """Mean of a step function in each bin.

    Attributes
    ----------
    start, width, end : seconds; bin i covers start + i width to start + (i + 1) width, the last one to ``end`` only.
    value : Float[B], mean over the bin's time.
    """

    start: Seconds
    width: Seconds
    end: Seconds
    value: Float

    @property
    def edges(self) -> Float:
        """Float[B + 1], seconds."""
        out: Float = np.minimum(self.start + self.width * np.arange(len(self.value) + 1), self.end)
        return out

    @property
    def area(self) -> float:
        """Integral over all time, in value x seconds."""
        return float((self.value * np.diff(self.edges)).sum())


class Steps:
    """Builds a ``Series`` of at most ``bins`` bins."""

    def __init__(self, start: Seconds, bins: int = BINS) -> None:
        self.start, self.end, self.width = start, start, 1.0
        self.area: Float = np.zeros(bins)
        self._cells: Any = self.area.data
        """The same, one cell at a time."""

    def add(self, end: Seconds, level: float) -> None:
        """The function was at ``level`` from where it was left until ``end``."""
        begin, self.end = self.end, end
        while end - self.start > self.width * len(self.area):
            self.area = np.concatenate([self.area.reshape(-1, 2).sum(axis=1), np.zeros(len(self.area) // 2)])
            self.width, self._cells = self.width * 2, self.area.data
        if level == 0 or end <= begin:
            return
        cells = self._cells
        first = min(int((begin - self.start) / self.width), len(cells) - 1)
        last = min(int((end - self.start) / self.width), len(cells) - 1)
        if first == last:
            cells[first] += level * (end - begin)
            return
        cells[first] += level * (self.start + (first + 1) * self.width - begin)
        self.area[first + 1 : last] += level * self.width
        cells[last] += level * (end - self.start - last * self.width)

    def series(self) -> Series:
        """Series of the values added so far."""
        used = int(np.ceil((self.end - self.start) / self.width - 1e-12))
        edges = np.minimum(self.start + self.width * np.arange(used + 1), self.end)
        value = self.area[:used] / np.maximum(np.diff(edges), 1e-12)
        return Series(start=self.start, width=self.width, end=self.end, value=value)


@dataclass(frozen=True, slots=True, kw_only=True)
class Gantt:
    """Intervals in which apps held GPUs; a renewed lease is one interval.

    Attributes
    ----------
    gpu, app, job : Int[I]. ``start``, ``end`` : Float[I], seconds.
    dropped : intervals left out, the shortest ones, because there were too many.
    """

    gpu: Int
    app: Int
    job: Int
    start: Float
    end: Float
    dropped: int = 0


class Intervals:
    """Builds a ``Gantt`` of at most ``most`` intervals."""

    def __init__(self, most: int = INTERVALS) -> None:
        self.most, self.dropped = most, 0
        self.ids, self.times = array("q"), array("d")

    def add(self, gpus: tuple[int, ...], app: int, job: int, start: Seconds, end: Seconds) -> None:
        """A lease is over."""
        if end <= start:
            return
        for gpu in gpus:
            self.ids.extend((gpu, app, job))
            self.times.extend((start, end))
        if len(self.times) > 2 * self.most:
            self._prune()

    def _prune(self) -> None:
        """Keep the longer half, so that the whole time stays covered and pruning is rare."""
        ids, times = self._columns()
        keep = np.sort(np.argsort(times[:, 0] - times[:, 1], kind="stable")[: self.most // 2])
        self.dropped += len(ids) - len(keep)
        self.ids, self.times = array("q", ids[keep].tobytes()), array("d", times[keep].tobytes())

    def _columns(self) -> tuple[Int, Float]:
        ids = np.array(self.ids, dtype=np.int64).reshape(-1, 3)
        return ids, np.array(self.times, dtype=np.float64).reshape(-1, 2)

    def gantt(self) -> Gantt:
        """Intervals added so far."""
        ids, times = self._columns()
        gpu, app, job = ids.T.copy()
        return Gantt(gpu=gpu, app=app, job=job, start=times[:, 0].copy(), end=times[:, 1].copy(), dropped=self.dropped)
