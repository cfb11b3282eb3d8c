"""Jobs of which no two are alike: programs over the few whose way is open, against HiGHS in scipy with a row for each job."""

from __future__ import annotations

import numpy as np
import pytest
from gavel_cases import assert_valid
from scipy.optimize import linprog
from scipy.sparse import coo_array, csr_array, hstack, vstack

from themis.errors import NotSolved
from themis.model.units import Float
from themis.optimize.shares import distinct, level
from themis.optimize.shares.problem import Problem
from themis.optimize.shares.totals import most
from themis.policies.gavel import makespan_shares, total
from themis.policies.gavel.finish_time_shares import JobsProgress, finish_time_fairness, needed
from themis.policies.gavel.makespan_shares import min_makespan
from themis.policies.gavel.max_min import max_min, max_min_water_filling, normalised, normalised_unit
from themis.policies.gavel.total import best_total, precedence, relative

SEEDS = range(6)


@pytest.fixture(autouse=True)
def _only_the_fast_form(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(level, "DISTINCT", 2)
    monkeypatch.setattr(total, "MANY", 2)


def instance(seed: int) -> tuple[Problem, Float]:
    """Up to 300 jobs on one to seven types, rates over up to four orders of magnitude, weights over four, some pools plenty."""
    rng = np.random.default_rng(seed)
    jobs, types = int(rng.integers(40, 300)), 1 + seed % 7
    spread = (0.3, 1.0, 2.0)[seed % 3]
    rate = np.exp(rng.normal(0, spread, (jobs, types))) * np.exp(rng.normal(0, 2, (jobs, 1)))
    rate[rng.random((jobs, types)) < 0.3 * (seed % 2)] = 0.0
    workers = rng.integers(8, max(jobs // types, 9) + 1, types).astype(float)
    problem = Problem.of(rate, rng.choice([1, 1, 2, 4, 8], jobs), workers)
    return problem.only(np.flatnonzero(problem.active)), 10 ** rng.uniform(-2, 2, jobs)[problem.active]


def rows(problem: Problem) -> tuple[csr_array, csr_array, Float]:
    """Throughput of every job, then time of every job and GPUs of every pool with their limits, over all shares."""
    job, kind = np.divmod(np.arange(problem.rate.size), problem.types)
    cells, ones = np.arange(problem.rate.size), np.ones(problem.rate.size)
    speed = coo_array((problem.rate.ravel(), (job, cells))).tocsr()
    time = coo_array((np.where(problem.rate.ravel() > 0, ones, 1e3), (job, cells))).tocsr()
    use = coo_array((problem.gpus[job].astype(float), (problem.pool[kind], cells))).tocsr()
    return speed, vstack([time, use]).tocsr(), np.concatenate([np.ones(problem.jobs), problem.workers])


def highest(problem: Problem, slope: Float) -> float:
    """The largest t with throughput >= t slope."""
    speed, valid, limit = rows(problem)
    scale = 1.0 / problem.fastest
    reach = hstack([-speed * scale[:, None], (slope * scale)[:, None]])
    matrix = vstack([reach, hstack([valid, csr_array((valid.shape[0], 1))])])
    gain = np.zeros(matrix.shape[1])
    gain[-1] = -1.0
    found = linprog(gain, A_ub=matrix, b_ub=np.concatenate([np.zeros(problem.jobs), limit]), method="highs")
    assert found.status == 0
    return float(-found.fun)


@pytest.mark.parametrize("seed", SEEDS)
def test_the_least_throughput_and_the_makespan_are_those_of_a_program_over_all_jobs(seed: int) -> None:
    problem, weight = instance(seed)
    unit = weight * normalised_unit(problem)
    best = highest(problem, unit)
    for found in (max_min(problem, weight), max_min_water_filling(problem, weight)):
        assert_valid(problem, found.x)
        assert found.gap < 1e-8
        assert found.objective == pytest.approx(best, rel=1e-6)
    left = 10 ** np.random.default_rng(seed).uniform(0, 4, problem.jobs)
    ends = min_makespan(problem, left)
    assert_valid(problem, ends.x)
    assert ends.gap < 1e-7
    assert 1.0 / ends.objective == pytest.approx(highest(problem, left), rel=1e-6)


@pytest.mark.parametrize("seed", SEEDS)
def test_no_shares_reach_a_better_rho(seed: int) -> None:
    problem, weight = instance(seed)
    rng = np.random.default_rng(seed)
    left, elapsed = 10 ** rng.uniform(2, 5, problem.jobs), 10 ** rng.uniform(2, 5, problem.jobs) * (seed % 2)
    progress = JobsProgress(left=left, elapsed=elapsed, isolated_elapsed=elapsed, isolated_rate=problem.isolated_rate())
    found = finish_time_fairness(problem, progress, weight)
    assert_valid(problem, found.x)
    assert found.gap < 1e-8
    # The rates of that rho, all times one factor: the largest is 1.
    rate = needed(progress, weight, np.ones(problem.jobs))(1.0 / found.objective)
    assert highest(problem, rate) == pytest.approx(1.0, rel=1e-6) or (rate > problem.fastest * (1 - 1e-9)).any()


@pytest.mark.parametrize("seed", SEEDS)
def test_fillings_give_every_job_what_the_general_form_gives_it(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    problem, weight = instance(seed)
    fast = [solve(problem, weight).x for solve in (max_min, max_min_water_filling)]
    monkeypatch.setattr(level, "DISTINCT", np.inf)
    for x, solve in zip(fast, (max_min, max_min_water_filling)):
        general = solve(problem, weight).x
        assert np.allclose(normalised(problem, x), normalised(problem, general), rtol=1e-6)


@pytest.mark.parametrize("seed", SEEDS)
def test_totals_are_those_of_a_program_over_all_jobs(seed: int) -> None:
    problem, weight = instance(seed)
    least = 0.3 * max_min(problem, weight).objective * weight * normalised_unit(problem) * (seed % 2)
    speed, valid, limit = rows(problem)
    for gain in (relative(problem), precedence(np.arange(problem.jobs))[:, None] * relative(problem)):
        found = best_total(problem, gain, least)
        assert_valid(problem, found.x)
        assert (problem.throughput(found.x) >= least * (1 - 1e-9)).all()
        matrix = vstack([valid, -speed * (1.0 / problem.fastest)[:, None]])
        sides = np.concatenate([limit, -least / problem.fastest])
        best = -linprog(-gain.ravel(), A_ub=matrix, b_ub=sides, method="highs").fun
        assert found.objective == pytest.approx(best, rel=1e-7)
        assert found.bound == pytest.approx(best, rel=1e-7)


def test_what_cannot_be_had_is_not_solved() -> None:
    problem, weight = instance(2)
    with pytest.raises(NotSolved):
        most(problem, problem.rate, problem.fastest)
    with pytest.raises(NotSolved, match="least level"):
        distinct.highest(problem, lambda t: problem.fastest, 1.0, 1.0)
    assert makespan_shares.min_makespan(problem, 1.0 / weight).gap < 1e-7
