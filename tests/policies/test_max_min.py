"""Max-min fairness and water filling: golden examples, textbook programs, Gavel §4.4's properties."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from gavel_cases import PAPER, assert_valid, best_level, leximin, random_problem

from themis.errors import InputError
from themis.optimize.shares import problem as problem_module
from themis.optimize.shares.problem import Alike, Problem
from themis.policies.gavel.agnostic import flattened, spread
from themis.policies.gavel.max_min import least, max_min, max_min_water_filling, normalised, normalised_unit

ONE_TYPE = Problem.of(np.ones((4, 1)), np.ones(4, np.int64), np.array([4.0]))


def test_section_4_1_example_has_its_printed_allocation() -> None:
    found = max_min(PAPER, np.ones(3))
    assert found.objective == pytest.approx(8 / 11)
    assert found.x == pytest.approx(np.array([[5 / 11, 0], [5 / 11, 1 / 11], [1 / 11, 10 / 11]]), abs=1e-8)
    isolated = np.full((3, 2), 1 / 3)
    assert least(PAPER, np.ones(3), isolated) == pytest.approx(2 / 3)


def test_section_4_3_example_ends_with_a_gpu_for_each_job() -> None:
    weight = np.array([3.0, 1.0, 1.0, 1.0])
    assert max_min(ONE_TYPE, weight, fill=False).objective == pytest.approx(1 / 3)
    assert max_min_water_filling(ONE_TYPE, weight).x == pytest.approx(np.ones((4, 1)))


@pytest.mark.parametrize("seed", range(12))
def test_max_min_is_the_optimum_of_the_textbook_program(seed: int) -> None:
    problem = random_problem(seed, jobs=4 + 2 * seed, alike=seed % 3 == 0)
    weight = np.random.default_rng(seed).uniform(0.3, 3.0, problem.jobs)
    able = problem.active
    some = Problem(rate=problem.rate[able], gpus=problem.gpus[able], workers=problem.workers, pool=problem.pool)
    found = max_min(problem, weight)
    assert_valid(problem, found.x)
    assert found.objective == pytest.approx(best_level(some, (weight * normalised_unit(problem))[able]), rel=1e-7)
    assert found.gap < 1e-8


@pytest.mark.parametrize("seed", range(10))
def test_water_filling_is_the_lexicographic_optimum(seed: int) -> None:
    problem = random_problem(seed, jobs=7, types=2 + seed % 3, barred=0.35, alike=seed % 2 == 0)
    able = problem.active
    some = Problem(rate=problem.rate[able], gpus=problem.gpus[able], workers=problem.workers, pool=problem.pool)
    weight = np.random.default_rng(seed).choice([1.0, 1.0, 2.0, 5.0], some.jobs)
    found = max_min_water_filling(some, weight)
    assert_valid(some, found.x)
    expected = leximin(some, normalised_unit(some), weight)
    assert np.sort(normalised(some, found.x) / weight) == pytest.approx(expected, rel=1e-5)


@pytest.mark.parametrize("seed", range(6))
def test_water_filling_is_pareto_efficient(seed: int) -> None:
    """No job can have more while the others keep what they have."""
    problem = random_problem(100 + seed, jobs=6, barred=0.3)
    for found in (max_min_water_filling(problem, np.ones(6)), max_min(problem, np.ones(6))):
        rate = problem.throughput(found.x)
        for j in np.flatnonzero(problem.active):
            alone = np.zeros(6)
            alone[j] = rate[j]
            assert best_level(problem, alone, rate * (1 - 1e-9)) <= 1e-6


@pytest.mark.parametrize("seed", range(10))
def test_nobody_lowest_does_better_with_an_equal_split(seed: int) -> None:
    """Sharing incentive of the objective: 1/n of every type for everybody is one of the choices."""
    problem = random_problem(200 + seed, jobs=9, barred=0.0)
    x = problem.workers[None, :] / (problem.jobs * problem.gpus)[:, None]
    x = x / np.maximum(x.sum(axis=1, keepdims=True), 1.0) * (problem.rate > 0)
    assert max_min(problem, np.ones(9)).objective >= least(problem, np.ones(9), x) - 1e-9


@pytest.mark.parametrize("seed", range(4))
def test_with_one_type_awareness_changes_nothing(seed: int) -> None:
    problem = random_problem(seed, types=1, barred=0.0)
    weight = np.random.default_rng(seed).uniform(0.5, 2.0, problem.jobs)
    aware, blind = max_min(problem, weight), max_min(flattened(problem), weight)
    assert aware.objective == pytest.approx(blind.objective, rel=1e-9)
    assert spread(problem, blind.x) == pytest.approx(aware.x, abs=1e-8)


def test_without_awareness_every_job_gets_its_time_on_all_types_alike() -> None:
    blind = max_min(flattened(PAPER), np.ones(3))
    x = spread(PAPER, blind.x)
    assert x == pytest.approx(np.full((3, 2), 1 / 3), abs=1e-8)


def test_jobs_restricted_to_different_types_are_spread_within_what_they_may_use() -> None:
    problem = Problem.of(np.array([[2.0, 1.0], [2.0, 0.0], [3.0, 1.0]]), np.ones(3, np.int64), np.ones(2))
    x = spread(problem, max_min(flattened(problem), np.ones(3)).x)
    assert_valid(problem, x)
    assert x[0] == pytest.approx(x[2], abs=1e-8)


def test_jobs_that_can_run_nowhere_are_left_out() -> None:
    problem = Problem.of(np.array([[1.0], [0.0], [1.0]]), np.array([1, 1, 9]), np.array([2.0]))
    found = max_min(problem, np.ones(3))
    assert problem.active.tolist() == [True, False, False]
    assert found.x.ravel() == pytest.approx([1.0, 0.0, 0.0])
    nobody = Problem.of(np.zeros((2, 1)), np.ones(2, np.int64), np.array([2.0]))
    assert not max_min(nobody, np.ones(2)).x.any()
    assert not max_min_water_filling(nobody, np.ones(2)).x.any()


def test_consolidated_and_unconsolidated_types_share_their_gpus() -> None:
    """Placement sensitivity (§3.1): two virtual types of one pool, each with its rates."""
    virtual = Problem.of(
        np.array([[8.0, 4.0, 1.0], [3.0, 3.0, 2.0]]), np.array([2, 1]), np.array([2.0, 1.0]), np.array([0, 0, 1])
    )
    found = max_min_water_filling(virtual, np.ones(2))
    assert (virtual.usage(found.x) <= virtual.workers * (1 + 1e-9)).all()
    assert not found.x[0, 1], "the slower placement of the same GPUs is never better"
    merged = max_min_water_filling(replace(virtual, rate=virtual.rate[:, [0, 2]], pool=np.arange(2)), np.ones(2))
    assert normalised(virtual, found.x).min() == pytest.approx(
        least(replace(virtual, rate=virtual.rate[:, [0, 2]], pool=np.arange(2)), np.ones(2), merged.x), rel=1e-8
    )


def test_bad_problems_are_refused_in_one_sentence() -> None:
    with pytest.raises(InputError, match="rate of job 1 on type 0 is -2"):
        Problem.of(np.array([[1.0], [-2.0]]), np.ones(2, np.int64), np.ones(1))
    with pytest.raises(InputError, match="job 0 wants 0 GPUs"):
        Problem.of(np.ones((1, 1)), np.zeros(1, np.int64), np.ones(1))


def test_jobs_that_nothing_tells_apart_get_the_same() -> None:
    some = random_problem(3, jobs=5)
    rows = np.array([0, 1, 0, 2, 3, 1, 0, 4])
    problem = Problem(rate=some.rate[rows], gpus=some.gpus[rows], workers=some.workers, pool=some.pool)
    groups = Alike.by(problem.rate, problem.gpus)
    assert groups.of.tolist() == [0, 1, 0, 2, 3, 1, 0, 4]
    assert groups.first.tolist() == [0, 1, 3, 4, 7]
    assert groups.merged(problem).gpus.tolist() == (some.gpus * np.array([3, 2, 1, 1, 1])).tolist()
    x = max_min_water_filling(problem, np.ones(8)).x
    assert (x == x[[0, 1, 0, 3, 4, 1, 0, 7]]).all()
    scarce = replace(problem, workers=problem.workers / 4)
    weighted = max_min_water_filling(scarce, np.array([0.1, 1, 1, 1, 1, 1, 1, 1])).x
    assert (weighted[0] != weighted[2]).any(), "its weight tells it apart"


@pytest.mark.parametrize("factor", [None, 0])
def test_alike_jobs_are_grouped_in_order_of_first_appearance(
    factor: int | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also where different jobs get the same number: with a factor of 0 all do."""
    if factor is not None:
        monkeypatch.setattr(problem_module, "_MIX", np.uint64(factor))
    rows = np.array([[2.0, 1.0], [1.0, 2.0], [2.0, 1.0], [0.5, 0.5], [1.0, 2.0]])
    groups = Alike.by(rows, np.array([1, 1, 1, 1, 2]))
    assert groups.first.tolist() == [0, 1, 3, 4]
    assert groups.of.tolist() == [0, 1, 0, 2, 3]
