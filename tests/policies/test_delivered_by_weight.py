"""Do apps get GPU time by weight? Simulated, from the log: the auction's reproduction, shares below one GPU, users."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from themis.fairness.filtering import bidder_count
from themis.policies.placement.turns import TURN, Turns, shares, water_filled
from themis.policies.themis import relative_weight
from themis.testing.builders import app, job, machines, snapshot_of

sys.path.append(str(Path(__file__).parents[2] / "reproduction"))
import delivered_weights as delivered

LONG = os.environ.get("THEMIS_DELIVERED") == "1"
BY_ROUNDS = ("round_robin", "proportional", "max_min_fairness", "hierarchical", "finish_time_fairness")
POLICIES = delivered.SHARING if LONG else ("themis", "themis:f=0", "themis:f=0.4", "drf", "gandiva", *BY_ROUNDS)


@pytest.mark.parametrize("f", [0, 0.4, 0.8])
def test_weight_three_receives_about_three_times_whatever_the_filter(f: float) -> None:
    """Before weights counted in the product: 1.19, 0.78 and 2.10."""
    assert 2.5 <= delivered.auction(f"themis:f={f}") <= 3.5


@pytest.mark.parametrize("policy", [p for p in POLICIES if p != "shockwave"])
def test_shares_below_one_gpu_are_received_by_weight(policy: str) -> None:
    """Weights 0.37, 1 and 7: shares of 0.04, 0.12 and 0.84 of a GPU, and of 0.18, 0.48 and 3.35 GPUs."""
    until = 120_000.0 if LONG else 60_000.0
    for setting in ((1, 1, (1,)), (1, 8, (4,))):
        assert delivered.by_weight(policy, *setting, until) == pytest.approx([1.0, 1.0, 1.0], abs=0.25)


def test_shockwave_lets_the_job_of_the_largest_weight_finish_first() -> None:
    """What it shares is when jobs finish; how it lays out rounds until then is its own."""
    light, _, heavy = delivered.by_weight("shockwave", 1, 1, (1,), 30_000.0)
    assert heavy > 1.0 > light


@pytest.mark.parametrize("policy", POLICIES if LONG else ("themis", "drf", "gandiva", "round_robin", "hierarchical"))
def test_users_with_one_three_and_thirty_apps_receive_alike(policy: str) -> None:
    if policy == "shockwave":
        pytest.skip("shares when jobs finish, not GPU time until then")
    until = 120_000.0 if LONG else 60_000.0
    assert delivered.by_user(policy, "users", until=until) == pytest.approx([1.0, 1.0, 1.0], abs=0.17)


@pytest.mark.parametrize(
    "policy", ["themis", "drf", "gandiva", "tiresias", "tiresias_2q", "tiresias_gittins", "round_robin"]
)
def test_a_user_who_submits_ever_new_apps_gets_no_more_than_others(policy: str) -> None:
    """Three users on one GPU: two with two long apps each, one whose apps of a lease come faster than its share serves them."""
    until = 60_000.0
    apps = [delivered.app_of(f"{u}{i}", 1, 1e6, user=u) for u in "ab" for i in range(2)]
    apps += [delivered.app_of(f"c{i}", 1, 560.0, user="c", arrival=500.0 * i) for i in range(100)]
    got = delivered.received(delivered.world(apps, (1,), policy, between="users"), until)
    parts = [sum(x for name, x in got.items() if name.startswith(u)) / sum(got.values()) for u in "abc"]
    assert parts == pytest.approx([1 / 3, 1 / 3, 1 / 3], abs=0.06)


@pytest.mark.parametrize("policy", ["gandiva:clients=jobs", "tiresias:clients=jobs"])
def test_users_receive_alike_where_each_job_is_a_client(policy: str) -> None:
    apps = [delivered.app_of(f"u{n}-{i}", 8, 1e6, user=f"u{n}") for n in (1, 3) for i in range(n)]
    got = delivered.received(delivered.world(apps, (8,), policy, between="users"), 30_000.0)
    assert got["u1-0"] / sum(got.values()) == pytest.approx(0.5, abs=0.05)


def test_between_apps_the_user_with_thirty_apps_has_most() -> None:
    assert delivered.by_user("themis", "apps", until=30_000.0)[2] > 2.0


# ---- the parts ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("weights", "f", "bid"),
    [
        ((1.0, 1.0, 1.0, 1.0, 1.0), 0.8, 1),
        ((1.0, 1.0, 1.0, 1.0, 1.0), 0.4, 3),
        ((3.0, 1.0, 1.0), 0.8, 1),  # 3 of 5 shares are more than 1
        ((1.0, 1.0, 3.0), 0.4, 3),  # 3 shares: 2 of 5 are too few
        ((0.37, 1.0, 7.0), 0.8, 3),
        ((0.1, 0.1), 0.5, 1),
        ((1 / 3,) * 30, 0.9, 3),
        ((1.0, 2.0), 1.0, 1),
        ((1.0, 2.0), 0.0, 2),
    ],
)
def test_the_filter_counts_an_app_of_weight_w_as_w_apps(weights: tuple[float, ...], f: float, bid: int) -> None:
    assert bidder_count(np.array(weights), f) == bid


@settings(max_examples=100, deadline=None)
@given(
    weight=st.lists(st.sampled_from([0.37, 1 / 3, 1.0, 7.0]), min_size=1, max_size=8),
    volume=st.floats(0.0, 40.0),
    seed=st.integers(0, 2**31),
)
def test_shares_are_one_level_but_for_those_who_can_use_no_more(weight: list[float], volume: float, seed: int) -> None:
    most, w = np.random.default_rng(seed).integers(0, 9, len(weight)).astype(float), np.array(weight)
    out = water_filled(w, most, volume)
    assert out.sum() == pytest.approx(min(volume, most.sum()))
    assert (out <= most + 1e-9).all()
    below = out < most - 1e-9
    if below.any():
        assert out[below] / w[below] == pytest.approx(np.full(int(below.sum()), float((out / w).max())))


def test_equal_weights_have_no_turns() -> None:
    """The least share is next, as ever, whatever the weights' common value."""
    for weight in (1.0, 0.37):
        s = snapshot_of(machines(1), [app(f"a{i}", [job(100.0)], weight=weight) for i in range(3)])
        assert not s.weighted
        assert not Turns.of(s).waits(1).any()
        assert relative_weight(s.app_weight) is None


def test_the_one_who_received_least_of_its_share_is_next() -> None:
    """Weights 1 and 3 on one GPU, which the first had for the first 100 s: it is the other's turn."""
    apps = [app(f"a{i}", [job(1000.0)], weight=weight) for i, weight in enumerate((1.0, 3.0))]
    s = snapshot_of(machines(1), apps, held=[(0, (0,), 100.0)], now=100.0)
    assert shares(s) == pytest.approx([0.25, 0.75])
    turns = Turns.of(s)
    assert [turns.key(a, 0)[:2] for a in (0, 1)] == [
        (TURN, pytest.approx(700.0 / (700.0 * 0.25))),
        (TURN, pytest.approx(600.0 / (700.0 * 0.75))),
    ]
    assert turns.waits(1).tolist() == [True, False]


def test_only_ratios_of_weights_reach_an_auction() -> None:
    one, other = relative_weight(np.array([1.0, 3.0])), relative_weight(np.array([0.2, 0.6]))
    assert one == pytest.approx([1 / 3, 1.0])
    assert other == pytest.approx(one)
