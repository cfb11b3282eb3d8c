"""Sums over jobs with pairs on one GPU: the optimum over all pairs, proven, and never less than without them."""

from __future__ import annotations

from itertools import combinations

import numpy as np
import pytest
from gavel_cases import total_of_pairs
from scipy.optimize import linprog
from test_pairs import shared

from themis.model.units import Float
from themis.optimize.shares.pairs import PairRates, paired_throughput
from themis.optimize.shares.problem import Problem
from themis.policies.gavel.pair_totals import best_total_paired, cost_ratio_paired
from themis.policies.gavel.total import best_total, cost_ratio, precedence, relative


def textbook(problem: Problem, pairs: PairRates, value: Float, spent: Float) -> float:
    """The program with a column for every job and every pair; ``value`` [J, K] of a unit of throughput."""
    columns: list[tuple[int, list[int], float, float]] = []
    for k in range(problem.types):
        for j in range(problem.jobs):
            gain = value[j, k] * problem.rate[j, k] - problem.gpus[j] * spent[k]
            if problem.rate[j, k] > 0:
                columns.append((k, [j], gain, problem.gpus[j]))
        for i, j in combinations(range(problem.jobs), 2):
            a, b = pairs.model[i], pairs.model[j]
            gpus = problem.gpus[i]
            if (
                gpus == problem.gpus[j]
                and pairs.rate[a, b, k] > 0
                and problem.rate[i, k] > 0
                and problem.rate[j, k] > 0
            ):
                gain = value[i, k] * pairs.rate[a, b, k] + value[j, k] * pairs.rate[b, a, k] - gpus * spent[k]
                columns.append((k, [i, j], gain, gpus))
    matrix = np.zeros((problem.jobs + problem.types, len(columns)))
    for c, (k, jobs, _, gpus) in enumerate(columns):
        matrix[jobs, c] = 1.0
        matrix[problem.jobs + k, c] = gpus
    found = linprog([-gain for _, _, gain, _ in columns], matrix, [*np.ones(problem.jobs), *problem.workers])
    assert found.status == 0
    return float(-found.fun)


@pytest.mark.parametrize("seed", range(10))
def test_generated_pairs_reach_the_largest_sum_over_all_pairs(seed: int) -> None:
    problem, pairs = shared(seed, jobs=9 + seed, models=2 + seed % 3)
    rng = np.random.default_rng(seed)
    fastest = problem.fastest
    cost = rng.uniform(0.5, 3.0, problem.types) if seed % 2 else np.ones(problem.types)
    # In order of arrival every job is a class of its own; worth alike, the jobs of a model are one.
    weight = precedence(rng.permutation(problem.jobs)) if seed % 3 else np.ones(problem.jobs)
    worth = weight / fastest
    found = best_total_paired(problem, pairs, worth, cost)
    value = float(worth @ paired_throughput(problem, pairs, found.combos, found.x / cost))
    assert value == pytest.approx(textbook(problem, pairs, worth[:, None] / cost, 0.0 * cost), rel=1e-8)
    assert value <= found.bound * (1 + 1e-12)
    assert found.bound == pytest.approx(value, rel=1e-8)
    assert value >= best_total(problem, weight[:, None] * relative(problem) / cost).objective * (1 - 1e-8)
    time, use = total_of_pairs(problem, found.combos, found.x)
    assert time.max() <= 1 + 1e-9
    assert (use <= problem.workers * (1 + 1e-9)).all()
    assert found.x.min() >= 0
    assert found.throughput == pytest.approx(paired_throughput(problem, pairs, found.combos, found.x))


@pytest.mark.parametrize("seed", range(4))
def test_no_mixture_of_jobs_and_pairs_has_a_better_ratio(seed: int) -> None:
    problem, pairs = shared(seed, jobs=7)
    cost = np.random.default_rng(seed).uniform(0.5, 3.0, problem.types)
    found, ratio = cost_ratio_paired(problem, pairs, cost)
    bill = float((problem.gpus[found.combos[:, 0]] @ found.x) @ cost)
    assert float(found.throughput.sum()) / bill == pytest.approx(ratio, rel=1e-9)
    value = np.ones((problem.jobs, problem.types))
    assert textbook(problem, pairs, value, ratio * (1 + 1e-6) * cost) <= 1e-9
    assert textbook(problem, pairs, value, ratio * (1 - 1e-6) * cost) > 0
    assert ratio >= cost_ratio(problem, cost).objective * (1 - 1e-9)


def test_jobs_that_nothing_tells_apart_make_a_small_program() -> None:
    problem, pairs = shared(1, jobs=300, models=3)
    found = best_total_paired(problem, pairs, 1.0 / problem.fastest)
    assert found.columns < 60
    assert found.bound == pytest.approx(float((found.throughput / problem.fastest).sum()), rel=1e-9)


def test_where_nobody_can_run_or_share_there_are_no_pairs() -> None:
    nobody = Problem.of(np.zeros((2, 1)), np.ones(2, np.int64), np.ones(1))
    pairs = PairRates(model=np.zeros(2, np.int64), rate=np.full((1, 1, 1), 3.0))
    assert best_total_paired(nobody, pairs, np.ones(2)).bound == 0.0
    gangs = Problem.of(np.full((2, 1), 4.0), np.full(2, 2), np.full(1, 2.0))
    found = best_total_paired(gangs, PairRates(model=np.full(2, -1), rate=np.zeros((0, 0, 1))), np.ones(2))
    assert found.combos[:, 1].tolist() == [-1] * len(found.combos)
    assert found.bound == pytest.approx(4.0)
