"""The volatile Fisher market: appendices C-E of Shockwave on random instances."""

from __future__ import annotations

import numpy as np
import pytest

from themis.errors import InputError, NotSolved
from themis.optimize.fisher_market import Equilibrium, Market, equilibrium, leontief_market, linear_market

TIGHT = 2e-3
"""A welfare within 1e-6 of the best leaves prices and utilities this close, relatively, as logs are flat at the top."""


def linear(seed: int, jobs: int = 5, rounds: int = 6, equal: bool = True) -> Market:
    """Jobs whose gain from a GPU changes from round to round."""
    rng = np.random.default_rng(seed)
    gain = rng.uniform(0.2, 1.0, (jobs, 1)) * np.cumprod(rng.uniform(0.7, 1.6, (jobs, rounds)), axis=1)
    gain[rng.random((jobs, rounds)) < 0.15] = 0.0
    gain[:, 0] += 0.1
    return linear_market(gain, rng.uniform(1, 4, rounds), np.ones(jobs) if equal else rng.uniform(0.5, 2.0, jobs))


def leontief(seed: int, jobs: int = 4, rounds: int = 4, equal: bool = True) -> Market:
    """Jobs that need GPUs and CPUs in fixed proportion, and gain more in some rounds than in others."""
    rng = np.random.default_rng(seed)
    return leontief_market(
        rng.uniform(0.3, 1.0, (jobs, rounds)),
        rng.uniform(0.2, 1.0, (jobs, 2)),
        np.array([2.0, 3.0]),
        np.ones(jobs) if equal else rng.uniform(0.5, 2.0, jobs),
    )


CASES = [make(seed, equal=equal) for make in (linear, leontief) for seed in range(5) for equal in (True, False)]


@pytest.fixture(scope="module", params=range(len(CASES)))
def solved(request: pytest.FixtureRequest) -> tuple[Market, Equilibrium]:
    market = CASES[request.param]
    return market, equilibrium(market)


def test_capacity_is_kept_and_the_gap_is_proven(solved: tuple[Market, Equilibrium]) -> None:
    market, found = solved
    assert (found.bought.sum(axis=0) <= market.capacity + 1e-6).all()
    assert found.objective == pytest.approx(float(market.budget @ np.log(found.utility)))
    assert -1e-12 <= found.bound - found.objective <= 1e-6 * market.budget.sum() + 1e-12


def test_the_bound_agrees_with_the_dual_of_the_prices(solved: tuple[Market, Equilibrium]) -> None:
    """Any prices prove a bound: everybody spends its budget at its best bang per buck. These prove nearly the same."""
    market, found = solved
    cost = found.price @ market.use
    bang = np.divide(market.gain, cost, out=np.zeros(len(cost)), where=cost > 1e-12)
    best = np.array([bang[market.owner == i].max() for i in range(len(market.budget))])
    dual = float(market.budget @ np.log(market.budget * best)) - market.budget.sum() + found.price @ market.capacity
    assert dual >= found.objective - 1e-9
    assert dual == pytest.approx(found.objective, abs=TIGHT * market.budget.sum())


def test_the_market_clears(solved: tuple[Market, Equilibrium]) -> None:
    """Appendix D: what has a price is sold out."""
    market, found = solved
    left = market.capacity - found.bought.sum(axis=0)
    assert found.price @ left == pytest.approx(0.0, abs=1e-4)


def test_budgets_are_spent(solved: tuple[Market, Equilibrium]) -> None:
    """Appendix D: p x_i = B_i."""
    market, found = solved
    assert found.bought @ found.price == pytest.approx(market.budget, rel=TIGHT)


def test_everybody_gets_most_for_its_money(solved: tuple[Market, Equilibrium]) -> None:
    """Appendix D: an activity that is bought costs no more per unit of utility than any other."""
    market, found = solved
    cost = found.price @ market.use
    for i in range(len(market.budget)):
        own = (market.owner == i) & (market.gain > 0)
        worst = (cost[own] / market.gain[own])[found.amount[own] > 1e-3]
        assert worst.max() <= (cost[own] / market.gain[own]).min() * (1 + TIGHT)


def test_nobody_prefers_what_another_bought(solved: tuple[Market, Equilibrium]) -> None:
    """Envy-freeness, by budget: another's bundle scaled by the ratio of budgets."""
    market, found = solved
    for i, utility in enumerate(found.utility):
        for j, bundle in enumerate(found.bought):
            assert market.utility(i, bundle * market.budget[i] / market.budget[j]) <= utility * (1 + TIGHT)


def test_everybody_has_at_least_its_share(solved: tuple[Market, Equilibrium]) -> None:
    """Proportionality; with equal budgets Corollary 4.0.1 (b): rho = U(C/N) / U(X) is at most 1."""
    market, found = solved
    share = market.budget / market.budget.sum()
    for i, utility in enumerate(found.utility):
        rho = market.utility(i, market.capacity * share[i]) / utility
        assert rho <= 1 + TIGHT


def test_the_product_of_rho_is_least(solved: tuple[Market, Equilibrium]) -> None:
    """Corollary 4.0.1 (a), against random allocations that fit."""
    market, found = solved
    rng = np.random.default_rng(0)
    for _ in range(30):
        amount = rng.exponential(size=len(market.owner)) * (rng.random(len(market.owner)) < 0.7)
        amount /= max(float((market.use @ amount / market.capacity).max()), 1e-9)
        utility = np.bincount(market.owner, weights=market.gain * amount, minlength=len(market.budget))
        if (utility > 0).all():
            assert market.budget @ np.log(utility) <= found.bound + 1e-9


def test_a_job_that_will_double_its_speed_sells_today_and_buys_tomorrow() -> None:
    """§4.1: the price of tomorrow follows what jobs will make of it; a static market would split both rounds evenly."""
    market = linear_market(np.array([[1.0, 1.0], [1.0, 2.0]]), np.ones(2), np.ones(2))
    found = equilibrium(market)
    assert found.bought == pytest.approx(np.array([[1.0, 0.0], [0.0, 1.0]]), abs=TIGHT)
    assert found.utility == pytest.approx([1.0, 2.0], rel=TIGHT)


@pytest.mark.parametrize(
    ("change", "match"),
    [
        ({"budget": np.zeros(2)}, "budget"),
        ({"gain": -np.ones(2)}, "negative"),
        ({"gain": np.array([1.0, 0.0])}, "job 1"),
    ],
)
def test_markets_that_make_no_sense_are_refused(change: dict[str, np.ndarray], match: str) -> None:
    given = {
        "budget": np.ones(2),
        "capacity": np.ones(1),
        "owner": np.arange(2),
        "gain": np.ones(2),
        "use": np.ones((1, 2)),
    }
    with pytest.raises(InputError, match=match):
        Market(**(given | change))


def test_a_gap_that_cannot_be_reached_is_said() -> None:
    with pytest.raises(NotSolved, match="gap"):
        equilibrium(linear(0), gap=-1.0)
