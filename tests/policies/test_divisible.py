"""The divisible mechanism: the paper's theorems where they hold, and golden payments."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from themis.errors import InputError
from themis.policies.auction.divisible import auction_of_goods, auction_of_time

seeds = st.integers(0, 2**31)


def instance(seed: int) -> tuple[np.random.Generator, np.ndarray, np.ndarray]:
    rng = np.random.default_rng(seed)
    apps, goods = int(rng.integers(2, 5)), int(rng.integers(1, 4))
    return rng, rng.uniform(0.05, 1.0, (apps, goods)), rng.uniform(0.5, 3.0, goods)


@pytest.mark.parametrize(("n", "kept"), [(2, 0.5), (3, 0.4444), (4, 0.4219), (8, 0.3927)])
def test_golden_identical_apps_on_one_resource(n: int, kept: float) -> None:
    goods = auction_of_goods(np.ones((n, 1)), np.array([5.0]))
    time = auction_of_time(np.zeros(n), np.full(n, 20.0), 6.0)
    assert goods.kept == pytest.approx([((n - 1) / n) ** (n - 1)] * n, abs=1e-9)
    assert time.kept == pytest.approx(goods.kept, abs=1e-9)
    assert goods.kept[0] == pytest.approx(kept, abs=5e-5)


def test_golden_two_apps_with_time_elapsed() -> None:
    out = auction_of_time(np.full(2, 5.0), np.full(2, 20.0), 6.0)
    assert out.kept == pytest.approx([0.7143, 0.7143], abs=5e-5)
    assert out.amount[:, 0] == pytest.approx([3.0, 3.0])


def test_a_lone_app_keeps_everything() -> None:
    assert auction_of_goods(np.ones((1, 2)), np.array([1.0, 2.0])).kept.tolist() == [1.0]
    assert auction_of_time(np.array([1.0]), np.array([2.0]), 4.0).amount.tolist() == [[4.0]]


@settings(max_examples=40, deadline=None)
@given(seed=seeds)
def test_theorem_3_2_no_lie_gains_when_values_are_linear(seed: int) -> None:
    rng, worth, capacity = instance(seed)
    honest = auction_of_goods(worth, capacity)
    lie = worth.copy()
    lie[0] = rng.uniform(0.01, 1.0, capacity.size)
    lied = auction_of_goods(lie, capacity)
    gain = (worth[0] @ lied.amount[0]) * lied.kept[0]
    assert gain <= (worth[0] @ honest.amount[0]) * honest.kept[0] * (1 + 1e-8)


@settings(max_examples=40, deadline=None)
@given(seed=seeds)
def test_no_lie_gains_expected_value_in_the_all_or_nothing_lottery(seed: int) -> None:
    """With probability c an app keeps all of G_pf: the same mean as keeping the fraction c, for any degree-1 V."""
    rng, worth, capacity = instance(seed)
    scale = float(rng.uniform(0.1, 10.0))
    lie = worth.copy()
    lie[0] *= rng.uniform(0.2, 5.0, capacity.size)
    honest, lied = auction_of_goods(worth * scale, capacity), auction_of_goods(lie * scale, capacity)
    mean = [out.kept[0] * (worth[0] @ out.amount[0]) for out in (honest, lied)]
    assert mean[1] <= mean[0] * (1 + 1e-8)


@settings(max_examples=40, deadline=None)
@given(seed=seeds)
def test_no_app_envies_another_before_payment(seed: int) -> None:
    _, worth, capacity = instance(seed)
    amount = auction_of_goods(worth, capacity).amount
    seen = worth @ amount.T
    assert (seen <= np.diag(seen)[:, None] * (1 + 1e-7)).all()


@settings(max_examples=40, deadline=None)
@given(seed=seeds)
def test_everything_is_handed_out_and_each_keeps_a_positive_part(seed: int) -> None:
    rng, worth, capacity = instance(seed)
    out = auction_of_goods(worth, capacity)
    assert out.amount.sum(0) == pytest.approx(capacity, rel=1e-8)
    time = auction_of_time(rng.uniform(0, 100, 4), rng.uniform(1, 100, 4), 8.0)
    assert time.amount.sum() == pytest.approx(8.0)
    for kept in (out.kept, time.kept):
        assert (kept > 0).all()
        assert (kept <= 1).all()


def test_time_shares_beat_any_small_transfer() -> None:
    elapsed, left = np.array([0.0, 5.0, 50.0]), np.array([20.0, 40.0, 10.0])
    amount = auction_of_time(elapsed, left, 6.0).amount[:, 0]
    best = -np.log(elapsed + left / amount).sum()
    for give in range(3):
        for take in range(3):
            moved = amount.copy()
            moved[give] -= 1e-3
            moved[take] += 1e-3
            assert -np.log(elapsed + left / moved).sum() <= best + 1e-12


def test_values_out_of_range_are_refused() -> None:
    with pytest.raises(InputError, match="worth"):
        auction_of_goods(np.zeros((2, 1)), np.ones(1))
    with pytest.raises(InputError, match="elapsed"):
        auction_of_time(np.array([-1.0]), np.ones(1), 1.0)
