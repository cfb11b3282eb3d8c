"""AlloX, Gandiva's packing and Gandiva-fair: brute force and what each promises."""

from __future__ import annotations

from itertools import permutations, product

import numpy as np
import pytest
from gavel_cases import assert_valid, random_problem, total_of_pairs

from themis.optimize.shares.pairs import PairRates
from themis.optimize.shares.problem import Problem
from themis.policies.gavel.baselines import allox, gandiva_fair, gandiva_packing


@pytest.mark.parametrize("seed", range(6))
def test_allox_has_the_least_mean_completion_time(seed: int) -> None:
    """Against all orders of four jobs on all assignments to three GPUs."""
    rng = np.random.default_rng(seed)
    problem = Problem.of(rng.uniform(0.5, 4.0, (4, 2)), np.ones(4, np.int64), np.array([1.0, 2.0]))
    left = rng.uniform(1.0, 20.0, 4)
    gpu_type = [0, 1, 1]
    best = np.inf
    for where in product(range(3), repeat=4):
        for order in permutations(range(4)):
            clock, total = [0.0] * 3, 0.0
            for j in order:
                clock[where[j]] += left[j] / problem.rate[j, gpu_type[where[j]]]
                total += clock[where[j]]
            best = min(best, total / 4)
    found = allox(problem, left)
    assert found.objective == pytest.approx(best)
    assert_valid(problem, found.x)
    assert found.x.sum() == 3.0, "all three GPUs run a job"


def test_allox_runs_the_first_of_each_queue() -> None:
    """On one GPU the shortest; on two types each job waits where it ends soonest in all."""
    one = Problem.of(np.ones((3, 1)), np.ones(3, np.int64), np.array([1.0]))
    assert allox(one, np.array([10.0, 1.0, 5.0])).x[:, 0].tolist() == [0.0, 1.0, 0.0]
    two = Problem.of(np.array([[4.0, 1.0], [4.0, 1.0], [1.0, 1.0]]), np.ones(3, np.int64), np.ones(2))
    found = allox(two, np.array([8.0, 4.0, 6.0]))
    assert found.objective == pytest.approx((1.0 + 3.0 + 6.0) / 3)
    assert found.x.tolist() == [[0.0, 0.0], [1.0, 0.0], [0.0, 1.0]]


def test_allox_keeps_gangs_within_the_pools() -> None:
    problem = random_problem(4, jobs=20)
    found = allox(problem, np.linspace(1.0, 9.0, 20))
    assert_valid(problem, found.x)
    assert set(np.unique(found.x)) <= {0.0, 1.0}


@pytest.mark.parametrize("seed", range(8))
def test_nobody_loses_by_gandiva_fairs_trades(seed: int) -> None:
    problem = random_problem(seed, jobs=14, barred=0.0)
    weight = np.random.default_rng(seed).uniform(0.5, 2.0, 14)
    share = np.outer(weight / weight.sum(), problem.workers) * (problem.rate > 0)
    share = share * np.minimum(problem.gpus / share.sum(axis=1), 1.0)[:, None]
    found = gandiva_fair(problem, weight)
    assert_valid(problem, found.x)
    before, after = problem.throughput(share / problem.gpus[:, None]), problem.throughput(found.x)
    assert (after >= before * (1 - 1e-9)).all()
    assert (after > before * 1.01).any()


def test_gandiva_fair_sells_at_the_runner_ups_speedup() -> None:
    """Speedups 1, 2, 4; each has 0.2 of both types. The first sells the third 0.1 fast for 0.2 slow, the second 0.1 for 0.1."""
    rate = np.array([[1.0, 1.0], [2.0, 1.0], [4.0, 1.0]])
    problem = Problem(rate=rate, gpus=np.ones(3, np.int64), workers=np.array([0.6, 0.6]), pool=np.arange(2))
    assert gandiva_fair(problem, np.ones(3)).x == pytest.approx(np.array([[0.0, 0.5], [0.3, 0.1], [0.3, 0.0]]))


def test_gandiva_pairs_jobs_only_where_demand_exceeds_supply() -> None:
    rate = np.full((1, 1, 1), 0.7)
    four = Problem.of(np.ones((4, 1)), np.ones(4, np.int64), np.array([2.0]))
    combos, x = gandiva_packing(four, PairRates(model=np.zeros(4, np.int64), rate=rate), np.array([0.3, 0.1, 0.2, 0.0]))
    assert combos.tolist() == [[3, 1], [2, 0]], "in the order of their keys"
    assert x == pytest.approx(np.ones((2, 1)))
    time, use = total_of_pairs(four, combos, x)
    assert time.tolist() == [1.0] * 4
    assert use == pytest.approx([2.0])
    two = Problem.of(np.ones((2, 1)), np.ones(2, np.int64), np.array([2.0]))
    combos, _ = gandiva_packing(two, PairRates(model=np.zeros(2, np.int64), rate=rate), np.zeros(2))
    assert combos.tolist() == [[0, -1], [1, -1]]


def test_gandiva_forms_only_pairs_that_do_more_than_one_job_and_only_as_many_as_needed() -> None:
    """Models 0 and 1 keep 0.9 together, which is less than a job alone; 0 and 0 keep 1.2. Three jobs lack one GPU."""
    rate = np.array([[[0.6], [0.5]], [[0.4], [0.0]]])
    problem = Problem.of(np.ones((3, 1)), np.ones(3, np.int64), np.array([2.0]))
    combos, _ = gandiva_packing(problem, PairRates(model=np.array([0, 1, 0]), rate=rate), np.arange(3.0))
    assert combos.tolist() == [[0, 2], [1, -1]]
    combos, _ = gandiva_packing(problem, PairRates(model=np.array([0, 1, 1]), rate=rate), np.arange(3.0))
    assert combos.tolist() == [[0, -1], [1, -1], [2, -1]]
    five = Problem.of(np.ones((5, 1)), np.ones(5, np.int64), np.array([4.0]))
    combos, _ = gandiva_packing(five, PairRates(model=np.zeros(5, np.int64), rate=rate), np.arange(5.0))
    assert combos.tolist() == [[0, 1], [2, -1], [3, -1], [4, -1]]


def test_tickets_by_size_give_every_job_the_same_part_of_the_time() -> None:
    """Shockwave §8.5: large jobs then have a higher proportional share."""
    problem = Problem.of(np.ones((3, 1)), np.array([1, 2, 4]), np.array([4.0]))
    alike, by_size = gandiva_fair(problem, np.ones(3)), gandiva_fair(problem, np.array([1.0, 2.0, 4.0]))
    assert by_size.x[:, 0] == pytest.approx([4 / 7] * 3)
    assert alike.x[:, 0] == pytest.approx([1.0, 2 / 3, 1 / 3])
