"""Worst rho first by hand."""

from __future__ import annotations

import pytest
from policy_cases import dealt

from themis.fairness.finish_time import FinishTime
from themis.policies.greedy_finish_time import GreedyFinishTime
from themis.testing.builders import app, job, machines, snapshot_of


def test_the_worst_off_app_takes_its_whole_demand() -> None:
    # Four GPUs, two apps. a: T_id = 400 / 4 * 2 = 200 s; left = a lease of 600 s, then 400 s on its worst gang, one
    # GPU: rho = (100 + 1000) / 200 = 5.5. b: T_id = 2000 s, rho = (100 + 600 + 4000) / 2000 = 2.35.
    s = snapshot_of(machines(4), [app("b", [job(4000.0, (1, 4))]), app("a", [job(400.0, (1, 4))])], now=100.0)
    assert FinishTime(s).rho.tolist() == pytest.approx([2.35, 5.5])
    assert dealt(GreedyFinishTime(), s) == [0, 4]


def test_app_that_holds_enough_to_be_fair_waits() -> None:
    # As above, but a holds two GPUs for good: rho = (100 + (400 - 200) / 2) / 200 = 1.
    apps = [app("b", [job(4000.0, (1, 4))]), app("a", [job(400.0, 2), job(1.0)])]
    s = snapshot_of(machines(4), apps, held=[(1, (0, 1), 700.0)], now=100.0)
    assert FinishTime(s).rho[1] < 1.1
    assert dealt(GreedyFinishTime(), s) == [2, 0]
