"""The highest level by prices of pools, against the textbook program with a row for each job."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from gavel_cases import assert_valid, random_problem
from scipy.optimize import linprog

from themis.model.units import Float
from themis.optimize.shares import level as engine
from themis.optimize.shares.level import highest_level
from themis.optimize.shares.problem import Need, Problem
from themis.policies.gavel.max_min import normalised_unit


def shapes(problem: Problem, rng: np.random.Generator) -> dict[str, Need]:
    """Needs that rise in straight lines, ever faster, and in steps of who begins when."""
    unit = np.where(problem.active, rng.uniform(0.3, 3.0, problem.jobs) * normalised_unit(problem), 0.0)
    late, top = rng.uniform(0.0, 0.5, problem.jobs), problem.fastest
    return {
        "straight": lambda t: np.minimum(unit * t, top),
        "convex": lambda t: np.minimum(unit * t / np.maximum(1.0 - 0.05 * t, 1e-9), top),
        "in turn": lambda t: np.minimum(unit * np.maximum(t - late, 0.0), top),
    }


def least_use(problem: Problem, rate: Float) -> float:
    """Utilisation of the fullest pool, the least at which every job gets this rate: a linear program over all jobs."""
    job, kind = np.nonzero(problem.rate > 0)
    pools, cells, columns = len(problem.workers), len(job), np.arange(len(job))
    reach, time, use = (np.zeros((rows, cells + 1)) for rows in (problem.jobs, problem.jobs, pools))
    reach[job, columns] = -problem.rate[job, kind] / problem.fastest[job]
    time[job, columns] = 1.0
    use[problem.pool[kind], columns] = problem.gpus[job]
    use[:, -1] = -problem.workers
    relative = np.divide(rate, problem.fastest, out=np.zeros(problem.jobs), where=problem.active)
    found = linprog(
        np.append(np.zeros(cells), 1.0),
        A_ub=np.vstack([reach, time, use]),
        b_ub=np.concatenate([-relative, np.ones(problem.jobs), np.zeros(pools)]),
    )
    return float(found.fun)


@pytest.mark.parametrize("seed", range(10))
def test_prices_find_the_level_at_which_the_textbook_program_is_full(seed: int) -> None:
    problem = random_problem(seed, jobs=8 + 3 * seed, alike=seed % 2 == 0, barred=0.2 * (seed % 3))
    if seed % 4 == 3:  # two virtual types of one pool, and a pool without GPUs
        pool = np.append(problem.pool, problem.pool[0])
        rate = np.hstack([problem.rate, 0.7 * problem.rate[:, :1]])
        problem = replace(problem, rate=rate, pool=pool, workers=np.append(problem.workers, 0.0))
    able, rng = problem.active, np.random.default_rng(seed)
    for name, need in shapes(problem, rng).items():
        found = highest_level(problem, need, 15.0)
        used = least_use(problem, need(found.level))
        assert used <= 1.0 + 1e-6, name
        if found.price.any():
            assert used == pytest.approx(1.0, abs=1e-6), f"{name}: no higher level fits"
        else:
            assert found.level == 15.0
        assert_valid(problem, found.x)
        assert (problem.throughput(found.x)[able] >= need(found.level)[able] * (1 - 1e-9)).all(), name
        assert found.price.min() >= 0
        if found.price.any():
            assert float(found.price @ problem.workers) == pytest.approx(1.0, abs=1e-6)
            assert np.isfinite(found.marginal()).any() or (need(found.level) >= problem.fastest * (1 - 1e-9)).all()


def test_what_is_proven_does_not_depend_on_how_many_prices_are_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    problem = random_problem(5, jobs=40)
    need = shapes(problem, np.random.default_rng(5))["convex"]
    levels = []
    for kept, between in ((0, ()), (1, (0.5,)), (50, (0.1, 0.3, 0.6))):
        monkeypatch.setattr(engine, "_KEPT", kept)
        monkeypatch.setattr(engine, "_BETWEEN", np.array(between))
        levels.append(highest_level(problem, need, 15.0).level)
    assert levels == pytest.approx([levels[0]] * 3, rel=1e-10)
