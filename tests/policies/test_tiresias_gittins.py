"""The Gittins index by hand."""

from __future__ import annotations

import numpy as np
import pytest
from policy_cases import after, dealt

from themis.core import take_snapshot as snapshots
from themis.core.app_lifecycle import finish_app
from themis.policies.tiresias_gittins import TiresiasGittins, gittins
from themis.testing.builders import app, job, machines, snapshot_of, state_at

FINISHED = [100.0, 100.0, 100.0, 1000.0]


@pytest.mark.parametrize(
    ("attained", "index"),
    [
        (0, 3 / (3 * 100 + 1 * 100)),  # for D = 100 three of four end; D = 1000 would give 4 / 1300
        (100, 1 / 900),  # only the long one took more
        (900, 1 / 100),
        (1000, 0),
    ],
)
def test_index_is_the_best_ratio_of_chance_to_cost(attained: float, index: float) -> None:
    assert gittins(attained, np.array(FINISHED)) == pytest.approx(index)


def test_app_about_to_end_goes_before_a_fresh_one_and_that_before_one_that_turned_out_long() -> None:
    apps = [app(n, [job(9000.0)], float(i)) for i, n in enumerate("abc")]
    s = after(snapshot_of(machines(1), apps, now=900.0), app_attained=[100, 0, 900], finished_service=FINISHED)
    assert dealt(TiresiasGittins(), s) == [0, 0, 1]
    two = after(snapshot_of(machines(1, 1), apps, now=900.0), app_attained=[100, 0, 900], finished_service=FINISHED)
    assert dealt(TiresiasGittins(), two) == [0, 1, 1]


def test_without_a_past_the_least_attained_service_goes_first() -> None:
    apps = [app(n, [job(9000.0)], float(i)) for i, n in enumerate("abc")]
    s = after(snapshot_of(machines(1), apps, now=900.0), app_attained=[5, 3, 4])
    assert len(s.finished_service) == 0
    assert dealt(TiresiasGittins(), s) == [0, 1, 0]


def test_the_past_is_what_ended_apps_took() -> None:
    apps = [app("a", [job(900.0)]), app("b", [job(900.0)])]
    state = state_at(machines(2), apps, held=[(0, (0,), 600.0)], now=300.0)
    finish_app(state, 0, "completed")
    state.jobs.status[0] = 3
    assert snapshots.take(state).finished_service.tolist() == [300.0]
