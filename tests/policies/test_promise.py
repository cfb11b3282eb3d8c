"""Promised finishes: kept where they can be, few late where not, and the same at every scale."""

from __future__ import annotations

from dataclasses import replace
from itertools import combinations

import numpy as np
import pytest

from themis.policies.planning.promise import Claims, least_factor, promised


def claims(
    since: list[float], fair: list[float], left: list[float], gpus: list[int] | None = None, capacity: int = 1
) -> Claims:
    return Claims(
        since=np.array(since),
        fair=np.array(fair),
        left=np.array(left),
        gpus=np.array(gpus or [1] * len(since)),
        capacity=capacity,
    )


def some(seed: int, jobs: int = 60, load: float = 1.0) -> Claims:
    rng = np.random.default_rng(seed)
    alone = np.exp(rng.normal(8.0, 1.0, jobs))
    left = alone * rng.uniform(0.1, 1.0, jobs)
    return Claims(
        since=rng.uniform(0, 2.0, jobs) * alone,
        fair=alone * 3.0,
        left=left * load,
        gpus=rng.choice([1, 1, 2, 4], jobs),
        capacity=32,
    )


def can_be_kept(c: Claims, due: np.ndarray) -> bool:
    """Of one machine of all GPUs: checked at every finish, not in the order of a sort."""
    return bool((c.left <= due + 1e-3).all()) and all(
        float(c.work[due <= at].sum()) <= c.capacity * at * (1 + 1e-6) + 1e-3 for at in due
    )


def test_fair_finishes_are_promised_where_all_can_be_kept() -> None:
    easy = claims([0.0, 10.0], [300.0, 400.0], [100.0, 150.0])
    assert least_factor(easy) <= 1.0
    assert promised(easy, 1.0).tolist() == [300.0, 390.0]


def test_the_least_factor_by_hand() -> None:
    """One GPU, two jobs of 100 s with fair finishes in 120 and 150 s: 200 s of work fit before 4/3 of the later."""
    assert least_factor(claims([0.0, 0.0], [120.0, 150.0], [100.0, 100.0])) == pytest.approx(200 / 150)
    # Nobody ends sooner than it would alone, however many GPUs there are.
    assert least_factor(claims([500.0], [100.0], [100.0], capacity=8)) == pytest.approx(6.0)


def test_who_has_most_work_is_late_and_the_others_are_not() -> None:
    """Finishes in 100, 200 and 210 s, work of 90, 150 and 60 s: without the second all others are in time."""
    due = promised(claims([0.0] * 3, [100.0, 200.0, 210.0], [90.0, 150.0, 60.0]), 2.0)
    assert due[[0, 2]].tolist() == [100.0, 210.0]
    assert due[1] > 200.0


@pytest.mark.parametrize("seed", range(8))
@pytest.mark.parametrize("patience", [1.0, 2.0])
def test_all_promises_together_can_be_kept(seed: int, patience: float) -> None:
    crowded = some(seed, load=3.0)
    factor = least_factor(crowded)
    assert factor > 1.0
    due = promised(crowded, patience)
    assert can_be_kept(crowded, due)
    assert (due <= crowded.within(patience * factor) + 1e-6).all()
    assert not can_be_kept(crowded, crowded.within(0.999 * factor))


@pytest.mark.parametrize("seed", range(12))
def test_as_few_are_late_as_can_be(seed: int) -> None:
    """Moore and Hodgson's rule against trying all sets, where whoever is late may end at any time."""
    rng = np.random.default_rng(seed)
    few = claims([0.0] * 7, rng.uniform(50, 400, 7).tolist(), rng.uniform(10, 45, 7).tolist())
    few = replace(few, left=np.minimum(few.left * rng.uniform(1, 4), few.fair))
    due = promised(few, 1000.0)
    late = int((due > few.within(1.0) + 1e-6).sum())

    def kept(some: tuple[int, ...]) -> bool:
        at = np.array(some, dtype=np.int64)
        return can_be_kept(
            replace(few, since=few.since[at], fair=few.fair[at], left=few.left[at], gpus=few.gpus[at]), few.fair[at]
        )

    most = max(size for size in range(8) if any(kept(s) for s in combinations(range(7), size)))
    assert late == 7 - most


def test_promises_do_not_hang_on_scale() -> None:
    """Jobs five times longer, or four times the GPUs and jobs, are promised the same in their own measure."""
    here = some(3, load=3.0)
    due = promised(here, 1.0)
    longer = replace(here, since=5 * here.since, fair=5 * here.fair, left=5 * here.left)
    assert promised(longer, 1.0) == pytest.approx(5 * due)
    assert least_factor(replace(here, gpus=4 * here.gpus, capacity=4 * here.capacity)) == pytest.approx(
        least_factor(here)
    )


def test_nobody_is_promised_nothing() -> None:
    assert len(promised(claims([], [], []), 1.0)) == 0
