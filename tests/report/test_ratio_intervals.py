"""Ratios over paired seeds and their intervals."""

from __future__ import annotations

import math

import numpy as np
import pytest

from themis.report.intervals import ratio_interval


def test_a_ratio_and_its_inverse_have_inverse_intervals_around_the_geometric_mean() -> None:
    over, under = [2.0, 8.0, 4.0], [1.0, 1.0, 2.0]
    there, back = ratio_interval(over, under), ratio_interval(under, over)
    assert there.mean == pytest.approx((2 * 8 * 2) ** (1 / 3))
    assert (back.low, back.mean, back.high) == pytest.approx((1 / there.high, 1 / there.mean, 1 / there.low))
    # Student's t on the logarithms, two degrees of freedom.
    logs = np.log([2.0, 8.0, 2.0])
    assert np.log(there.high) == pytest.approx(logs.mean() + 4.302652729911275 * logs.std(ddof=1) / np.sqrt(3))


def test_pairs_without_a_ratio_are_left_out_and_one_pair_has_no_interval() -> None:
    one = ratio_interval([3.0, 0.0, math.inf, math.nan], [2.0, 1.0, 1.0, 1.0])
    assert one.mean == pytest.approx(1.5)
    assert math.isnan(one.low)
    assert math.isnan(ratio_interval([], []).mean)
    with pytest.raises(ValueError, match="zip"):
        ratio_interval([1.0], [1.0, 2.0])
