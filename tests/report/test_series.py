"""Step functions keep their areas, intervals their time, whatever their number."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from themis.report.series import Intervals, Steps

Pieces = st.lists(st.tuples(st.floats(0.001, 500.0), st.integers(0, 9)), min_size=1, max_size=60)


def integral(pieces: list[tuple[float, int]], begin: float, end: float, start: float) -> float:
    """Of the step function between two times, by brute force."""
    total, at = 0.0, start
    for length, level in pieces:
        total += level * max(min(at + length, end) - max(at, begin), 0.0)
        at += length
    return total


@given(pieces=Pieces, start=st.floats(0, 1e5), bins=st.sampled_from([2, 8, 50]))
def test_every_bin_has_the_area_of_the_function_over_it(
    pieces: list[tuple[float, int]], start: float, bins: int
) -> None:
    steps, at = Steps(start, bins), start
    for length, level in pieces:
        at += length
        steps.add(at, level)
    series = steps.series()
    assert len(series.value) <= bins
    assert series.end == at
    edges = series.edges
    got = series.value * np.diff(edges)
    want = [integral(pieces, b, e, start) for b, e in pairwise(edges)]
    assert got == pytest.approx(want, rel=1e-6, abs=1e-4)


def test_a_function_that_ends_on_the_edge_of_a_bin_loses_nothing() -> None:
    steps = Steps(0.0, 4)
    for end in (1.0, 4.0, 8.0, 16.0):
        steps.add(end, 3)
    series = steps.series()
    assert series.area == pytest.approx(48.0)
    assert series.value.tolist() == [3.0] * 4


def test_no_time_is_no_series() -> None:
    assert len(Steps(5.0).series().value) == 0
    assert Steps(5.0).series().area == 0.0


def test_too_many_intervals_lose_the_shortest() -> None:
    intervals = Intervals(most=10)
    for i in range(11):
        intervals.add((i,), i, i, 0.0, float(i + 1))
    gantt = intervals.gantt()
    assert gantt.dropped == 6
    assert sorted(gantt.app.tolist()) == [6, 7, 8, 9, 10]
    assert (gantt.end - gantt.start).tolist() == [7.0, 8.0, 9.0, 10.0, 11.0]


def test_a_lease_of_no_time_is_no_interval() -> None:
    intervals = Intervals()
    intervals.add((1, 2), 0, 0, 5.0, 5.0)
    assert len(intervals.gantt().gpu) == 0
