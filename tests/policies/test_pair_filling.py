"""Water filling with pairs: the lexicographic optimum over all pairs, found by the book."""

from __future__ import annotations

from itertools import combinations

import numpy as np
import pytest
from gavel_cases import total_of_pairs
from scipy.optimize import linprog
from test_pairs import shared

from themis.model.units import Float
from themis.optimize.shares.pair_filling import water_fill_paired
from themis.optimize.shares.pairs import PairRates, highest_level_paired
from themis.optimize.shares.problem import Problem
from themis.policies.gavel.max_min import max_min_water_filling, normalised, normalised_unit


def leximin(problem: Problem, pairs: PairRates, unit: Float) -> Float:
    """Amounts by the book: the highest level, then for every job one program that asks whether it could have more."""
    columns = [
        (k, ((j, problem.rate[j, k]),), problem.gpus[j]) for k in range(problem.types) for j in range(problem.jobs)
    ]
    for k in range(problem.types):
        for i, j in combinations(range(problem.jobs), 2):
            a, b = pairs.model[i], pairs.model[j]
            alike = problem.gpus[i] == problem.gpus[j]
            if alike and a >= 0 and b >= 0 and pairs.rate[a, b, k] > 0 and pairs.rate[b, a, k] > 0:
                columns.append((k, ((i, pairs.rate[a, b, k]), (j, pairs.rate[b, a, k])), problem.gpus[i]))
    time = np.zeros((problem.jobs + problem.types, len(columns) + 1))
    got = np.zeros((problem.jobs, len(columns)))
    for c, (k, members, gpus) in enumerate(columns):
        time[problem.jobs + k, c] = gpus
        for j, rate in members:
            time[j, c], got[j, c] = 1.0, rate / unit[j]
    room = [*np.ones(problem.jobs), *problem.workers]

    def most(goal: Float, base: Float, rises: Float) -> float:
        """The largest goal @ (amounts, level) with amounts of at least base + level x rises."""
        cost = -np.append(goal[:-1] @ got, goal[-1])
        found = linprog(cost, np.vstack([time, np.column_stack([-got, rises])]), [*room, *(-base)])
        assert found.status == 0
        return float(-found.fun)

    amount, open_ = np.zeros(problem.jobs), np.ones(problem.jobs, dtype=bool)
    while open_.any():
        level = most(np.append(np.zeros(problem.jobs), 1.0), np.where(open_, 0.0, amount), open_.astype(float))
        amount[open_] = level
        here = np.append(np.eye(problem.jobs), np.zeros((problem.jobs, 1)), axis=1)
        best = [
            most(here[j], amount * (1 - 1e-9), np.zeros(problem.jobs)) if open_[j] else 0.0 for j in range(problem.jobs)
        ]
        open_ &= np.array(best) > amount * (1 + 1e-6)
    return amount


@pytest.mark.parametrize("seed", range(12))
def test_pairs_reach_the_lexicographic_optimum_over_all_pairs(seed: int) -> None:
    problem, pairs = shared(seed, jobs=6 + seed % 5, models=2 + seed % 4)
    weight = np.random.default_rng(seed).choice([1.0, 2.0], problem.jobs)
    unit = weight * normalised_unit(problem)
    found = water_fill_paired(problem, pairs, unit)
    amount = found.throughput / unit
    assert np.sort(amount) == pytest.approx(np.sort(leximin(problem, pairs, unit)), rel=1e-6)
    assert amount.min() == pytest.approx(found.bound, rel=1e-7)
    time, use = total_of_pairs(problem, found.combos, found.x)
    assert time.max() <= 1 + 1e-9
    assert (use <= problem.workers * (1 + 1e-9)).all()


def drawn(case: int) -> tuple[Problem, PairRates, Float]:
    """One of a row of random problems: few GPUs, gangs, distinct jobs, pairs that slow each other much."""
    rng = np.random.default_rng(5)
    for _ in range(case + 1):
        jobs, types = int(rng.integers(2, 22)), int(rng.integers(1, 4))
        distinct = rng.random() < 0.7
        rate = rng.uniform(0.2, 2.0, (4, types))
        model = rng.integers(0, 4, jobs)
        own = rate[model] * (rng.uniform(0.8, 1.2, (jobs, 1)) if distinct else 1.0)
        gpus = np.where(rng.random(jobs) < 0.7, 1, rng.choice([2, 4], jobs))
        beside = np.repeat(rate[:, None, :], 4, 1) * rng.uniform(0.3, 0.95, (4, 4, types))
        beside *= rng.random((4, 4, types)) > 0.1
        problem = Problem.of(own, gpus, rng.choice([2, 4, 8, 16], types).astype(float))
        pairs = PairRates(model=np.where(gpus == 1, model, -1), rate=beside)
        if problem.active.any():
            unit = np.where(problem.active, problem.isolated_rate() * rng.uniform(0.5, 2.0, jobs), 1.0)
    return problem, pairs, unit


@pytest.mark.parametrize("case", [142, 152])
@pytest.mark.parametrize("many", [2, 200])
def test_nobody_counts_as_stuck_because_a_price_is_rounding(
    case: int, many: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A time price of 1e-9 of a job that is worth nothing took it for stuck, at a third less than it can have."""
    monkeypatch.setattr("themis.optimize.shares.pairs.MANY", many)
    monkeypatch.setattr("themis.optimize.shares.pair_filling.MANY", many)
    problem, pairs, unit = drawn(case)
    amount = water_fill_paired(problem, pairs, unit).throughput / unit
    assert np.sort(amount) == pytest.approx(np.sort(leximin(problem, pairs, unit)), rel=1e-6)


@pytest.mark.parametrize("seed", range(4))
def test_without_pairs_it_is_water_filling_over_jobs(seed: int) -> None:
    problem, pairs = shared(seed, jobs=10)
    nobody = PairRates(model=np.full(problem.jobs, -1), rate=pairs.rate)
    unit = normalised_unit(problem)
    alone = normalised(problem, max_min_water_filling(problem, np.ones(problem.jobs)).x)
    assert water_fill_paired(problem, nobody, unit).throughput / unit == pytest.approx(alone, rel=1e-6)


def test_many_jobs_in_few_rounds_and_nobody_below_the_highest_level() -> None:
    problem, pairs = shared(5, jobs=200, models=6, types=3)
    unit = normalised_unit(problem)
    found = water_fill_paired(problem, pairs, unit)
    ceiling = float((pairs.fastest(problem) / unit).min())
    level = highest_level_paired(problem, pairs, lambda t: t * unit, ceiling, unit[:, None]).bound
    assert (found.throughput / unit).min() == pytest.approx(level, rel=1e-7)


def test_nobody_can_run() -> None:
    problem = Problem.of(np.zeros((2, 1)), np.ones(2, dtype=np.int64), np.ones(1))
    pairs = PairRates(model=np.zeros(2, dtype=np.int64), rate=np.ones((1, 1, 1)))
    assert not len(water_fill_paired(problem, pairs, np.ones(2)).combos)
