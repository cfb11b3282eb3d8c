"""Round-by-round filtering, with the golden toy that the Shockwave paper tells about it (its Table 1, Figures 1 and 15)."""

from __future__ import annotations

import numpy as np
import pytest

from themis.fairness.filtering import bidder_count, worst_first

SERIAL = {"A": 12.0, "B": 8.0, "C": 6.0}
DEMAND = {"A": 3, "B": 2, "C": 2}
T_ID = {"A": 9.0, "B": 6.0, "C": 4.5}
TIES = {"B": 0.0, "A": 1.0, "C": 2.0}


def toy(share_that_bids: float) -> dict[str, int]:
    """4 GPUs, unit rounds, linear speed-up: the filtered jobs take GPUs in turn, spare ones go to the shortest others."""
    left, attained, finish = dict(SERIAL), dict.fromkeys(SERIAL, 0.0), {}
    time = 0
    while left:
        jobs = sorted(left)
        key = np.array([time / attained[j] * 4 / len(jobs) if attained[j] else np.inf if time else 1.0 for j in jobs])
        order = worst_first(key, np.array([TIES[j] for j in jobs]), np.arange(len(jobs)))
        ranked = [jobs[i] for i in order]
        # In the toy the number that bids is fixed by the three jobs that there were.
        filtered = ranked[: round(3 * share_that_bids)]
        others = sorted((j for j in ranked if j not in filtered), key=lambda j: left[j])
        gpus = dict.fromkeys(jobs, 0)
        spare = 4
        while spare and any(gpus[j] < DEMAND[j] for j in filtered):
            for j in filtered:
                if spare and gpus[j] < DEMAND[j]:
                    gpus[j], spare = gpus[j] + 1, spare - 1
        for j in others:
            gpus[j] = min(DEMAND[j], spare)
            spare -= gpus[j]
        time += 1
        for j in jobs:
            attained[j] += gpus[j]
            left[j] -= gpus[j]
            if left[j] <= 1e-9:
                finish[j] = time
                del left[j]
    return finish


@pytest.mark.parametrize(
    ("share", "expected", "worst"), [(1 / 3, (7, 6, 4), 1.0), (2 / 3, (7, 5, 5), 1.1), (1.0, (7, 6, 5), 1.1)]
)
def test_filter_toy_of_shockwave_table_1(share: float, expected: tuple[int, int, int], worst: float) -> None:
    finish = toy(share)
    assert tuple(finish[j] for j in "ABC") == expected
    assert max(finish[j] / T_ID[j] for j in "ABC") == pytest.approx(worst, abs=0.05)


@pytest.mark.parametrize(
    ("apps", "f", "bid"), [(10, 0.8, 2), (5, 0.8, 1), (11, 0.8, 3), (7, 1.0, 1), (7, 0.0, 7), (1, 0.5, 1)]
)
def test_the_worst_one_minus_f_of_the_apps_bid(apps: int, f: float, bid: int) -> None:
    assert bidder_count(np.ones(apps), f) == bid


def test_equal_rho_goes_by_arrival_then_id() -> None:
    order = worst_first(np.array([1.0, 2.0, 1.0, 1.0]), np.array([5.0, 9.0, 3.0, 5.0]), np.array([7, 8, 9, 4]))
    assert order.tolist() == [1, 2, 3, 0]


def test_apps_without_gpus_come_first_in_order_of_their_own_rho() -> None:
    served = np.array([2, 0, 0, 1])
    assert worst_first(np.array([9.0, 1.0, 2.0, 3.0]), np.zeros(4), np.arange(4), served).tolist() == [2, 1, 3, 0]
