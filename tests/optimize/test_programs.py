"""The wrapper around HiGHS proves its gap or raises."""

from __future__ import annotations

import dataclasses
import subprocess
import sys

import numpy as np
import pytest

from themis.errors import NotSolved
from themis.optimize import MixedIntegerProgram, solve

KNAPSACK = MixedIntegerProgram(
    gain=np.array([3.0, 2.0, 4.0]),
    low=np.zeros(3),
    high=np.ones(3),
    whole=np.ones(3, np.bool_),
    row_low=np.array([-np.inf]),
    row_high=np.array([5.0]),
    start=np.array([0, 3]),
    column=np.array([0, 1, 2]),
    value=np.array([2.0, 3.0, 3.0]),
)


def test_a_knapsack_is_solved_to_proven_optimality() -> None:
    found = solve(KNAPSACK, gap=1e-6, nodes=100, accept=1e-6)
    assert found.x.tolist() == [1.0, 0.0, 1.0]
    assert found.objective == pytest.approx(7.0)
    assert found.bound - found.objective <= 1e-6


def test_a_linear_program_carries_prices() -> None:
    found = solve(dataclasses.replace(KNAPSACK, whole=np.zeros(3, np.bool_)), gap=1e-6, nodes=1, accept=1e-6)
    assert found.duals == pytest.approx([2 / 3])


def test_a_feasible_start_changes_nothing_in_the_optimum() -> None:
    assert solve(KNAPSACK, gap=0.0, nodes=100, accept=1e-6, start=np.array([1.0, 1.0, 0.0])).objective == 7.0


def test_an_infeasible_program_raises() -> None:
    impossible = dataclasses.replace(KNAPSACK, row_low=np.array([9.0]), row_high=np.array([9.5]))
    with pytest.raises(NotSolved, match="no feasible point"):
        solve(impossible, gap=0.0, nodes=9, accept=1.0)


def test_a_gap_above_what_is_accepted_raises() -> None:
    rng = np.random.default_rng(0)
    hard = MixedIntegerProgram(
        gain=rng.uniform(1, 1.01, 60),
        low=np.zeros(60),
        high=np.ones(60),
        whole=np.ones(60, np.bool_),
        row_low=np.full(5, -np.inf),
        row_high=np.full(5, 100.0),
        start=np.arange(6) * 60,
        column=np.tile(np.arange(60), 5),
        value=rng.uniform(1, 30, 300),
    )
    with pytest.raises(NotSolved, match="gap"):
        solve(hard, gap=0.0, nodes=1, accept=0.0)
    carried = solve(hard, gap=0.0, nodes=1, accept=np.inf)
    assert carried.objective < carried.bound < np.inf


def test_highs_prints_nothing_not_even_its_name() -> None:
    code = "from themis.optimize.programs import Silent; highs = Silent(); highs.addVar(0, 1); highs.run()"
    ran = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True)
    assert (ran.stdout, ran.stderr) == ("", "")
