"""The highest level by prices of pools, as for many jobs, against one program over all of them, as for few."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from gavel_cases import assert_valid, random_problem

from themis.gavel.max_min import normalised_unit
from themis.optimize.shares import level as engine
from themis.optimize.shares.level import highest_level
from themis.optimize.shares.problem import Need, Problem


def shapes(problem: Problem, rng: np.random.Generator) -> dict[str, Need]:
    """Needs that rise in straight lines, ever faster, and in steps of who begins when."""
    unit = np.where(problem.active, rng.uniform(0.3, 3.0, problem.jobs) * normalised_unit(problem), 0.0)
    late, top = rng.uniform(0.0, 0.5, problem.jobs), problem.fastest
    return {
        "straight": lambda t: np.minimum(unit * t, top),
        "convex": lambda t: np.minimum(unit * t / np.maximum(1.0 - 0.05 * t, 1e-9), top),
        "in turn": lambda t: np.minimum(unit * np.maximum(t - late, 0.0), top),
    }


@pytest.mark.parametrize("seed", range(10))
def test_prices_find_the_level_that_one_program_finds(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    problem = random_problem(seed, jobs=8 + 3 * seed, alike=seed % 2 == 0, barred=0.2 * (seed % 3))
    if seed % 4 == 3:  # two virtual types of one pool, and a pool without GPUs
        pool = np.append(problem.pool, problem.pool[0])
        rate = np.hstack([problem.rate, 0.7 * problem.rate[:, :1]])
        problem = replace(problem, rate=rate, pool=pool, workers=np.append(problem.workers, 0.0))
    able, rng = problem.active, np.random.default_rng(seed)
    for name, need in shapes(problem, rng).items():
        direct = highest_level(problem, need, 15.0)
        with monkeypatch.context() as many:
            many.setattr(engine, "CELLS", 0)
            found = highest_level(problem, need, 15.0)
        assert found.level == pytest.approx(direct.level, rel=1e-8), name
        assert_valid(problem, found.x)
        assert (problem.throughput(found.x)[able] >= need(found.level)[able] * (1 - 1e-9)).all(), name
        assert found.price.min() >= 0
        if found.price.any():
            assert float(found.price @ problem.workers) == pytest.approx(1.0, abs=1e-6)
            assert np.isfinite(found.marginal()).any() or (need(found.level) >= problem.fastest * (1 - 1e-9)).all()


def test_what_is_proven_does_not_depend_on_how_many_prices_are_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    problem = random_problem(5, jobs=40)
    monkeypatch.setattr(engine, "CELLS", 0)
    need = shapes(problem, np.random.default_rng(5))["convex"]
    levels = []
    for kept, between in ((0, ()), (1, (0.5,)), (50, (0.1, 0.3, 0.6))):
        monkeypatch.setattr(engine, "_KEPT", kept)
        monkeypatch.setattr(engine, "_BETWEEN", np.array(between))
        levels.append(highest_level(problem, need, 15.0).level)
    assert levels == pytest.approx([levels[0]] * 3, rel=1e-10)
