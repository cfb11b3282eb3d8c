"""The volatile Fisher market: jobs buy GPUs over time with budgets (Shockwave §4.1, appendices C-F).

    maximise  sum_i B_i log U_i(X_i)   with everything sold at most once                      (Eisenberg-Gale)

Utilities are sums over instants of linear or Leontief functions, so an allocation is a list of activities: each uses some
goods (a resource in one round) and is worth something to its owner. Solved by Newton's method with a barrier; prices are the
duals of the capacities, and prove how close the welfare is to the best.

Leaves out: whole gangs and rounds (``themis.policies.planning``). The form with uncertain states: ``fairness.stochastic_market``.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from themis.errors import InputError, NotSolved
from themis.model.units import Float, Int

STEPS = 16
"""Reductions of the barrier's weight, each to 0.3 of it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Market:
    """N jobs, G goods (a resource in a round), Y activities.

    Attributes
    ----------
    budget : Float[N], above 0. ``capacity`` : Float[G], of each good, above 0.
    owner : Int[Y], the job of an activity. ``gain`` : Float[Y], its utility per unit, >= 0.
    use : Float[G, Y], goods used per unit, >= 0; an owner's activities use no good in common.
    """

    budget: Float
    capacity: Float
    owner: Int
    gain: Float
    use: Float

    def __post_init__(self) -> None:
        if not (self.budget > 0).all() or not (self.capacity > 0).all():
            raise InputError("a market has a budget or a capacity of 0 or less, expected all above 0.")
        if (self.gain < 0).any() or (self.use < 0).any() or not ((self.use > 0).any(axis=0) | (self.gain == 0)).all():
            raise InputError("a market has a negative gain or use, or a gain that uses nothing; expected 0 or more.")
        worth = np.bincount(self.owner, weights=self.gain, minlength=len(self.budget))
        if (worth <= 0).any():
            raise InputError(f"job {int(np.argmin(worth))} of a market gains from nothing, expected a gain above 0.")

    def utility(self, job: int, bundle: Float) -> float:
        """Utility of a bundle of goods [G] to a job: the scarcest good limits each activity."""
        total = 0.0
        for y in np.flatnonzero((self.owner == job) & (self.gain > 0)).tolist():
            needs = self.use[:, y] > 0
            total += float(self.gain[y] * (bundle[needs] / self.use[needs, y]).min())
        return total


@dataclass(frozen=True, slots=True, kw_only=True)
class Equilibrium:
    """Allocation and prices at which everybody buys its best bundle and everything of value is sold.

    Attributes
    ----------
    amount : Float[Y], of each activity. ``bought`` : Float[N, G]. ``utility`` : Float[N]. ``price`` : Float[G], >= 0.
    objective, bound : sum of B log U, and what it cannot exceed.
    """

    amount: Float
    bought: Float
    utility: Float
    price: Float
    objective: float
    bound: float


def linear_market(gain: Float, capacity: Float, budget: Float) -> Market:
    """U_i = sum_g gain[i, g] x[i, g], for gains [N, G]."""
    jobs, goods = gain.shape
    use = np.tile(np.eye(goods), (1, jobs))
    return Market(budget=budget, capacity=capacity, owner=np.repeat(np.arange(jobs), goods), gain=gain.ravel(), use=use)


def leontief_market(gain: Float, need: Float, capacity: Float, budget: Float) -> Market:
    """U_i = sum_t gain[i, t] min_m x[i, m, t] / need[i, m], for gains [N, T], needs [N, M], capacity [M] in every round.

    Goods are ordered by round, then resource.
    """
    (jobs, rounds), resources = gain.shape, need.shape[1]
    use = np.zeros((rounds, resources, jobs, rounds))
    for t in range(rounds):
        use[t, :, :, t] = need.T
    return Market(
        budget=budget,
        capacity=np.tile(capacity, rounds),
        owner=np.repeat(np.arange(jobs), rounds),
        gain=gain.ravel(),
        use=use.reshape(rounds * resources, jobs * rounds),
    )


def equilibrium(market: Market, *, gap: float = 1e-6) -> Equilibrium:
    """The market's equilibrium, its welfare proven to ``gap`` times the sum of budgets.

    Raises
    ------
    NotSolved : the gap is not reached.
    """
    m = market
    kept = np.flatnonzero(m.gain > 0)
    use, gain, owner = m.use[:, kept], m.gain[kept], m.owner[kept]
    barrier = _Barrier(m.budget, m.capacity, owner, gain, use)
    scale = 1.0
    for _ in range(STEPS):
        barrier.settle(scale)
        price = scale / barrier.slack
        objective, bound = barrier.welfare, _bound(m, owner, gain, price @ use, float(price @ m.capacity))
        if bound - objective <= gap * float(m.budget.sum()):
            amount = np.zeros(len(m.gain))
            amount[kept] = barrier.amount
            bought = np.zeros((len(m.budget), len(m.capacity)))
            np.add.at(bought, owner, (use * barrier.amount).T)
            return Equilibrium(
                amount=amount, bought=bought, utility=barrier.utility, price=price, objective=objective, bound=bound
            )
        scale *= 0.3
    raise NotSolved(
        f"the market's gap is {bound - objective:.3g} after {STEPS} steps, asked for was {gap:.3g} a budget."
    )


def _bound(m: Market, owner: Int, gain: Float, cost: Float, sold: float) -> float:
    """Upper bound of welfare by Lagrange duality, at any prices: everybody spends its budget where it gets most for it."""
    best = np.zeros(len(m.budget))
    np.maximum.at(best, owner, gain / cost)
    return float(m.budget @ np.log(m.budget * best)) - float(m.budget.sum()) + sold


class _Barrier:
    """Newton's method on welfare plus logs of all amounts and of all goods left over, which keep it inside."""

    def __init__(self, budget: Float, capacity: Float, owner: Int, gain: Float, use: Float) -> None:
        self.budget, self.capacity, self.use = budget, capacity, use
        self.worth = np.zeros((len(budget), len(owner)))
        self.worth[owner, np.arange(len(owner))] = gain
        users = (use > 0).sum(axis=1)
        share = np.where(use > 0, (capacity / np.maximum(2 * users, 1))[:, None] / np.where(use > 0, use, 1.0), np.inf)
        self._move(share.min(axis=0))

    def _move(self, amount: Float) -> None:
        self.amount = amount
        self.slack = self.capacity - self.use @ amount
        self.utility = self.worth @ amount
        self.welfare = float(self.budget @ np.log(self.utility))

    def _value(self, scale: float) -> float:
        return self.welfare + scale * (float(np.log(self.amount).sum()) + float(np.log(self.slack).sum()))

    def settle(self, scale: float) -> None:
        """Find the maximum for this weight of the logs."""
        for _ in range(60):
            pull = self.budget / self.utility
            slope = pull @ self.worth + scale / self.amount - (scale / self.slack) @ self.use
            curve = (self.worth.T * (self.budget / self.utility**2)) @ self.worth
            curve += (self.use.T * (scale / self.slack**2)) @ self.use
            curve[np.diag_indices_from(curve)] += scale / self.amount**2
            step: Float = np.linalg.solve(curve, slope).astype(np.float64)
            rise = float(slope @ step)
            if rise <= 1e-7 * scale:
                return
            self._search(step, rise, scale)

    def _search(self, step: Float, rise: float, scale: float) -> None:
        """The largest part of the step that stays inside and raises the value."""
        before, start, length = self._value(scale), self.amount, 1.0
        sinks, drains = step < 0, self.use @ step
        if sinks.any():
            length = min(length, 0.99 * float((-start[sinks] / step[sinks]).min()))
        if (drains > 0).any():
            length = min(length, 0.99 * float((self.slack[drains > 0] / drains[drains > 0]).min()))
        for _ in range(30):
            self._move(start + length * step)
            if self._value(scale) >= before + 0.1 * length * rise - 1e-15:
                return
            length *= 0.5
