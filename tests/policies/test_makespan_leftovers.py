"""What the makespan's optimum leaves over goes to the shortest jobs; the makespan stays optimal (Gavel §4.2)."""

from __future__ import annotations

import numpy as np
import pytest
from gavel_cases import assert_valid
from hypothesis import example, given, settings
from hypothesis import strategies as st
from scipy.optimize import linprog

from themis.model.events import AppFinished
from themis.model.settings import Settings
from themis.model.workload import Workload
from themis.optimize.shares.boxes import Box
from themis.optimize.shares.level import highest_level
from themis.optimize.shares.problem import Problem
from themis.optimize.shares.totals import Worths
from themis.policies.api import make_policy
from themis.policies.gavel.makespan_shares import min_makespan
from themis.policies.gavel.total import best_total
from themis.sim.runner import Simulation
from themis.testing.builders import BOOK, app, job, machines


def test_the_shortest_job_has_what_the_longest_leaves_over() -> None:
    """The longest job needs one of two GPUs all of the time, the others half of the other; in proportion they had .2 and .8."""
    problem = Problem.of(np.ones((3, 1)), np.ones(3, dtype=np.int64), np.array([2.0]))
    found = min_makespan(problem, np.array([100.0, 10.0, 40.0]))
    assert found.x[:, 0] == pytest.approx([1.0, 0.6, 0.4])
    assert found.objective == pytest.approx(100.0)
    assert found.due == pytest.approx([1.0, 1.0 / 6.0, 1.0])


@settings(max_examples=40)
@given(seed=st.integers(0, 2**32))
@example(seed=1280)
@example(seed=1632)
def test_leftovers_cost_the_makespan_nothing_whatever_the_range_of_work(seed: int) -> None:
    rng = np.random.default_rng(seed)
    jobs, types = int(rng.integers(2, 40)), int(rng.integers(1, 8))
    rate = np.exp(rng.normal(0.0, 1.5, (jobs, types))) * (rng.random((jobs, types)) < 0.8)
    problem = Problem.of(rate, rng.choice((1, 1, 2, 4, 8), jobs), rng.integers(1, 40, types).astype(float))
    left = 10.0 ** rng.uniform(0.0, rng.uniform(1.0, 9.0), jobs)
    found, alone = min_makespan(problem, left), min_makespan(problem, left, fill=False)
    assert_valid(problem, found.x)
    assert found.objective <= alone.bound * (1 + 1e-7)
    if problem.active.any():
        able = problem.active
        part = problem.throughput(found.x)[able] / left[able]
        assert part.sum() >= (problem.throughput(alone.x)[able] / left[able]).sum() * (1 - 1e-6)


def test_short_jobs_of_a_batch_end_early_and_the_last_one_as_soon_as_before() -> None:
    """One long job and 23 of a hundredth to a ninth of its work on 4 GPUs; half of the GPUs is left over."""
    work = [40_000.0, *np.linspace(500.0, 4_500.0, 23)]
    simulation = Simulation(
        workload=Workload(name="batch", apps=tuple(app(f"a{i}", [job(w)]) for i, w in enumerate(work))),
        cluster=machines(4),
        book=BOOK,
        policy_name="makespan",
        policy=make_policy("makespan"),
        settings=Settings(container_s=0.0),
    )
    ends: list[float] = []
    simulation.run(lambda now, record: ends.append(now) if isinstance(record, AppFinished) else None)
    assert max(ends) <= max(max(work), sum(work) / 4) * 1.03
    assert float(np.mean(ends)) <= 0.35 * max(ends)


@pytest.mark.parametrize("seed", range(6))
def test_leftovers_of_distinct_jobs_and_scarce_pools_are_worth_what_one_program_finds(seed: int) -> None:
    rng = np.random.default_rng(seed)
    jobs, types = 220, 4
    rate = rng.uniform(1, 50, (jobs, types)) * (rng.random((jobs, types)) > 0.1)
    gpus = rng.choice([1, 1, 2, 3, 5, 7, 8, 16], jobs)
    problem = Problem.of(rate, gpus, np.floor(gpus.sum() * rng.uniform(0.06, 0.57, types) / types) + 16)
    left = rate.max(1) * 10.0 ** rng.uniform(1.5, 4, jobs)
    least = left * highest_level(problem, lambda t: left * t, float((problem.fastest / left).min())).level * (1 - 1e-9)
    gain = rate / left[:, None]
    found = best_total(problem, gain, least)
    time = np.kron(np.eye(jobs), np.ones(types))
    use = np.zeros((types, jobs * types))
    for k in range(types):
        use[k, k::types] = gpus
    rates = np.zeros((jobs, jobs * types))
    for j in range(jobs):
        rates[j, j * types : (j + 1) * types] = rate[j]
    bound = np.concatenate([np.ones(jobs), problem.workers, -least])
    bare = linprog(-gain.ravel(), np.vstack([time, use, -rates]), bound, bounds=(0, 1), method="highs")
    assert found.objective == pytest.approx(-bare.fun, rel=1e-8)
    assert found.gap < 1e-9


def test_prices_above_any_that_are_meant_leave_a_box_with_an_optimum() -> None:
    problem = Problem.of(np.array([[3.0, 1.0], [2.0, 4.0]]), np.ones(2, dtype=np.int64), np.array([1.0, 1.0]))
    worths = Worths.of(problem, np.ones((2, 2)), np.zeros(2))
    box = Box.around(worths, np.array([2e10, 3e10]), 0.01, problem.workers, level=False)
    box.add(worths.chosen(worths.costs(np.array([2e10, 3e10])).argmin(axis=0)))
    price, _ = box.solve()
    assert np.isfinite(price).all()
