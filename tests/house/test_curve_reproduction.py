"""Curve stopping on several families of curves: the quick form of its measurement keeps the best jobs."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parents[2] / "reproduction"))

from curve_stopping import FAMILIES, OWN, one_form, sweeps

SWEEPS = 100
"""At a true share of 4 %, more than 8 stop by chance once in fifty times."""


@pytest.mark.slow
@pytest.mark.parametrize("family", FAMILIES)
def test_the_best_job_stops_in_few_sweeps_of_each_family(family: str) -> None:
    stopped, saved = sweeps(family, 0.01, SWEEPS)
    assert stopped <= 0.08
    assert saved > 0.3


@pytest.mark.slow
def test_on_its_own_form_most_of_what_one_form_saves_is_saved() -> None:
    (_, mixture), (_, single) = sweeps(OWN, 0.01, SWEEPS), sweeps(OWN, 0.01, SWEEPS, one_form)
    assert mixture > 0.8 * single


@pytest.mark.slow
def test_one_form_stops_the_best_of_logistic_curves() -> None:
    """The families can fail: the single form does."""
    assert sweeps("logistic", 0.01, SWEEPS, one_form)[0] > 0.2
