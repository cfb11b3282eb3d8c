"""Successive halving's survivors and Hyperband's brackets."""

from __future__ import annotations

import math
from itertools import accumulate

import numpy as np
import pytest

from themis.errors import InputError
from themis.policies.tuning.halving import hyperband, survivors


def test_survivors_are_the_lowest_losses_ties_to_the_earlier_and_nan_never() -> None:
    assert survivors(np.array([0.3, math.nan, 0.1, 0.3]), 2).tolist() == [True, False, True, False]


def test_hyperband_of_81_steps_by_three_has_the_sources_brackets() -> None:
    """R = 81, eta = 3: five brackets of 81, 34, 15, 8 and 5 jobs, each job in the last of them for all 81 steps."""
    brackets = hyperband(81.0, 3).brackets
    assert [[rung.jobs for rung in b.rungs] for b in brackets] == [
        [81, 27, 9, 3, 1],
        [34, 11, 3, 1],
        [15, 5, 1],
        [8, 2],
        [5],
    ]
    assert [list(accumulate(rung.steps for rung in b.rungs)) for b in brackets] == [
        [1, 3, 9, 27, 81],
        [3, 9, 27, 81],
        [9, 27, 81],
        [27, 81],
        [81],
    ]


@pytest.mark.parametrize("eta", [2, 3, 4, 10])
@pytest.mark.parametrize("power", range(6))
def test_a_power_of_eta_gives_all_its_brackets(eta: int, power: int) -> None:
    brackets = hyperband(7.0 * eta**power, eta, min_steps=7.0).brackets
    assert [len(b.rungs) for b in brackets] == list(range(power + 1, 0, -1))
    assert brackets[0].rungs[0].steps == 7.0


@pytest.mark.parametrize("given", [(0.0, 3, 1.0), (9.0, 1, 1.0), (9.0, 3, 10.0), (math.inf, 3, 1.0)])
def test_hyperband_that_makes_no_sense_is_refused(given: tuple[float, int, float]) -> None:
    with pytest.raises(InputError, match="expected 0 < min_steps <= max_steps and eta >= 2"):
        hyperband(*given)
