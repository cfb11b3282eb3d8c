"""Weighted auctions: the sum of w log V by brute force, the payments that belong to it, and that no lie pays."""

from __future__ import annotations

import dataclasses
import itertools
import math

import numpy as np
import pytest
from auction_cases import bids, offer, packs, random_case
from hypothesis import given, settings
from hypothesis import strategies as st

from themis.model.units import Float
from themis.policies.auction import Bids, Limits, Outcome, Supply, clear

ODD = (0.37, 1 / 3, 7.0, 1.0, 2.5)
LIMITS = [Limits(), Limits(leaves=1, states=1), Limits(states=1), Limits(leaves=1)]
seeds = st.integers(0, 2**31)


def drawn(seed: int, bidders: int) -> Float:
    return np.random.default_rng(seed + 1).choice(ODD, bidders)


def weighted(sale: Supply, table: Bids, weight: Float, limits: Limits = LIMITS[0]) -> Outcome:
    return clear(sale, table.weighted(weight), limits, weight=weight)


def most(sale: Supply, table: Bids, weight: Float, without: int = -1) -> float:
    """Largest sum of w log V over all choices of rows, with `without` left out altogether."""
    who = [b for b in range(table.bidders) if b != without]
    choices = itertools.product(*([-1, *(table.row_bidder == b).nonzero()[0].tolist()] for b in who))

    def worth(choice: tuple[int, ...]) -> float:
        return math.fsum(weight[b] * (table.base[b] if r < 0 else table.row_value[r]) for b, r in zip(who, choice))

    for choice in sorted(choices, key=worth, reverse=True):
        chosen = [r for r in choice if r >= 0]
        if sum(table.gpus[r] for r in chosen) <= sale.free.sum() and packs(sale, table, chosen):
            return worth(choice)
    raise AssertionError("winning nothing always packs")


@pytest.mark.parametrize("limits", LIMITS, ids=["default", "no tables, no search", "no tables", "no search"])
@settings(max_examples=40, deadline=None)
@given(seed=seeds)
def test_objective_and_payments_equal_brute_force(limits: Limits, seed: int) -> None:
    sale, table = random_case(seed)
    weight = drawn(seed, table.bidders)
    out = weighted(sale, table, weight, limits)
    assert out.objective == pytest.approx(most(sale, table, weight), abs=1e-6)
    assert out.gap <= limits.gap
    for a, row in enumerate(out.row.tolist()):
        if row < 0:
            assert out.kept[a] == 1.0
            continue
        beside = out.objective - weight[a] * table.row_value[row]
        kept = math.exp(min(0.0, beside - most(sale, table, weight, a)) / weight[a])
        assert out.kept_low[a] - 1e-7 <= kept <= out.kept_high[a] + 1e-7
        assert out.kept[a] == pytest.approx(math.exp(-out.cost[a] / weight[a]), abs=1e-12)


@settings(max_examples=40, deadline=None)
@given(seed=seeds, factor=st.sampled_from([0.01, 1 / 3, 0.37, 1000.0]))
def test_only_ratios_of_weights_matter(seed: int, factor: float) -> None:
    sale, table = random_case(seed)
    weight = drawn(seed, table.bidders)
    one, other = weighted(sale, table, weight), weighted(sale, table, factor * weight)
    assert other.objective == pytest.approx(factor * one.objective, rel=1e-9, abs=1e-9)
    if one.row.tolist() == other.row.tolist():
        assert other.kept == pytest.approx(one.kept, abs=1e-4)


@settings(max_examples=40, deadline=None)
@given(seed=seeds)
def test_weights_that_are_all_one_change_nothing(seed: int) -> None:
    sale, table = random_case(seed)
    plain, ones = clear(sale, table), weighted(sale, table, np.ones(table.bidders))
    for field in dataclasses.fields(Outcome):
        assert np.array_equal(getattr(plain, field.name), getattr(ones, field.name)), field.name


def shared_gpus(seed: int) -> tuple[Supply, Bids, Float]:
    """Two to four bidders on a few GPUs, V any rising function of their number."""
    rng = np.random.default_rng(seed)
    gpus, bidders = int(rng.integers(1, 5)), int(rng.integers(2, 5))
    rows = []
    for b in range(bidders):
        worth = np.cumsum(rng.uniform(0.05, 1.5, gpus))
        rows += [(b, {1: g + 1}, float(worth[g])) for g in range(gpus)]
    return offer([gpus]), bids([0.0] * bidders, rows), rng.choice(ODD, bidders)


def lies(table: Bids, a: int, rng: np.random.Generator) -> Bids:
    """Bidder a says something else about what each number of GPUs is worth to it."""
    mine = table.row_bidder == a
    said = table.row_value.copy()
    said[mine] = np.cumsum(rng.exponential(1.0, int(mine.sum()))) + 1e-3
    return dataclasses.replace(table, row_value=said)


def payoff(table: Bids, out: Outcome, a: int, exponent: float = 1.0) -> float:
    """c_a V_a: what a winner may expect who keeps all that it won with the chance c_a, and nothing otherwise."""
    row = int(out.row[a])
    return float(out.kept[a]) ** exponent * math.exp(table.base[a] if row < 0 else table.row_value[row])


@settings(max_examples=30, deadline=None)
@given(seed=seeds)
def test_no_lie_pays_with_the_weighted_payment(seed: int) -> None:
    """c_a V_a is (the weighted product of all over that of the others without a)^(1/w_a): truth maximises just that."""
    sale, table, weight = shared_gpus(seed)
    rng, honest = np.random.default_rng(seed), weighted(sale, table, weight)
    for a in range(table.bidders):
        truth = payoff(table, honest, a)
        for _ in range(6):
            assert payoff(table, weighted(sale, lies(table, a, rng), weight), a) <= truth * (1 + 1e-4)


def test_lies_would_pay_without_the_root() -> None:
    """The payment of equal weights, without the exponent 1/w_a, does not belong to weighted bids."""
    gained = 0
    for seed in range(40):
        sale, table, weight = shared_gpus(seed)
        rng, honest = np.random.default_rng(seed), weighted(sale, table, weight)
        for a in range(table.bidders):
            said = weighted(sale, lies(table, a, rng), weight)
            gained += payoff(table, said, a, weight[a]) > payoff(table, honest, a, weight[a]) * 1.01
    assert gained


def test_one_gpu_goes_to_the_larger_weighted_gain_and_costs_the_root_of_the_other() -> None:
    """Gains 1 and 2 nats by weights 3 and 1: the first wins and costs the other 2 nats, so it keeps exp(-2/3)."""
    out = weighted(offer([1]), bids([0.0, 0.0], [(0, {1: 1}, 1.0), (1, {1: 1}, 2.0)]), np.array([3.0, 1.0]))
    assert out.row.tolist() == [0, -1]
    assert out.kept == pytest.approx([math.exp(-2 / 3), 1.0])
    plain = clear(offer([1]), bids([0.0, 0.0], [(0, {1: 1}, 1.0), (1, {1: 1}, 2.0)]))
    assert plain.row.tolist() == [-1, 1]


def test_alike_apps_of_weight_three_and_one_share_gpus_by_weight() -> None:
    """V = 1 + g, 16 GPUs: the weighted product is largest where 1 + g are as 3 to 1."""
    rows = [(b, {1: g}, math.log(1 + g)) for b in (0, 1) for g in range(1, 16)]
    out = weighted(offer([16]), bids([0.0, 0.0], rows), np.array([3.0, 1.0]))
    won = np.bincount(out.win_bidder, out.win_gpus)
    assert (won + 1).tolist() == pytest.approx([13.5, 4.5], abs=0.6)
