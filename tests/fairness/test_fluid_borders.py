"""Where the theorem of fair finish ends: dues that an arrival makes infeasible, and phases that the test of dues merges."""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise

import numpy as np
import pytest

from themis.fairness import fluid
from themis.model.units import Bool, Float, Int


def test_an_arrival_with_another_cap_can_make_dues_infeasible() -> None:
    """Spec of fair finish, section 3: capacity 10, quickest first as far as dues allow; at 3.9 s comes one of 38 for 2 GPUs."""
    work, cap = np.array([20.0, 24.0, 26.0]), np.array([3.0, 7.0, 8.0])
    virtual = work - fluid.run(work[:, None], cap[:, None], np.ones(3), 10.0, 3.9)[0]
    # The first had its 3 GPUs, the third as much as the second's due allows, the second what was left of 39 GPU-seconds.
    left = np.array([8.3, 20.3, 2.4])
    assert (work - left).sum() == pytest.approx(39.0)
    due = fluid.run(virtual[:, None], cap[:, None], np.ones(3), 10.0)[1]
    assert fluid.lacking(left, cap, due, 10.0).max() <= 1e-9
    assert (left <= cap * due + 1e-9).all()
    virtual, cap = np.append(virtual, 38.0), np.append(cap, 2.0)
    due = fluid.run(virtual[:, None], cap[:, None], np.ones(4), 10.0)[1]
    assert (3.9 + due).tolist() == pytest.approx([7.0125, 7.525, 7.775, 22.9])
    assert fluid.lacking(np.append(left, 38.0), cap, due, 10.0).max() == pytest.approx(0.1125)


def _best(y: float) -> float:
    """When x ends at best if y, at most 2 of 4 GPUs, keeps its due of 3: x is 2 on one GPU, then 10 on four."""
    work, cap = np.array([[y, 0.0], [2.0, 10.0]]), np.array([[2.0, 1.0], [1.0, 4.0]])
    ends = [fluid.run(work, cap, np.array([1.0, 10.0**k]), 4.0)[1] for k in np.linspace(-3.0, 3.0, 61)]
    return min(float(x) for first, x in ends if first <= 3.0 + 1e-9)


def test_several_phases_in_one_row_are_an_estimate() -> None:
    """Two phases count with their mean width: if y needs 6, x cannot end by 4.75; if 5, it can, and is said not to."""
    for y, best, said in ((6.0, 5.0, 4 / 3), (5.0, 4.75, 1 / 3), (4.6, 4.65, -1 / 15)):
        assert _best(y) == pytest.approx(best, abs=2e-3)
        lacking = fluid.lacking(np.array([y, 12.0]), np.array([2.0, 12.0 / 4.5]), np.array([3.0, 4.75]), 4.0)
        assert lacking.max() == pytest.approx(said)


STEP = 0.05
"""Seconds between two decisions."""
Order = Callable[[Float, Float, Float], Int]


def _late(seed: int, unequal: bool, order: Order) -> float:
    """Six apps with odd weights on 10 GPUs: the worst (finish - arrival) / (finish in the reference - arrival)."""
    rng = np.random.default_rng(seed)
    n, capacity = 6, 10.0
    cap = rng.integers(1, 11, n).astype(float) if unequal else np.full(n, capacity)
    work, weight = rng.uniform(1.0, 40.0, n), rng.choice([0.37, 1 / 3, 1.0, 7.0], n)
    arrival = np.sort(np.append(0.0, rng.uniform(0.0, 10.0, n - 1)))
    left, virtual = work.copy(), work.copy()
    expected, finish = np.full(n, np.inf), np.full(n, np.inf)
    for now, until in pairwise(np.append(arrival, np.inf)):
        here = np.flatnonzero((arrival <= now) & (virtual > 0))
        given = (virtual[here][:, None], cap[here][:, None], weight[here], capacity)
        expected[here] = now + fluid.run(*given)[1]
        got, ended = fluid.run(*given, until - now)
        virtual[here] = np.where(np.isfinite(ended), 0.0, virtual[here] - got)
        at = now
        while at < until and len(rows := np.flatnonzero((arrival <= now) & (left > 0))):
            rate, spare = np.zeros(n), capacity
            for a in rows[order(left[rows], cap[rows], expected[rows] - at)].tolist():
                rate[a] = min(cap[a], spare)
                spare -= rate[a]
            step = min(float((left[rate > 0] / rate[rate > 0]).min()), until - at, STEP)
            at += step
            left -= rate * step
            done = (left <= 1e-9 * work) & np.isinf(finish) & (arrival <= now)
            left[done], finish[done] = 0.0, at
    return float(((finish - arrival) / (expected - arrival)).max())


def _by_due(left: Float, cap: Float, due: Float) -> Int:
    return np.argsort(due, kind="stable")


def _pressed(left: Float, cap: Float, due: Float) -> tuple[Bool, Bool]:
    """Who cannot wait for two decisions, and who of these cannot by its own critical path."""
    kept = due >= left / cap - 1e-9
    slack = np.full(len(left), -np.inf)
    if kept.any():
        slack[kept] = fluid.slack(left[kept], cap[kept], np.maximum(due[kept], 1e-6), 10.0)
    urgent = slack < 2 * STEP
    return urgent, urgent & (due - left / cap < 2 * STEP * (1.0 - cap / 10.0))


def _as_the_policy(left: Float, cap: Float, due: Float) -> Int:
    """Who cannot wait by due, but those without time of their own before all that have more work; then the others by work left."""
    urgent, own = _pressed(left, cap, due)
    with_more = np.array([due[urgent & (left >= w)].min(initial=np.inf) for w in left])
    return np.lexsort((left, np.where(urgent, np.where(own, with_more, due), left), ~urgent))


def _by_slack(left: Float, cap: Float, due: Float) -> Int:
    """First all whose own critical path leaves no two decisions, whatever they can use, by slack."""
    urgent = _pressed(left, cap, due)[0]
    own = urgent & (due - left / cap < 2 * STEP)
    return np.lexsort((np.where(own, due - left / cap, np.where(urgent, due, left)), ~urgent, ~own))


def test_with_equal_caps_the_order_of_the_reference_ends_nobody_later() -> None:
    assert max(_late(seed, unequal=False, order=_by_due) for seed in range(40)) <= 1.0 + 1e-6
    assert max(_late(seed, unequal=False, order=_as_the_policy) for seed in range(40)) <= 1.0 + 1e-6


def test_least_slack_first_ends_apps_later_even_with_equal_caps() -> None:
    """So it is not the order of the policy, although with unequal caps fewer apps are late: 8 % of the instances, by 5 %."""
    assert max(_late(seed, unequal=False, order=_by_slack) for seed in range(40)) > 1.05


def test_with_unequal_caps_dues_are_missed_by_a_bounded_part() -> None:
    """Measured: 67 % of the instances have an app that is later by more than 1 %, the worst by 12 %."""
    late = np.array([_late(seed, unequal=True, order=_as_the_policy) for seed in range(60)])
    assert late.max() == pytest.approx(1.121, abs=0.01)
    assert (late > 1.01).mean() <= 0.67
