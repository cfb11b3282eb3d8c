"""The fluid reference: water filling, finishes, and whether dues can be kept, against brute force and a linear program."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from scipy.optimize import linprog

from themis.fairness import course, fluid
from themis.model.units import Float
from tiers import seeds


def _apps(rng: np.random.Generator, n: int) -> tuple[Float, Float, Float]:
    """Work, caps and weights, all distinct, over wide ranges and with odd weights."""
    return (
        10 ** rng.uniform(0, 4, n),
        rng.uniform(0.3, 9, n),
        rng.choice([0.37, 1 / 3, 1.0, 7.0], n) * rng.uniform(0.9, 1.1, n),
    )


@pytest.mark.parametrize("seed", seeds(6, 50))
def test_shares_are_by_weight_below_every_cap(seed: int) -> None:
    rng = np.random.default_rng(seed)
    _, cap, weight = _apps(rng, int(rng.integers(1, 30)))
    capacity = float(rng.uniform(0.5, 1.5) * cap.sum() * rng.choice([0.3, 1.0]))
    got = fluid.fill(weight, cap, capacity)
    assert got.sum() == pytest.approx(min(capacity, cap.sum()))
    assert (got <= cap * (1 + 1e-12)).all()
    level = got / weight
    below = got < cap * (1 - 1e-9)
    if below.any():
        assert level[below] == pytest.approx(np.full(below.sum(), level.max()))


def test_two_apps_share_until_one_ends() -> None:
    got, finish = fluid.run(np.array([[8.0], [24.0]]), np.array([[8.0], [8.0]]), np.ones(2), 8.0)
    assert got.tolist() == [8.0, 24.0]
    assert finish.tolist() == [2.0, 4.0]


def test_weight_three_gets_three_quarters() -> None:
    got, finish = fluid.run(np.array([[90.0], [90.0]]), np.full((2, 1), 8.0), np.array([3.0, 1.0]), 8.0, seconds=5.0)
    assert got.tolist() == [30.0, 10.0]
    assert np.isinf(finish).all()


def test_phases_follow_one_another_and_leave_what_they_cannot_use() -> None:
    """The first app's second phase can use one GPU only; the other has the rest."""
    work, cap = np.array([[4.0, 2.0], [0.0, 24.0]]), np.array([[8.0, 1.0], [8.0, 8.0]])
    _, finish = fluid.run(work, cap, np.ones(2), 8.0)
    assert finish.tolist() == [3.0, 1.0 + 2.0 + (24 - 4 - 14) / 8]


def test_no_capacity_no_finish() -> None:
    got, finish = fluid.run(np.array([[1.0]]), np.array([[1.0]]), np.ones(1), 0.0)
    assert got[0] == 0
    assert np.isinf(finish[0])


@pytest.mark.parametrize("seed", seeds(3, 20))
def test_in_two_parts_as_in_one(seed: int) -> None:
    rng = np.random.default_rng(seed)
    n, phases = int(rng.integers(1, 12)), int(rng.integers(1, 4))
    work = np.where(rng.random((n, phases)) < 0.2, 0.0, 10 ** rng.uniform(0, 3, (n, phases)))
    cap, weight = rng.uniform(0.5, 8, (n, phases)), rng.uniform(0.3, 3, n)
    whole_got, whole = fluid.run(work, cap, weight, 7.0)
    cut = float(rng.uniform(0, 1)) * float(whole.max())
    got, first = fluid.run(work, cap, weight, 7.0, seconds=cut)
    before = np.cumsum(work, axis=1) - work
    left = np.clip(work - np.maximum(got[:, None] - before, 0), 0, None)
    _, second = fluid.run(left, cap, weight, 7.0)
    assert np.where(np.isfinite(first), first, cut + second) == pytest.approx(whole, rel=1e-6, abs=1e-6)
    assert whole_got == pytest.approx(work.sum(axis=1))


def _feasible(work: Float, cap: Float, due: Float, capacity: float) -> bool:
    """By a linear program: GPU-seconds of each app between dues."""
    n, ends = len(work), np.sort(due)
    length = np.diff(ends, prepend=0.0)
    usable = ends[None, :] <= due[:, None] + 1e-12
    bounds = [(0, float(cap[i] * length[k]) if usable[i, k] else 0.0) for i in range(n) for k in range(n)]
    total = np.kron(np.eye(n), np.ones(n))
    each = np.tile(np.eye(n), n)
    found = linprog(
        -np.ones(n * n), A_ub=np.vstack([each, total]), b_ub=np.concatenate([capacity * length, work]), bounds=bounds
    )
    return bool(-found.fun >= work.sum() * (1 - 1e-7))


@pytest.mark.parametrize("seed", seeds(6, 60))
def test_dues_can_be_kept_exactly_where_nothing_is_lacking(seed: int) -> None:
    """Spec of fair finish, section 3: against a linear program, around the border on purpose."""
    rng = np.random.default_rng(seed)
    n = int(rng.integers(1, 7))
    work, cap, _ = _apps(rng, n)
    due = work / cap * rng.uniform(1.01, 3, n)
    border = max(_border(work, cap, due), 1e-9)
    for factor, kept in ((1.001, True), (0.999, False)):
        capacity = border * factor
        assert bool((fluid.lacking(work, cap, due, capacity) <= 0).all()) is kept
        assert _feasible(work, cap, due, capacity) is kept


def _border(work: Float, cap: Float, due: Float) -> float:
    """The least capacity on which nothing is lacking."""
    return float(((fluid.lacking(work, cap, due, 0.0)) / due).max())


@pytest.mark.parametrize("seed", seeds(6, 60))
def test_least_due_first_ends_nobody_later_than_the_reference(seed: int) -> None:
    """The theorem, for apps that can use the whole cluster: any arrivals, odd weights; the order is by the reference's finish."""
    rng = np.random.default_rng(seed)
    n, capacity = int(rng.integers(2, 12)), 8.0
    work, _, weight = _apps(rng, n)
    arrival = np.sort(rng.uniform(0, work.sum() / capacity, n))
    virtual, real = work.copy(), work.copy()
    reference, finish = np.full(n, np.inf), np.full(n, np.inf)
    caps = np.full((n, 1), capacity)
    for k in range(n):
        until = arrival[k + 1] if k + 1 < n else np.inf
        here = np.arange(k + 1)
        here = here[virtual[here] > 0]
        got, ended = fluid.run(virtual[here][:, None], caps[here], weight[here], capacity, until - arrival[k])
        forecast = fluid.run(virtual[here][:, None], caps[here], weight[here], capacity)[1] + arrival[k]
        order = np.full(n, -np.inf)
        order[here] = forecast
        virtual[here] = np.where(np.isfinite(ended), 0.0, virtual[here] - got)
        reference[here] = np.where(np.isfinite(ended), arrival[k] + ended, reference[here])
        at = arrival[k]
        for a in sorted((a for a in range(k + 1) if real[a] > 0), key=lambda a: (order[a], reference[a])):
            used = min(real[a] / capacity, max(until - at, 0.0))
            at += used
            real[a] -= used * capacity
            if real[a] <= 1e-9 * work[a]:
                real[a], finish[a] = 0.0, at
    assert (finish <= reference * (1 + 1e-6) + 1e-6).all()


def test_slack_is_how_long_an_app_may_wait() -> None:
    """Two apps on 8 GPUs: the later due bounds the earlier one's slack."""
    slack = fluid.slack(np.array([8.0, 64.0]), np.array([8.0, 8.0]), np.array([5.0, 10.0]), 8.0)
    assert slack.tolist() == [1.0, 1.0]


@pytest.mark.parametrize("seed", seeds(3, 20))
def test_what_is_lacking_is_what_the_definition_says(seed: int) -> None:
    rng = np.random.default_rng(seed)
    size = int(rng.integers(1, 40))
    work, cap = 10 ** rng.uniform(0, 5, size), rng.choice([1.0, 3.0, 8.0, 64.0], size)
    due = work / cap * rng.uniform(1.0, 5.0, size)
    due[rng.random(size) < 0.3] = due[0]
    later = np.maximum(due[None, :] - due[:, None], 0.0)
    must = np.maximum(work[None, :] - cap[None, :] * later, 0.0).sum(axis=1)
    scale = float((cap * due.max()).sum())
    np.testing.assert_allclose(fluid.lacking(work, cap, due, 16.0), must - 16.0 * due, atol=1e-12 * scale, rtol=1e-9)


@pytest.mark.parametrize("seed", seeds(3, 20))
def test_a_run_to_the_end_is_many_short_ones(seed: int) -> None:
    """Of apps of several phases; the last of them can use fewer GPUs together than there are."""
    rng = np.random.default_rng(seed)
    work = 10 ** rng.uniform(0, 3, (12, 3)) * (rng.random((12, 3)) < 0.8)
    cap, weight = rng.choice([1.0, 2.0, 8.0, 32.0], (12, 3)), rng.choice([0.3, 1.0, 7.0], 12)
    got, finish = fluid.run(work, cap, weight, 20.0)
    left, done, now, total = work.copy(), np.full(12, np.inf), 0.0, np.zeros(12)
    while not np.isfinite(done).all() and now < 1e6:
        step = float(rng.uniform(1.0, 50.0))
        part, ends = fluid.run(left, cap, weight, 20.0, step)
        fresh = np.isfinite(ends) & ~np.isfinite(done)
        done[fresh] = now + ends[fresh]
        total += part
        now += step
        before = np.cumsum(work, axis=1) - work
        left = np.clip(work - np.maximum(total[:, None] - before, 0.0), 0.0, None)
    np.testing.assert_allclose(finish, done, rtol=1e-6, atol=1e-6)
    np.testing.assert_allclose(got, total, rtol=1e-6, atol=1e-6)


def _step_by_step(
    work: Float, cap: Float, weight: Float, capacity: float, seconds: float = np.inf
) -> tuple[Float, Float]:
    """The definition: water filling anew at each end of a phase."""
    left, got, finish, now = work.copy(), np.zeros(len(work)), np.full(len(work), np.inf), 0.0
    while now < seconds:
        at = np.argmax(left > 0, axis=1)
        here = np.flatnonzero((left > 0).any(axis=1))
        finish[np.setdiff1d(np.flatnonzero(np.isinf(finish)), here)] = now
        if not len(here):
            break
        rate = fluid.fill(weight[here], cap[here, at[here]], capacity)
        with np.errstate(divide="ignore"):
            ends = left[here, at[here]] / rate
        step = min(float(ends.min()), seconds - now)
        if np.isinf(step):
            break
        got[here] += rate * step
        left[here, at[here]] = np.where(ends <= step * (1 + 1e-12), 0.0, left[here, at[here]] - rate * step)
        now += step
    return got, finish


@pytest.mark.parametrize("seed", seeds(6, 60))
def test_a_run_is_water_filling_at_each_end_of_a_phase(seed: int) -> None:
    """Phases without work or GPUs, caps from far below to far above the share, weights over four orders, cut short or not."""
    rng = np.random.default_rng(seed)
    n, phases = int(rng.integers(1, 25)), int(rng.integers(1, 6))
    work = np.where(rng.random((n, phases)) < 0.2, 0.0, 10 ** rng.uniform(0, 4, (n, phases)))
    cap = rng.choice([0.5, 1.0, 3.0, 8.0, 200.0], (n, phases))
    cap[rng.random((n, phases)) < (0.05 if seed % 3 == 0 else 0.0)] = 0.0
    weight = 10 ** rng.uniform(-2, 2, n) if seed % 2 else rng.choice([0.37, 1 / 3, 1.0, 7.0], n)
    capacity = float(rng.choice([0.7, 8.0, 64.0]))
    for seconds in (np.inf, float(10 ** rng.uniform(-1, 4))):
        got, finish = fluid.run(work, cap, weight, capacity, seconds)
        want, when = _step_by_step(work, cap, weight, capacity, seconds)
        finite = np.isfinite(when) | np.isfinite(finish)
        np.testing.assert_allclose(finish[finite], when[finite], rtol=1e-7, atol=1e-7)
        np.testing.assert_allclose(got, want, rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("light", [1e-30, 1e-12, 1.0])
def test_apps_of_any_weights_end_in_the_reference(light: float) -> None:
    # The sum of 1e12 and 1e-30 is 1e12: when the heavy app ends, nothing of the other's weight is left in it.
    work, cap, weight = np.array([[10.0], [10.0], [20.0]]), np.full((3, 1), 4.0), np.array([1e12, light, light])
    got, finish = fluid.run(work, cap, weight, 2.0)
    assert got == pytest.approx(work[:, 0])
    assert finish == pytest.approx([5.0, 15.0, 20.0])


@pytest.mark.parametrize("seed", seeds(10, 200))
def test_ends_before_an_app_is_full_are_to_the_last_bit_those_of_the_heap(
    seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Hundreds of apps, odd weights, some of several phases; to the end, and to a time before it. The heap has few of them."""
    rng = np.random.default_rng(seed)
    n, phases = int(rng.integers(150, 300)), int(rng.integers(1, 3))
    work = 10 ** rng.uniform(0, 4, (n, phases))
    work[rng.random(n) < 0.95, 1:] = 0.0
    work[: n // 3, 0] = work[0, 0]
    cap = rng.choice([1.0, 2.0, 8.0], (n, phases)) * (1.0 if seed % 2 else 1.0 - 1e-16)
    weight = np.ones(n) if seed % 3 else rng.choice([0.37, 1 / 3, 1.0, 7.0, 1e-13], n)
    in_heaps = list[int]()

    class Counted(course.Course):
        def __init__(self, work: Float, *others: Any) -> None:
            in_heaps.append(len(work))
            super().__init__(work, *others)

    monkeypatch.setattr(fluid, "Course", Counted)
    for seconds in (np.inf, *(10 ** rng.uniform(2, 4, 2)).tolist()):
        got, finish = fluid.run(work, cap, weight, 32.0, seconds)
        level = float((fluid.fill(weight, cap[:, 0], 32.0) / weight).max())
        whole = course.Course(work, cap, weight, np.maximum(work * fluid.TINY, fluid.TINY), 32.0, level)
        whole.go_on(seconds)
        assert (finish == whole.finish).all()
        assert (got == whole.got()).all()
    if phases == 1 and seed % 3:
        assert max(in_heaps) < 150
