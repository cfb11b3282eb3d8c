"""Hierarchies of entities: Gavel §4.3 and Figure 6, against a slow filling in small steps."""

from __future__ import annotations

import numpy as np
import pytest
from gavel_cases import assert_valid, best_level, random_problem

from themis.errors import InputError
from themis.model.units import Float
from themis.optimize.shares.problem import Problem
from themis.policies.gavel.finish_time_shares import JobsProgress
from themis.policies.gavel.hierarchy import Entity, SharingRule, _OneRho, growth, hierarchical
from themis.policies.gavel.max_min import max_min_water_filling, normalised

NOBODY = np.zeros(0, dtype=np.int64)


def entity(name: str, jobs: list[int], rule: SharingRule = SharingRule.FAIRNESS, weight: float = 1.0) -> Entity:
    return Entity(name=name, jobs=np.array(jobs, dtype=np.int64), rule=rule, weight=weight)


def over(*members: Entity, rule: SharingRule = SharingRule.FAIRNESS, weight: float = 1.0, name: str = "root") -> Entity:
    return Entity(name=name, members=members, rule=rule, jobs=NOBODY, weight=weight)


def alike(jobs: int, workers: float) -> Problem:
    return Problem.of(np.ones((jobs, 1)), np.ones(jobs, np.int64), np.array([workers]))


FIGURE_6 = over(entity("product", [0, 1, 2]), entity("research", [3, 4, 5], SharingRule.FIFO))


def test_figure_6_shares_between_teams_then_within_them() -> None:
    """Fairness between the teams and in the product team, FIFO in research: two GPUs, six jobs."""
    found = hierarchical(alike(6, 2.0), FIGURE_6, np.ones(6))
    assert found.x.ravel() == pytest.approx([1 / 3, 1 / 3, 1 / 3, 1.0, 0.0, 0.0], abs=1e-8)


def test_a_stuck_first_job_passes_its_weight_on_in_order() -> None:
    """Four GPUs: research's first job is full at 1, the rest of its team's half goes to the second."""
    found = hierarchical(alike(6, 4.0), FIGURE_6, np.ones(6))
    assert found.x.ravel() == pytest.approx([2 / 3, 2 / 3, 2 / 3, 1.0, 1.0, 0.0], abs=1e-8)


def test_what_a_full_entity_cannot_use_goes_to_its_siblings() -> None:
    root = over(entity("small", [0], weight=5.0), entity("large", [1, 2, 3]))
    found = hierarchical(alike(4, 3.0), root, np.ones(4))
    assert found.x.ravel() == pytest.approx([1.0, 2 / 3, 2 / 3, 2 / 3], abs=1e-8)


def test_weights_multiply_down_the_tree() -> None:
    inner = over(entity("a", [0], weight=3.0), entity("b", [1]), name="inner", weight=2.0)
    found = hierarchical(alike(3, 1.2), over(inner, entity("c", [2])), np.ones(3))
    assert found.x.ravel() == pytest.approx([0.6, 0.2, 0.4], abs=1e-8)


def test_weights_of_jobs_count_within_their_entity() -> None:
    found = hierarchical(alike(4, 1.0), over(entity("a", [0, 1]), entity("b", [2, 3])), np.array([3.0, 1.0, 9.0, 9.0]))
    assert found.x.ravel() == pytest.approx([3 / 8, 1 / 8, 1 / 4, 1 / 4], abs=1e-8)


@pytest.mark.parametrize("seed", range(5))
def test_one_entity_is_water_filling(seed: int) -> None:
    problem = random_problem(seed, jobs=9)
    weight = np.random.default_rng(seed).uniform(0.3, 3.0, 9)
    nested = over(entity("all", list(range(9))))
    for root in (nested.members[0], nested):
        found = hierarchical(problem, root, weight)
        flat = max_min_water_filling(problem, weight)
        assert normalised(problem, found.x)[problem.active] == pytest.approx(
            normalised(problem, flat.x)[problem.active], rel=1e-7
        )


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(4))
def test_filling_agrees_with_filling_in_small_steps(seed: int) -> None:
    """The paper's process, in steps of the level, with a linear program for everybody's feasibility."""
    problem = random_problem(300 + seed, jobs=8, barred=0.25)
    rng = np.random.default_rng(seed)
    rules = rng.permutation([SharingRule.FAIRNESS, SharingRule.FIFO, SharingRule.FAIRNESS])
    root = over(
        entity("a", [0, 1, 2], rules[0], 2.0),
        over(entity("b", [3, 4], rules[1]), entity("c", [5, 6, 7], rules[2], 3.0), name="inner"),
    )
    found = hierarchical(problem, root, np.ones(8))
    assert_valid(problem, found.x)
    amount = normalised(problem, found.x)
    slow = _in_small_steps(problem, root, 0.04)
    able = problem.active
    assert amount[able] == pytest.approx(slow[able], abs=0.05)


def _in_small_steps(problem: Problem, root: Entity, step: float) -> Float:
    unit = np.where(problem.active, problem.equal_rate() / problem.gpus, 1.0)
    amount, stuck = np.zeros(problem.jobs), ~problem.active
    fill_of = growth(root, np.ones(problem.jobs), unit)
    for _ in range(2000):
        if stuck.all():
            return amount
        room = np.where(stuck, 0.0, np.maximum(problem.fastest / unit - amount, 0.0))
        stuck = stuck | (room <= 1e-9)
        fill, ceiling = fill_of(amount, room)
        slope = fill(min(step, ceiling)) * unit
        part = min(best_level(problem, slope, amount * unit * (1 - 1e-8)), 1.0) if slope.any() else 0.0
        amount = amount + slope / unit * max(part, 0.0)
        if part < 1.0 - 1e-6:
            for j in np.flatnonzero(~stuck):
                alone = np.zeros(problem.jobs)
                alone[j] = unit[j]
                stuck[j] = best_level(problem, alone, amount * unit * (1 - 1e-8)) <= 1e-3
    raise AssertionError("filling in small steps does not end")


def test_finish_time_fairness_inside_an_entity_gives_its_jobs_one_rho() -> None:
    problem = alike(4, 2.0)
    progress = JobsProgress(
        left=np.array([10.0, 10.0, 30.0, 5.0]),
        elapsed=np.array([0.0, 50.0, 20.0, 0.0]),
        isolated_elapsed=np.array([0.0, 10.0, 5.0, 0.0]),
        isolated_rate=problem.isolated_rate(),
    )
    root = over(entity("a", [0, 1, 2], SharingRule.FINISH_TIME_FAIRNESS), entity("b", [3]))
    found = hierarchical(problem, root, np.ones(4), progress)
    rho = progress.rho(problem.throughput(found.x))
    assert found.x[3] == pytest.approx(1.0)
    assert found.x[:3].sum() == pytest.approx(1.0)
    late = found.x[:3, 0] > 1e-9
    assert np.ptp(rho[:3][late]) <= 1e-6 * rho[:3].max()


def test_a_job_of_weight_three_has_three_shares_inside_an_entity() -> None:
    """As in the policy of that name: two fresh jobs on one GPU, weights 3 and 1, have 3/4 and 1/4 of it."""
    problem, nothing = alike(2, 1.0), np.zeros(2)
    progress = JobsProgress(
        left=np.full(2, 50.0), elapsed=nothing, isolated_elapsed=nothing, isolated_rate=problem.isolated_rate()
    )
    found = hierarchical(problem, entity("a", [0, 1], SharingRule.FINISH_TIME_FAIRNESS), np.array([3.0, 1.0]), progress)
    assert found.x[:, 0] == pytest.approx([0.75, 0.25])


@pytest.mark.parametrize("seed", range(25, 45))  # 29, 34 and 35: all at their best add up to a bit less than asked for
def test_one_rho_gives_out_a_volume_to_the_last_bit_below_what_there_is_room_for(seed: int) -> None:
    rng = np.random.default_rng(seed)
    left, elapsed, rate, unit = rng.uniform(1e3, 1e5), rng.uniform(0, 1e4), rng.uniform(0.1, 1), rng.uniform(0.1, 2)
    each = np.ones(7)
    progress = JobsProgress(
        left=left * each, elapsed=elapsed * each, isolated_elapsed=0 * each, isolated_rate=rate * each
    )
    divider = _OneRho(progress, each, unit * each, 0 * each, 4 * each)
    for volume in (np.nextafter(28.0, 0.0), 28.0 * (1 - 1e-15), 9.0):
        parts = divider.split(float(volume))
        assert parts.sum() == pytest.approx(volume, rel=1e-9)
        assert (parts >= 0).all()
        assert (parts <= 4).all()


def test_entities_that_make_no_sense_are_refused() -> None:
    with pytest.raises(InputError, match="has weight 0"):
        entity("a", [0], weight=0.0)
    with pytest.raises(InputError, match="for jobs only"):
        over(entity("a", [0]), rule=SharingRule.FINISH_TIME_FAIRNESS)
    with pytest.raises(InputError, match="both entities and jobs"):
        Entity(name="a", members=(entity("b", [0]),), jobs=np.array([1]))
    with pytest.raises(InputError, match="needs the jobs' progress"):
        hierarchical(alike(1, 1.0), entity("a", [0], SharingRule.FINISH_TIME_FAIRNESS), np.ones(1))
