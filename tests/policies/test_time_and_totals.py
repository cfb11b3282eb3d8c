"""Finish-time fairness, makespan, FIFO, SJF, throughput and cost against textbook programs and by hand."""

from __future__ import annotations

from itertools import product

import numpy as np
import pytest
from gavel_cases import PAPER, assert_valid, best_level, random_problem

from themis.errors import NotSolved
from themis.model.units import Float
from themis.optimize.shares.level import highest_level
from themis.optimize.shares.problem import Problem
from themis.policies.gavel.finish_time_shares import JobsProgress, finish_time_fairness
from themis.policies.gavel.makespan_shares import min_makespan
from themis.policies.gavel.total import (
    best_total,
    cost_adjusted,
    cost_ratio,
    in_order,
    keep_deadlines,
    relative,
    shortest_first,
)


def runnable(problem: Problem) -> Problem:
    able = problem.active
    return Problem(rate=problem.rate[able], gpus=problem.gpus[able], workers=problem.workers, pool=problem.pool)


def random_progress(problem: Problem, seed: int) -> JobsProgress:
    rng = np.random.default_rng(seed)
    return JobsProgress(
        left=rng.uniform(1.0, 1000.0, problem.jobs),
        elapsed=rng.uniform(0.0, 500.0, problem.jobs),
        isolated_elapsed=rng.uniform(0.0, 500.0, problem.jobs),
        isolated_rate=problem.isolated_rate(),
    )


@pytest.mark.parametrize("seed", range(10))
def test_the_worst_rho_cannot_be_lower(seed: int) -> None:
    """At the optimum the textbook program needs all of the cluster; a little below it, more than there is."""
    problem = runnable(random_problem(seed, jobs=10, alike=seed % 2 == 0))
    progress, weight = random_progress(problem, seed), np.random.default_rng(seed).uniform(0.5, 2.0, problem.jobs)
    found = finish_time_fairness(problem, progress, weight)
    assert_valid(problem, found.x)
    assert found.gap < 1e-8
    assert (progress.rho(problem.throughput(found.x)) / weight).max() == pytest.approx(found.objective)

    def needed(rho: float) -> Float:
        time = rho * weight * progress.alone() - progress.elapsed
        return np.where(time > 0, progress.left / np.maximum(time, 1e-300), np.inf)

    assert best_level(problem, needed(found.objective * (1 + 1e-6))) >= 1.0
    below = needed(found.objective * (1 - 1e-6))
    assert not np.isfinite(below).all() or best_level(problem, below) < 1.0


def test_in_isolation_from_the_start_everybody_has_rho_1_at_worst() -> None:
    problem = runnable(random_problem(5, jobs=8, barred=0.0))
    left = np.linspace(10.0, 80.0, problem.jobs)
    nothing = np.zeros(problem.jobs)
    progress = JobsProgress(left=left, elapsed=nothing, isolated_elapsed=nothing, isolated_rate=problem.isolated_rate())
    assert finish_time_fairness(problem, progress, np.ones(problem.jobs)).objective <= 1 + 1e-9


@pytest.mark.parametrize("seed", range(8))
def test_makespan_is_the_optimum_of_one_textbook_program(seed: int) -> None:
    problem = runnable(random_problem(seed, jobs=12))
    left = np.random.default_rng(seed).uniform(1.0, 100.0, problem.jobs)
    found = min_makespan(problem, left)
    assert_valid(problem, found.x)
    assert found.objective == pytest.approx(1 / best_level(problem, left), rel=1e-7)
    assert found.gap < 1e-8


def test_makespan_of_the_section_4_1_jobs() -> None:
    assert min_makespan(PAPER, np.array([4000.0, 1200.0, 20000.0])).objective == pytest.approx(280.0)


def test_a_level_that_nothing_limits_is_its_ceiling_with_gpus_to_spare() -> None:
    roomy = Problem.of(np.ones((2, 1)), np.ones(2, np.int64), np.array([5.0]))
    found = highest_level(roomy, lambda t: np.full(2, t), 1.0)
    assert (found.level, found.price.tolist()) == (1.0, [0.0])
    assert np.isinf(found.marginal()).all()


def test_fifo_runs_the_first_jobs_on_their_fastest_types() -> None:
    """One V100 and one K80: of three jobs that all like the V100 best, the first has it, the second the K80."""
    problem = Problem.of(np.array([[4.0, 1.0], [4.0, 1.0], [4.0, 1.0]]), np.ones(3, np.int64), np.ones(2))
    assert in_order(problem, np.arange(3)).x == pytest.approx(np.array([[1.0, 0.0], [0.0, 1.0], [0.0, 0.0]]))
    assert in_order(problem, np.array([2, 0, 1])).x == pytest.approx(np.array([[0.0, 1.0], [0.0, 0.0], [1.0, 0.0]]))


def test_shortest_first_orders_by_time_on_the_fastest_type() -> None:
    problem = Problem.of(np.array([[2.0, 1.0], [1.0, 9.0], [0.0, 0.0]]), np.ones(3, np.int64), np.ones(2))
    assert shortest_first(problem, np.array([4.0, 9.0, 1.0])).tolist() == [1, 0, 2]


@pytest.mark.parametrize("seed", range(5))
def test_totals_are_proven(seed: int) -> None:
    problem = random_problem(seed, jobs=15)
    found = best_total(problem, relative(problem))
    assert_valid(problem, found.x)
    assert found.gap < 1e-9
    every = np.argsort(-relative(problem).max(axis=1))
    assert found.objective >= (relative(problem) * in_order(problem, every).x).sum() - 1e-9


def test_cost_adjusted_throughput_prefers_the_cheap_type_where_it_is_good_enough() -> None:
    problem = Problem.of(np.array([[1.0, 0.5], [1.0, 0.1]]), np.ones(2, np.int64), np.array([2.0, 2.0]))
    found = cost_adjusted(problem, np.array([1.0, 0.2]))
    assert found.x == pytest.approx(np.array([[0.0, 1.0], [1.0, 0.0]]))


def test_the_printed_cost_ratio_runs_the_one_best_job_alone() -> None:
    """Why the paper's form is not the default."""
    found = cost_ratio(PAPER, np.array([3.0, 1.0]))
    assert found.objective == pytest.approx(50.0)
    assert found.x == pytest.approx(np.array([[0, 0], [0, 0], [0, 1.0]]))


def test_the_printed_cost_ratio_pays_for_every_gpu_of_a_gang() -> None:
    """Four GPUs for 6 steps/s cost more a step than one for 2."""
    problem = Problem.of(np.array([[6.0], [2.0]]), np.array([4, 1]), np.array([5.0]))
    found = cost_ratio(problem, np.array([1.0]))
    assert found.objective == pytest.approx(2.0)
    assert not found.x[0].any()


@pytest.mark.parametrize("seed", range(8))
def test_as_many_deadlines_are_kept_as_possible(seed: int) -> None:
    rng = np.random.default_rng(seed)
    problem = Problem.of(rng.uniform(0.5, 3.0, (6, 2)), rng.choice([1, 2], size=6), np.array([2.0, 2.0]))
    required = np.where(rng.random(6) < 0.8, problem.fastest * rng.uniform(0.4, 1.1, 6), 0.0)
    found = keep_deadlines(problem, required)
    assert found.impossible.tolist() == (required > problem.fastest).tolist()
    most = 0
    for choice in product([False, True], repeat=6):
        some = np.array(choice) & (required > 0) & ~found.impossible
        if some.any() and best_level(problem, np.where(some, required, 0.0)) >= 1 - 1e-9:
            most = max(most, int(some.sum()))
    assert int(found.kept.sum()) == most
    least = np.where(found.kept, required * (1 - 1e-9), 0.0)
    kept = cost_adjusted(problem, np.ones(2), least)
    assert_valid(problem, kept.x)
    assert (problem.throughput(kept.x) >= least * (1 - 1e-7)).all()


def test_of_equally_many_deadlines_those_with_slack_are_kept() -> None:
    problem = Problem.of(np.ones((2, 1)), np.ones(2, np.int64), np.array([1.0]))
    assert keep_deadlines(problem, np.array([0.9, 0.6])).kept.tolist() == [False, True]


def test_throughputs_that_cannot_be_had_together_raise() -> None:
    problem = Problem.of(np.ones((2, 1)), np.ones(2, np.int64), np.array([1.0]))
    with pytest.raises(NotSolved, match="nfeasible"):
        best_total(problem, problem.rate, np.array([0.9, 0.6]))
