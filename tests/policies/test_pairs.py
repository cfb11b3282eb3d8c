"""Space sharing: generated pairs reach the optimum over all pairs, and never do worse than jobs alone."""

from __future__ import annotations

import numpy as np
import pytest
from gavel_cases import total_of_pairs
from scipy.optimize import linprog

from themis.errors import InputError
from themis.model.units import Float
from themis.optimize.shares.pairs import PairRates, PairShares, highest_level_paired
from themis.optimize.shares.problem import Problem
from themis.policies.gavel.finish_time_shares import JobsProgress, finish_time_fairness, needed
from themis.policies.gavel.max_min import max_min, normalised_unit


def shared(seed: int, jobs: int, models: int = 4, types: int = 2) -> tuple[Problem, PairRates]:
    """Jobs of a few models on one GPU or two; some pairs cannot share, nor do gangs of unequal size, although they have rates."""
    rng = np.random.default_rng(seed)
    alone = rng.uniform(1.0, 10.0, (models, types))
    alone = np.concatenate([alone, alone * rng.uniform(1.2, 2.0, (models, 1))])
    slower = rng.uniform(0.3, 1.0, (2 * models, 2 * models, types))
    rate = alone[:, None, :] * np.where(rng.random(slower.shape) < 0.2, 0.0, slower)
    rate = np.where((rate > 0) & (rate.transpose(1, 0, 2) > 0), rate, 0.0)
    gpus = rng.choice([1, 1, 2], size=jobs)
    model = rng.integers(models, size=jobs) + models * (gpus - 1)
    problem = Problem.of(alone[model], gpus, np.full(types, max(2.0, jobs // 4)))
    return problem, PairRates(model=model, rate=rate)


def over_all_pairs(problem: Problem, pairs: PairRates, need: Float) -> float:
    """The textbook program with a row for every pair: the largest multiple of ``need``."""
    columns, jobs = [], problem.jobs
    for k in range(problem.types):
        for j in range(jobs):
            columns.append((k, [(j, problem.rate[j, k])], problem.gpus[j]))
        for i in range(jobs):
            for j in range(i + 1, jobs):
                a, b = pairs.model[i], pairs.model[j]
                alike = problem.gpus[i] == problem.gpus[j]
                if alike and a >= 0 and b >= 0 and pairs.rate[a, b, k] > 0 and pairs.rate[b, a, k] > 0:
                    columns.append((k, [(i, pairs.rate[a, b, k]), (j, pairs.rate[b, a, k])], problem.gpus[i]))
    matrix = np.zeros((2 * jobs + problem.types, len(columns) + 1))
    for c, (k, members, gpus) in enumerate(columns):
        matrix[2 * jobs + k, c] = gpus
        for j, rate in members:
            matrix[j, c], matrix[jobs + j, c] = 1.0, -rate
    matrix[jobs : 2 * jobs, -1] = need
    right = np.concatenate([np.ones(jobs), np.zeros(jobs), problem.workers])
    exact = {"primal_feasibility_tolerance": 1e-10, "dual_feasibility_tolerance": 1e-10}
    found = linprog(np.append(np.zeros(len(columns)), -1.0), matrix, right, options=exact)
    assert found.status == 0
    return float(-found.fun)


def solve_linear(problem: Problem, pairs: PairRates, need: Float) -> PairShares:
    ceiling = float((pairs.fastest(problem) / need).min())
    return highest_level_paired(problem, pairs, lambda t: t * need, ceiling, need[:, None])


def assert_shares(problem: Problem, found: PairShares) -> None:
    time, use = total_of_pairs(problem, found.combos, found.x)
    assert time.max() <= 1 + 1e-9
    assert (use <= problem.workers * (1 + 1e-9)).all()
    assert found.x.min() >= 0.0
    assert found.x.max() <= 1.0


@pytest.mark.parametrize("seed", range(40))
def test_generated_pairs_reach_the_optimum_over_all_pairs(seed: int) -> None:
    problem, pairs = shared(seed, jobs=8 + seed % 10)
    weight = np.random.default_rng(seed).choice([1.0, 2.0], problem.jobs)
    unit = weight * normalised_unit(problem)
    found = solve_linear(problem, pairs, unit)
    assert_shares(problem, found)
    assert (found.throughput / unit).min() == pytest.approx(over_all_pairs(problem, pairs, unit), rel=1e-7)
    assert found.bound == pytest.approx((found.throughput / unit).min(), rel=1e-7)


@pytest.mark.parametrize("seed", range(6))
def test_colocation_is_never_worse(seed: int) -> None:
    problem, pairs = shared(50 + seed, jobs=14)
    unit = normalised_unit(problem)
    found = solve_linear(problem, pairs, unit)
    assert (found.throughput / unit).min() >= max_min(problem, np.ones(14)).objective * (1 - 1e-8)


def test_finish_time_fairness_with_pairs_is_never_worse_and_proven() -> None:
    problem, pairs = shared(3, jobs=16)
    rng = np.random.default_rng(3)
    progress = JobsProgress(
        left=rng.uniform(10, 500, 16),
        elapsed=rng.uniform(0, 50, 16),
        isolated_elapsed=rng.uniform(0, 50, 16),
        isolated_rate=problem.isolated_rate(),
    )
    seconds = progress.elapsed + progress.left / pairs.fastest(problem)
    ceiling = float((progress.alone() / seconds).min())
    alike = np.column_stack([progress.left, progress.elapsed, progress.isolated_elapsed])
    found = highest_level_paired(problem, pairs, needed(progress, np.ones(16), np.ones(16)), ceiling, alike)
    worst = float(progress.rho(found.throughput).max())
    assert worst == pytest.approx(1 / found.bound, rel=1e-6)
    assert worst <= finish_time_fairness(problem, progress, np.ones(16)).objective * (1 + 1e-8)
    assert_shares(problem, found)


def test_alike_jobs_get_the_same_and_pairs_are_few() -> None:
    problem, pairs = shared(7, jobs=60, models=3)
    unit = normalised_unit(problem)
    found = solve_linear(problem, pairs, unit)
    for model in range(3):
        rates = found.throughput[(pairs.model == model) & (problem.gpus == 1)]
        assert np.ptp(rates) <= 1e-8 * rates.max()
    assert len(found.combos) < 10 * problem.jobs


def test_two_jobs_that_do_not_hurt_each_other_share_one_gpu() -> None:
    """Gavel §3.1: on one GPU each of two jobs alone half of the time, or both all of it."""
    problem = Problem.of(np.full((2, 1), 4.0), np.ones(2, np.int64), np.ones(1))
    pairs = PairRates(model=np.zeros(2, np.int64), rate=np.full((1, 1, 1), 3.0))
    found = solve_linear(problem, pairs, np.full(2, 4.0))
    assert found.combos.tolist() == [[0, 1]]
    assert found.x == pytest.approx(np.ones((1, 1)))
    assert found.throughput == pytest.approx([3.0, 3.0])


def test_models_of_which_none_may_share_need_no_table() -> None:
    problem, _ = shared(3, jobs=5)
    nobody = PairRates(model=np.full(5, -1), rate=np.zeros((0, 0, problem.types)))
    unit = normalised_unit(problem)
    found, alone = solve_linear(problem, nobody, unit), max_min(problem, np.ones(5), fill=False)
    assert found.bound == pytest.approx(alone.objective, rel=1e-8)
    assert (found.combos[:, 1] == -1).all()


def test_pair_rates_that_make_no_sense_are_refused() -> None:
    with pytest.raises(InputError, match="expected a square"):
        PairRates(model=np.array([2]), rate=np.ones((2, 2, 1)))
    with pytest.raises(InputError, match="not a number >= 0"):
        PairRates(model=np.array([0]), rate=np.full((1, 1, 1), -1.0))
