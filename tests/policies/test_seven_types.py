"""Seven GPU types, rates and weights over several orders of magnitude: every problem is solved, validly and with its proof."""

from __future__ import annotations

import os

import numpy as np
import pytest
from gavel_cases import assert_valid, best_level

from themis.model.units import Float
from themis.optimize.shares.problem import Problem
from themis.policies.gavel.max_min import max_min, max_min_water_filling, normalised_unit

INFEASIBLE = (9, 54, 250, 410, 486, 511, 589, 691, 919, 921, 986, 1151, 1176, 1195, 1199)
"""Jobs that need their fastest rate: HiGHS finds a program with a row for each of them infeasible by rounding."""

MISTAKEN = (922, 10023)
"""Water filling took jobs off pools that they still needed, and the rates of the round before fitted no more."""


def seven_types(seed: int) -> tuple[Problem, Float]:
    """Rates exp(N(0, 2)), weights 0.037 to 133; from 10000 on rates exp(N(0, 3)) of 68 jobs."""
    wide = seed >= 10000
    rng = np.random.default_rng(seed % 10000)
    jobs = 68 if wide else int(rng.integers(5, 60))
    rate = np.exp(rng.normal(0, 3.0 if wide else 2.0, (jobs, 7)))
    if rng.random() < 0.3:
        rate[rng.random((jobs, 7)) < 0.2] = 0
    weight = np.exp(rng.uniform(np.log(0.037), np.log(133), jobs))
    gpus = rng.choice([1, 1, 2, 4, 8], jobs)
    return Problem.of(rate, gpus, rng.integers(1, 33, 7).astype(float)), weight


SEEDS = range(200) if os.environ.get("THEMIS_LONG") else (*range(15), *INFEASIBLE, *MISTAKEN)


@pytest.mark.parametrize("seed", SEEDS)
def test_problems_of_seven_types_are_solved_with_their_proof(seed: int) -> None:
    problem, weight = seven_types(seed)
    for solve in (max_min, max_min_water_filling):
        found = solve(problem, weight)
        assert found.gap < 1e-8, solve.__name__
        assert_valid(problem, found.x)


@pytest.mark.parametrize("seed", INFEASIBLE[:3])
def test_the_bound_is_the_optimum_of_the_textbook_program(seed: int) -> None:
    problem, weight = seven_types(seed)
    slope = weight * normalised_unit(problem)
    assert max_min(problem, weight).objective == pytest.approx(best_level(problem, slope), rel=1e-6)
