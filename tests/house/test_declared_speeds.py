"""Forecasts of ends where users declare wrong speeds: the small form of ``reproduction/declared_speeds.py``."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parents[2] / "reproduction"))

from declared_speeds import constant, measure, quality


@pytest.mark.slow
def test_ends_are_forecast_by_measured_speed_where_declared_ones_are_wrong() -> None:
    """Four CPU seconds: intervals need a history before they hold as often as they say."""
    answers = measure(150, 0)
    found, same_for_all = quality(answers), quality(constant(answers))
    assert found.outside == 0, "a point lies in its interval"
    assert 0.7 <= found.coverage <= 0.9
    assert found.width <= 3.0 < same_for_all.width
    assert found.off < 1.5
