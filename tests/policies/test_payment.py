"""Four ways to pay c_a with whole gangs."""

from __future__ import annotations

import numpy as np
import pytest

from themis.errors import InputError, UnknownName
from themis.policies.auction import FORMS, pay

GANGS = np.array([3, 1])


def test_time_keeps_every_gang_for_a_share_of_the_lease() -> None:
    grant = pay("time", 0.4, GANGS, 600.0)
    assert grant.gangs.tolist() == [3, 1]
    assert grant.lease == pytest.approx(240.0)


def test_floor_takes_a_single_gang_won_below_one() -> None:
    assert pay("floor", 0.7, GANGS, 600.0).gangs.tolist() == [2, 0]


@pytest.mark.parametrize("form", sorted(FORMS))
def test_a_bidder_that_pays_nothing_keeps_everything(form: str) -> None:
    grant = pay(form, 1.0, GANGS, 600.0, np.random.default_rng(0))
    assert grant.gangs.tolist() == [3, 1]
    assert grant.lease == 600.0


@pytest.mark.parametrize("form", ["randomised", "lottery"])
def test_chance_keeps_the_right_mean(form: str) -> None:
    rng = np.random.default_rng(1)
    draws = np.array([pay(form, 0.6, GANGS, 600.0, rng).gangs for _ in range(4000)])
    assert draws.mean(0) == pytest.approx([1.8, 0.6], abs=0.06)


def test_lottery_is_all_or_nothing() -> None:
    rng = np.random.default_rng(1)
    grants = [pay("lottery", 0.5, GANGS, 600.0, rng) for _ in range(50)]
    assert {tuple(g.gangs.tolist()) for g in grants} == {(3, 1), (0, 0)}
    assert {g.lease for g in grants} == {600.0, 0.0}


@pytest.mark.parametrize("form", ["randomised", "lottery"])
def test_chance_needs_a_generator(form: str) -> None:
    with pytest.raises(InputError, match="rng"):
        pay(form, 0.5, GANGS, 600.0)


def test_an_unknown_form_is_refused_with_the_known_ones() -> None:
    with pytest.raises(UnknownName, match="time"):
        pay("tme", 0.5, GANGS, 600.0)


def test_a_share_out_of_range_is_refused() -> None:
    with pytest.raises(InputError, match="kept"):
        pay("time", -0.1, GANGS, 600.0)


@pytest.mark.parametrize("form", FORMS)
def test_a_share_that_rounds_to_nothing_keeps_nothing(form: str) -> None:
    """exp(-cost / w) underflows where a winner of weight 1e-6 takes GPUs from others of weight 1e6."""
    grant = pay(form, float(np.exp(-800.0)), GANGS, 600.0, np.random.default_rng(0))
    assert grant.lease == 0.0 or grant.gangs.sum() == 0
