"""An auction whose time is up: the best choice found, within bounds that hold (live service only)."""

from __future__ import annotations

import math

import pytest
from auction_cases import brute, check_outcome, random_case

from themis.errors import InputError
from themis.policies.auction import Limits, clear

CUT_SHORT = (192, 410, 474, 629)
"""Auctions that neither tables nor prices settle."""


@pytest.mark.parametrize("leaves", [1, 300])
@pytest.mark.parametrize("seed", [*range(100, 140), *CUT_SHORT])
def test_bounds_hold_when_there_was_no_time(seed: int, leaves: int) -> None:
    sale, table = random_case(seed)
    # No tables of several capacities and hardly any search: what they would settle is left to the clock.
    limits = Limits(seconds=1e-9, leaves=leaves, wide=1, packing=leaves)
    out = clear(sale, table, limits)
    check_outcome(sale, table, out)
    best = brute(sale, table)
    assert out.objective <= best + 1e-9
    assert best <= out.bound + 1e-9
    exact = clear(sale, table)
    alike = (out.row == exact.row).all()
    for b in range(table.bidders) if alike else ():
        assert out.kept_low[b] - 1e-9 <= exact.kept[b] <= out.kept_high[b] + 1e-9


def test_some_of_these_auctions_were_really_cut_short() -> None:
    limits = Limits(seconds=1e-9, leaves=1, wide=1, packing=1)
    assert {clear(*random_case(seed), limits).method for seed in CUT_SHORT} == {"time"}


@pytest.mark.parametrize("seconds", [0.0, -1.0, math.nan])
def test_a_limit_that_is_no_time_is_refused(seconds: float) -> None:
    with pytest.raises(InputError, match="seconds is"):
        Limits(seconds=seconds)
