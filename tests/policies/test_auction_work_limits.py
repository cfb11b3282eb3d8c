"""Auctions past their limits of work: what they return is packable, and its bounds hold."""

from __future__ import annotations

import dataclasses
import math

import numpy as np
import pytest
from auction_cases import brute, check_outcome, random_case, rigid_gangs
from hypothesis import given, settings
from hypothesis import strategies as st

from themis.policies.auction import Limits, clear

NONE = Limits(work=1, wide=1, packing=5)
LIMITS = {
    "priced slots": NONE,
    "huge": dataclasses.replace(NONE, huge=0),
    "priced GPUs": dataclasses.replace(NONE, entries=1),
}


@pytest.mark.parametrize("limits", LIMITS.values(), ids=LIMITS)
@settings(max_examples=80, deadline=None)
@given(seed=st.integers(0, 2**31))
def test_bounds_of_weighted_auctions_past_their_limits_hold_the_exact_values(limits: Limits, seed: int) -> None:
    # Several types, anchors, gangs wider than any machine, odd sizes, and weights that are no simple multiples.
    sale, table = random_case(seed)
    weight = np.random.default_rng(seed).uniform(0.13, 1.0, table.bidders)
    table = table.weighted(weight)
    out = clear(sale, table, limits, weight=weight)
    check_outcome(sale, table, out)
    assert out.programs == 0
    best = brute(sale, table)
    assert out.objective - 1e-9 <= best <= out.bound + 1e-9
    for a, row in enumerate(out.row.tolist()):
        if row >= 0:
            cost = max(0.0, brute(sale, table, a) - (out.objective - float(table.row_value[row])))
            assert out.kept_low[a] - 1e-8 <= math.exp(-cost / weight[a]) <= out.kept_high[a] + 1e-8


@pytest.mark.slow
@pytest.mark.parametrize("seed", [0, 1, 3])
def test_a_large_contested_auction_takes_few_programs_and_its_mended_payments_are_close(seed: int) -> None:
    sale, table = rigid_gangs(seed, 120)
    out = clear(sale, table)
    assert out.programs <= 10
    check_outcome(sale, table, out)
    exact = clear(sale, table, Limits(work=10**15))
    assert exact.programs > 40
    assert (out.row == exact.row).all()
    assert (out.kept_low - 1e-8 <= exact.kept).all()
    assert (exact.kept <= out.kept_high + 1e-8).all()
    assert abs(out.kept - exact.kept).mean() < 0.005


@pytest.mark.parametrize("seed", range(6))
def test_prices_of_everything_leave_a_small_gap_in_a_large_auction(seed: int) -> None:
    sale, table = rigid_gangs(seed, 200)
    out = clear(sale, table, Limits(entries=1, work=1))
    check_outcome(sale, table, out)
    assert out.gap < 10.0 < 0.01 * out.objective
