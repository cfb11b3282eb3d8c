"""Deadlines and cost with pairs on one GPU: all sets of deadlines, and the program over all pairs, by the book."""

from __future__ import annotations

from itertools import combinations

import numpy as np
import pytest
from gavel_cases import total_of_pairs
from scipy.optimize import linprog
from test_pairs import over_all_pairs, shared

from themis.errors import NotSolved
from themis.model.units import Float
from themis.optimize.shares.pairs import PairRates, paired_throughput
from themis.optimize.shares.problem import Problem
from themis.policies.gavel.pair_deadlines import keep_deadlines_paired
from themis.policies.gavel.pair_totals import best_total_paired, cost_ratio_paired
from themis.policies.gavel.total import cost_adjusted, keep_deadlines, relative


def crowded(seed: int, jobs: int) -> tuple[Problem, PairRates, Float]:
    """Needs of which some cannot be met even alone, and all together hardly ever."""
    problem, pairs = shared(seed, jobs=jobs)
    rng = np.random.default_rng(seed)
    need = np.where(rng.random(jobs) < 0.85, problem.fastest * rng.uniform(0.3, 1.05, jobs), 0.0)
    return problem, pairs, need


def program(problem: Problem, pairs: PairRates, value: Float, spent: Float, least: Float) -> tuple[float, Float, Float]:
    """(largest sum, throughput, GPUs of each type) with a column for every job and every pair."""
    columns: list[tuple[int, list[tuple[int, float]], float]] = []
    for k in range(problem.types):
        columns += [
            (k, [(j, problem.rate[j, k])], problem.gpus[j]) for j in range(problem.jobs) if problem.rate[j, k] > 0
        ]
        for i, j in combinations(range(problem.jobs), 2):
            a, b = pairs.model[i], pairs.model[j]
            if problem.gpus[i] == problem.gpus[j] and a >= 0 and b >= 0 and pairs.rate[a, b, k] > 0:
                columns.append((k, [(i, pairs.rate[a, b, k]), (j, pairs.rate[b, a, k])], problem.gpus[i]))
    rows = np.zeros((problem.jobs + problem.types, len(columns)))
    got, gain = np.zeros((problem.jobs, len(columns))), np.zeros(len(columns))
    for c, (k, members, gpus) in enumerate(columns):
        rows[problem.jobs + k, c] = gpus
        gain[c] = sum(value[j, k] * rate for j, rate in members) - gpus * spent[k]
        for j, rate in members:
            rows[j, c], got[j, c] = 1.0, rate
    found = linprog(-gain, np.vstack([rows, -got]), [*np.ones(problem.jobs), *problem.workers, *-least])
    assert found.status == 0
    return -found.fun, got @ found.x, rows[problem.jobs :] @ found.x


@pytest.mark.parametrize("seed", range(12))
def test_as_many_deadlines_are_kept_as_by_trying_all_sets(seed: int) -> None:
    problem, pairs, need = crowded(seed, 7 + seed % 2)
    found = keep_deadlines_paired(problem, pairs, need)
    assert found.impossible.tolist() == (need > problem.fastest).tolist()
    asked = np.flatnonzero((need > 0) & ~found.impossible)

    def fits(some: list[int]) -> bool:
        wanted = np.zeros(problem.jobs)
        wanted[some] = need[some]
        return over_all_pairs(problem, pairs, wanted) >= 1.0 - 1e-8

    assert fits(np.flatnonzero(found.kept).tolist())
    more = int(found.kept.sum()) + 1
    assert not any(fits(list(some)) for some in combinations(asked.tolist(), more))
    assert not found.kept[found.impossible].any()
    assert found.kept.sum() >= keep_deadlines(problem, need).kept.sum()


@pytest.mark.parametrize("seed", range(6))
def test_a_search_that_is_cut_short_says_how_many_deadlines_it_has_not_ruled_out(
    seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    problem, pairs, need = crowded(seed, 8)
    whole = keep_deadlines_paired(problem, pairs, need)
    assert whole.most == whole.kept.sum()
    monkeypatch.setattr("themis.policies.gavel.pair_deadlines._PROGRAMS", 0)
    found = keep_deadlines_paired(problem, pairs, need)
    assert found.kept.sum() <= whole.most <= found.most
    assert over_all_pairs(problem, pairs, np.where(found.kept, need, 0.0)) >= 1.0 - 1e-8


def test_of_equally_many_deadlines_those_with_slack_are_kept() -> None:
    problem = Problem.of(np.ones((2, 1)), np.ones(2, np.int64), np.array([1.0]))
    pairs = PairRates(model=np.zeros(2, np.int64), rate=np.full((1, 1, 1), 0.7))
    assert keep_deadlines_paired(problem, pairs, np.array([0.95, 0.6])).kept.tolist() == [False, True]
    # Beside each other 0.7 each: both can be kept, which no two jobs alone on a GPU could.
    assert keep_deadlines_paired(problem, pairs, np.array([0.7, 0.7])).kept.tolist() == [True, True]


@pytest.mark.parametrize("seed", range(8))
def test_the_largest_sum_that_keeps_deadlines_over_all_pairs(seed: int) -> None:
    problem, pairs, need = crowded(seed, 8 + seed)
    kept = keep_deadlines_paired(problem, pairs, need).kept
    cost = np.random.default_rng(seed).uniform(0.5, 3.0, problem.types)
    least, worth = np.where(kept, need, 0.0), 1.0 / problem.fastest
    found = best_total_paired(problem, pairs, worth, cost, least=least)
    value = float(worth @ paired_throughput(problem, pairs, found.combos, found.x / cost))
    best, _, _ = program(problem, pairs, worth[:, None] / cost, 0 * cost, least * (1 - 1e-8))
    assert value == pytest.approx(best, rel=1e-6)
    assert found.bound == pytest.approx(value, rel=1e-7)
    assert (found.throughput >= least * (1 - 2e-8)).all()
    time, use = total_of_pairs(problem, found.combos, found.x)
    assert time.max() <= 1 + 1e-8
    assert (use <= problem.workers * (1 + 1e-8)).all()
    alone = keep_deadlines(problem, need).kept
    if (alone == kept).all():
        assert value >= cost_adjusted(problem, cost, least * (1 - 1e-9)).objective * (1 - 1e-7)
    assert value <= float((relative(problem) / cost).max(axis=1).sum())


@pytest.mark.parametrize("seed", range(6))
def test_no_shares_that_keep_deadlines_have_a_better_ratio(seed: int) -> None:
    problem, pairs, need = crowded(seed, 8)
    least = np.where(keep_deadlines_paired(problem, pairs, need).kept, need, 0.0)
    cost = np.random.default_rng(seed).uniform(0.5, 3.0, problem.types)
    found, ratio = cost_ratio_paired(problem, pairs, cost, least)
    bill = float((problem.gpus[found.combos[:, 0]] @ found.x) @ cost)
    assert float(found.throughput.sum()) / bill == pytest.approx(ratio, rel=1e-9)
    assert (found.throughput >= least * (1 - 2e-8)).all()
    value, some = np.ones((problem.jobs, problem.types)), least * (1 - 1e-8)
    assert program(problem, pairs, value, ratio * (1 + 1e-6) * cost, some)[0] <= 1e-9
    assert program(problem, pairs, value, ratio * (1 - 1e-6) * cost, some)[0] > 0


def test_throughputs_that_cannot_be_had_together_raise() -> None:
    problem = Problem.of(np.ones((2, 1)), np.ones(2, np.int64), np.array([1.0]))
    pairs = PairRates(model=np.zeros(2, np.int64), rate=np.full((1, 1, 1), 0.7))
    with pytest.raises(NotSolved, match="cannot be had together"):
        best_total_paired(problem, pairs, np.ones(2), least=np.array([0.9, 0.6]))


def test_of_thirty_deadlines_of_which_many_are_given_up() -> None:
    problem, pairs = shared(2, jobs=30, models=6, types=3)
    need = problem.fastest * np.random.default_rng(2).uniform(0.8, 1.0, 30)
    found = keep_deadlines_paired(problem, pairs, need)
    assert 0 < found.kept.sum() <= found.most < 30
    assert found.kept.sum() >= keep_deadlines(problem, need).kept.sum()
    assert best_total_paired(problem, pairs, 1 / problem.fastest, least=np.where(found.kept, need, 0.0)).bound > 0
