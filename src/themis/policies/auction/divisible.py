"""The partial-allocation mechanism for divisible goods, on which the paper's theorems rest (Themis §3.3.1, [5]).

Small and for theory: strategy-proofness (Theorem 3.2) holds exactly when every V is homogeneous of degree 1, as here
in `auction_of_goods`. The value of finish-time fairness, T_id / (elapsed + left / g) in `auction_of_time`, is
homogeneous only at elapsed 0. The auction of whole GPUs is `clear`.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from scipy.optimize import brentq

from themis.errors import InputError, NotSolved
from themis.optimize.programs import Floats


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class DivisibleOutcome:
    """Proportionally fair amounts and what each app keeps of them.

    Attributes
    ----------
    amount
        Shape [n, J], amount of each good per app before payment; [n, 1] for one good.
    kept
        Shape [n], c_a in (0, 1]; app a ends with ``kept[a] * amount[a]``.
    """

    amount: Floats
    kept: Floats


def auction_of_goods(worth: Floats, capacity: Floats) -> DivisibleOutcome:
    """Auction J goods to n apps with linear values ``V_a(g) = worth[a] @ g``.

    Proportional fairness is then the Eisenberg-Gale program ``max sum_a log(worth[a] @ g_a)``.

    Parameters
    ----------
    worth
        Shape [n, J], >= 0; every app values some good.
    capacity
        Shape [J], > 0.

    Raises
    ------
    InputError
        On negative or empty values.
    NotSolved
        When the interior-point method stalls.
    """
    if (worth < 0).any() or not (worth > 0).any(1).all() or (capacity <= 0).any():
        raise InputError("auction_of_goods: worth must be >= 0 with a positive entry per app, capacity > 0.")
    amount = _eisenberg_gale(worth, capacity)
    logs = np.log((worth * amount).sum(1))
    without = []
    for a in range(worth.shape[0]):
        others = np.delete(worth, a, 0)
        without.append(float(np.log((others * _eisenberg_gale(others, capacity)).sum(1)).sum()))
    return DivisibleOutcome(amount=amount, kept=_kept(logs, np.array(without)))


def auction_of_time(elapsed: Floats, left: Floats, capacity: float) -> DivisibleOutcome:
    """Auction one good to n apps with ``V_a(g) = T_id / (elapsed[a] + left[a] / g)``; T_id cancels.

    Parameters
    ----------
    elapsed
        Shape [n], seconds since arrival, >= 0.
    left
        Shape [n], GPU-seconds to go, > 0.
    capacity
        GPUs, > 0.

    Raises
    ------
    InputError
        On values out of range.
    """
    if (elapsed < 0).any() or (left <= 0).any() or capacity <= 0:
        raise InputError("auction_of_time: elapsed must be >= 0, left and capacity > 0.")
    amount = _share_time(elapsed, left, capacity)
    logs = -np.log(elapsed + left / amount)
    without = []
    for a in range(elapsed.size):
        e, w = np.delete(elapsed, a), np.delete(left, a)
        without.append(float(-np.log(e + w / _share_time(e, w, capacity)).sum()))
    return DivisibleOutcome(amount=amount[:, None], kept=_kept(logs, np.array(without)))


def _kept(logs: Floats, without: Floats) -> Floats:
    """c_a from every app's log V, shape [n], and the best sum of the others' without a, shape [n]."""
    kept: Floats = np.exp(np.minimum(0.0, logs.sum() - logs - without))
    return kept


def _share_time(elapsed: Floats, left: Floats, capacity: float) -> Floats:
    """Amounts at which the marginal log value, left / (g (elapsed g + left)), is one price and all is used."""
    if elapsed.size <= 1:
        return np.full(elapsed.size, capacity)

    def demand(log_price: float) -> Floats:
        price = np.exp(log_price)
        # The positive root of price * elapsed * g^2 + price * left * g = left, in the form that is stable at elapsed 0.
        root = np.sqrt((price * left) ** 2 + 4 * price * elapsed * left)
        amounts: Floats = 2 * left / (price * left + root)
        return amounts

    # Each app asks for at most 1 / price, so all of them at price n / capacity ask for at most the capacity.
    high = np.log(elapsed.size / capacity) + 1.0
    low = high - 1.0
    while demand(low).sum() < capacity:
        low -= 5.0
    price = brentq(lambda p: float(demand(p).sum()) - capacity, low, high, xtol=1e-14)
    amount = demand(price)
    shares: Floats = amount * (capacity / amount.sum())
    return shares


def _eisenberg_gale(worth: Floats, capacity: Floats) -> Floats:
    """Amounts [n, J] by a primal-dual interior-point method: ``min -sum log(worth_a @ g_a), sum_a g = capacity``."""
    apps, goods = worth.shape
    amount = np.zeros((apps, goods))
    wanted = (worth > 0).any(0)
    if not apps or not wanted.any():
        return amount
    v, cap = worth[:, wanted] / worth.max(1, keepdims=True), capacity[wanted]
    x = np.repeat(cap[None] / apps, apps, 0)
    z, y = np.ones_like(x), np.zeros(cap.size)
    rows = np.tile(np.eye(cap.size), apps)
    for _ in range(200):
        utility = (v * x).sum(1)
        slope = -v / utility[:, None]
        dual = slope + y - z
        center = 0.1 * float((x * z).mean())
        if center < 1e-14 and abs(dual).max() < 1e-10:
            amount[:, wanted] = x
            return amount
        dx, dy, dz = _newton(v / utility[:, None], x, z, rows, (dual, x.sum(0) - cap, center))
        step = min(1.0, *(0.99 / max(1e-300, float((-d / p).max())) for d, p in ((dx, x), (dz, z)) if (d < 0).any()))
        x, y, z = x + step * dx, y + step * dy, z + step * dz
    raise NotSolved("Eisenberg-Gale: the interior-point method stalled; scale worth and capacity towards 1.")


def _newton(
    slope: Floats, x: Floats, z: Floats, rows: Floats, residual: tuple[Floats, Floats, float]
) -> tuple[Floats, Floats, Floats]:
    """One Newton step on the optimality conditions; `slope` [n, J] is worth over utility."""
    dual, primal, center = residual
    apps, goods = x.shape
    size = apps * goods
    system = np.zeros((size + goods, size + goods))
    for a in range(apps):
        block = slice(a * goods, (a + 1) * goods)
        system[block, block] = np.outer(slope[a], slope[a]) + np.diag(z[a] / x[a])
    system[:size, size:], system[size:, :size] = rows.T, rows
    right = np.concatenate([(-dual - z + center / x).ravel(), -primal])
    step = np.linalg.solve(system, right)
    dx = step[:size].reshape(apps, goods)
    dz = (center - z * dx) / x - z
    return dx, step[size:], dz
