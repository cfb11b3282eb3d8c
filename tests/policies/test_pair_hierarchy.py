"""Hierarchies with pairs on one GPU: the filling over all pairs by the book, and what it says of entities."""

from __future__ import annotations

import numpy as np
import pytest
from gavel_cases import total_of_pairs
from test_hierarchy import NOBODY, entity, over
from test_pairs import over_all_pairs, shared

from themis.model.units import Float
from themis.optimize.shares.pair_filling import water_fill_paired
from themis.optimize.shares.pairs import PairRates
from themis.optimize.shares.problem import Problem
from themis.policies.gavel.finish_time_shares import JobsProgress
from themis.policies.gavel.hierarchy import Entity, SharingRule, growth, hierarchical
from themis.policies.gavel.max_min import normalised, normalised_unit
from themis.policies.gavel.pair_hierarchy import hierarchical_paired


def started(problem: Problem, seed: int) -> JobsProgress:
    rng = np.random.default_rng(seed)
    left, elapsed = rng.uniform(10.0, 500.0, problem.jobs), rng.uniform(0.0, 60.0, problem.jobs)
    return JobsProgress(left=left, elapsed=elapsed, isolated_elapsed=elapsed, isolated_rate=problem.isolated_rate())


def by_the_book(problem: Problem, pairs: PairRates, root: Entity, weight: Float, progress: JobsProgress) -> Float:
    """Amounts of the filling: the level by halving, then for every job a program over all pairs whether it could rise."""
    unit = normalised_unit(problem)
    grow = growth(root, weight, unit, progress)
    amount, top = np.zeros(problem.jobs), pairs.fastest(problem) / unit
    stuck = np.zeros(problem.jobs, dtype=bool)
    while not stuck.all():
        fill, high = grow(amount, np.where(stuck, 0.0, np.maximum(top - amount, 0.0)))
        low, base = 0.0, amount * (1 - 1e-9)
        if over_all_pairs(problem, pairs, (base + fill(high)) * unit) >= 1.0:
            low = high
        while high - low > 1e-10 * max(high, 1e-3):
            middle = (low + high) / 2
            fits = over_all_pairs(problem, pairs, (base + fill(middle)) * unit) >= 1.0
            low, high = (middle, high) if fits else (low, middle)
        amount = amount + fill(low)
        before = stuck.copy()
        for j in np.flatnonzero(~stuck):
            more = amount * (1 - 1e-9)
            more[j] += 1e-3 * top[j]
            stuck[j] = over_all_pairs(problem, pairs, more * unit) < 1.0
        assert (stuck != before).any()
    return amount


def tree(jobs: int, rules: list[SharingRule]) -> Entity:
    cut = np.array_split(np.arange(jobs), 3)
    inner = over(entity("b", cut[1].tolist(), rules[1]), entity("c", cut[2].tolist(), rules[2], 3.0), name="inner")
    return over(entity("a", cut[0].tolist(), rules[0], 2.0), inner)


ALL = [SharingRule.FAIRNESS, SharingRule.FIFO, SharingRule.FINISH_TIME_FAIRNESS]


@pytest.mark.parametrize("seed", range(9))
def test_filling_reaches_what_it_does_by_the_book_over_all_pairs(seed: int) -> None:
    """Three entities of two depths, each with a rule; pairs of jobs of different entities among them."""
    problem, pairs = shared(seed, jobs=6 + seed % 3, models=2 + seed % 3)
    weight = np.random.default_rng(seed).choice([1.0, 2.0], problem.jobs)
    root, progress = tree(problem.jobs, ALL[seed % 3 :] + ALL[: seed % 3]), started(problem, seed)
    found, objective = hierarchical_paired(problem, pairs, root, weight, progress)
    amount = found.throughput / normalised_unit(problem)
    assert amount == pytest.approx(by_the_book(problem, pairs, root, weight, progress), rel=1e-5, abs=1e-5)
    assert objective == pytest.approx(found.bound, rel=1e-7)
    time, use = total_of_pairs(problem, found.combos, found.x)
    assert time.max() <= 1 + 1e-8
    assert (use <= problem.workers * (1 + 1e-9)).all()
    assert found.x.min() >= 0.0


@pytest.mark.parametrize("seed", range(4))
def test_without_pairs_it_is_the_hierarchy_over_jobs(seed: int) -> None:
    problem, pairs = shared(seed, jobs=12)
    nobody = PairRates(model=np.full(12, -1), rate=pairs.rate)
    weight, root, progress = np.random.default_rng(seed).choice([1.0, 3.0], 12), tree(12, ALL), started(problem, seed)
    found, _ = hierarchical_paired(problem, nobody, root, weight, progress)
    alone = hierarchical(problem, root, weight, progress)
    assert found.throughput / normalised_unit(problem) == pytest.approx(
        normalised(problem, alone.x), rel=1e-6, abs=1e-7
    )
    assert found.bound == pytest.approx(alone.bound, rel=1e-7)


@pytest.mark.parametrize("seed", range(4))
def test_one_entity_is_water_filling_over_pairs(seed: int) -> None:
    problem, pairs = shared(20 + seed, jobs=15)
    weight = np.random.default_rng(seed).choice([1.0, 2.0], 15)
    found, _ = hierarchical_paired(problem, pairs, entity("all", list(range(15))), weight)
    flat = water_fill_paired(problem, pairs, weight * normalised_unit(problem))
    assert found.throughput == pytest.approx(flat.throughput, rel=1e-6)


@pytest.mark.parametrize("seed", range(6))
def test_colocation_is_never_worse(seed: int) -> None:
    problem, pairs = shared(60 + seed, jobs=24)
    root, progress = tree(24, ALL), started(problem, seed)
    found, objective = hierarchical_paired(problem, pairs, root, np.ones(24), progress)
    assert found.bound >= hierarchical(problem, root, np.ones(24), progress).bound * (1 - 1e-9)
    assert objective >= found.bound * (1 - 1e-7)


def test_a_pair_of_two_entities_counts_in_each_with_its_own_rate() -> None:
    """One GPU, a job each, beside each other at 0.75 and 0.6: both are slowed down by the other, neither pays for it."""
    problem = Problem.of(np.ones((2, 1)), np.ones(2, np.int64), np.ones(1))
    pairs = PairRates(model=np.array([0, 1]), rate=np.array([[[0.0], [0.75]], [[0.6], [0.0]]]))
    found, objective = hierarchical_paired(problem, pairs, over(entity("a", [0]), entity("b", [1])), np.ones(2))
    # b alone for s and beside a for 1 - s: s + 0.6 (1 - s) = 0.75 (1 - s)
    assert found.throughput == pytest.approx(np.full(2, 0.75 / 1.15), rel=1e-7)
    assert objective == pytest.approx(2 * 0.75 / 1.15, rel=1e-7)


def test_the_first_in_line_runs_alone_and_the_last_beside_whom_it_does_not_slow_down() -> None:
    """Two GPUs, fifo: who comes first runs alone where others would slow it down, and beside them where not."""
    problem = Problem.of(np.ones((3, 1)), np.ones(3, np.int64), np.full(1, 2.0))
    pairs = PairRates(model=np.zeros(3, np.int64), rate=np.full((1, 1, 1), 0.8))
    found, _ = hierarchical_paired(problem, pairs, entity("a", [0, 1, 2], SharingRule.FIFO), np.ones(3))
    assert found.throughput == pytest.approx([1.0, 1.0, 0.0], abs=1e-7)
    free = PairRates(model=np.array([-1, 0, 0]), rate=np.ones((1, 1, 1)))
    found, _ = hierarchical_paired(problem, free, entity("a", [0, 1, 2], SharingRule.FIFO), np.ones(3))
    assert found.throughput == pytest.approx(np.ones(3), abs=1e-7)


def test_many_entities_of_many_jobs_make_small_programs() -> None:
    problem, pairs = shared(5, jobs=160, models=6, types=3)
    members = tuple(
        Entity(name=str(e), rule=ALL[e % 3], weight=1.0 + e % 2, jobs=np.arange(e, 160, 16)) for e in range(16)
    )
    root = Entity(name="root", members=members, jobs=NOBODY)
    found, objective = hierarchical_paired(problem, pairs, root, np.ones(160), started(problem, 5))
    assert objective == pytest.approx(found.bound, rel=1e-7)
    assert found.columns < 1000


def test_nobody_can_run() -> None:
    problem = Problem.of(np.zeros((2, 1)), np.ones(2, dtype=np.int64), np.ones(1))
    pairs = PairRates(model=np.zeros(2, dtype=np.int64), rate=np.ones((1, 1, 1)))
    found, objective = hierarchical_paired(problem, pairs, entity("a", [0, 1]), np.ones(2))
    assert (len(found.combos), objective) == (0, 0.0)
