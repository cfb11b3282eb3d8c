"""The cheapest way to a rate at given prices, against all mixtures of two types; and many prices at once against one."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from gavel_cases import random_problem

from themis.model.units import Float
from themis.optimize.shares.lower_hull import Kinds, LowerHulls, Needs


def cheapest(rate: Float, price: Float, need: float) -> float:
    """By hand: the best of all mixtures of two of a job's types, idleness among them."""
    points = [(0.0, 0.0), *((float(r), float(p)) for r, p in zip(rate, price) if r > 0)]
    best = np.inf
    for (a, cost_a), (b, cost_b) in itertools.product(points, points):
        if a <= need + 1e-12 and b >= need - 1e-12:
            part = 0.0 if b == a else (need - a) / (b - a)
            best = min(best, cost_a + part * (cost_b - cost_a))
    return best


@pytest.mark.parametrize("seed", range(12))
def test_costs_shares_and_uses_are_those_of_the_cheapest_mixture(seed: int) -> None:
    rng = np.random.default_rng(seed)
    problem = random_problem(seed, jobs=9, alike=seed % 2 == 0, barred=0.3 * (seed % 3))
    kinds = Kinds.of(problem)
    assert kinds.rate[kinds.kind] * kinds.scale[:, None] == pytest.approx(problem.rate)
    price = rng.random((4, problem.types))
    price[1] = np.eye(problem.types)[0]  # all others are free, and tie
    price[2] = 1.0
    need = np.where(problem.active, rng.choice([0.0, 0.3, 1.0], problem.jobs) * rng.random(problem.jobs), 0.0)
    need[0] = 1.0 if problem.active[0] else 0.0
    needs, at = Needs.of(kinds, need, problem.gpus), LowerHulls.at(kinds, price)
    again = np.array([2, 0])
    for i, used in zip([0, 1, 2, 3, *again.tolist()], at.with_more(at.pick(again)).uses(needs)):
        one, here = at.one(i), price[i]
        cost, x = one.cost(need), one.mix(need)
        relative = problem.rate / np.where(kinds.scale > 0, kinds.scale, 1.0)[:, None]
        assert cost == pytest.approx([cheapest(relative[j], here, need[j]) for j in range(problem.jobs)], abs=1e-12)
        assert x @ here == pytest.approx(cost, abs=1e-12)
        assert (relative * x).sum(axis=1) == pytest.approx(need, abs=1e-12)
        assert x.min() >= 0
        assert (x.sum(axis=1) <= 1 + 1e-12).all()
        assert used @ here == pytest.approx(float(cost @ problem.gpus), rel=1e-12)
        assert used == pytest.approx(problem.gpus @ x, abs=1e-9)


def test_a_little_more_costs_what_the_next_corner_does_and_the_fastest_have_no_more() -> None:
    kinds = Kinds(rate=np.array([[1.0, 0.5, 0.2]]), kind=np.zeros(4, np.int64), scale=np.ones(4))
    one = LowerHulls.at(kinds, np.array([[0.9, 0.2, 0.19]])).one(0)  # the third type is on no hull: 0.95 a unit
    assert one.knot[:, 0].tolist() == [0.0, 0.5, 1.0, 1.0]
    assert one.marginal(np.array([0.0, 0.4, 0.5, 1.0])) == pytest.approx([0.4, 0.4, 1.4, np.inf])


def test_of_types_that_are_as_cheap_for_the_rate_the_fastest_is_taken() -> None:
    kinds = Kinds(rate=np.array([[0.5, 1.0, 0.25]]), kind=np.zeros(1, np.int64), scale=np.ones(1))
    one = LowerHulls.at(kinds, np.array([[0.2, 0.4, 0.1]])).one(0)
    assert one.mix(np.array([0.5])).tolist() == [[0.0, 0.5, 0.0]]
