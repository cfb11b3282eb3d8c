"""Shortest remaining time and shortest remaining service by hand."""

from __future__ import annotations

from policy_cases import dealt

from themis.model.workload import Halving, Rung
from themis.policies.srsf import Srsf
from themis.policies.srtf import Srtf
from themis.testing.builders import app, job, machines, snapshot_of


def test_wide_app_is_short_in_time_and_narrow_app_in_service() -> None:
    # With 4 GPUs a needs 1200 / 4 = 300 s of 1200 GPU-seconds, b 400 s of 400.
    s = snapshot_of(machines(4), [app("a", [job(1200.0, (1, 4))]), app("b", [job(400.0)])])
    assert dealt(Srtf(), s) == [4, 0]
    assert dealt(Srsf(), s) == [3, 1]


def test_time_left_is_that_of_places_on_offer() -> None:
    # Together a would need 1500 / 4 = 375 s; across racks 1.6 times as long, or on half as many GPUs twice as long.
    apps = [app("a", [job(1500.0, 4, model="chatty")]), app("b", [job(400.0)])]
    assert dealt(Srtf(), snapshot_of(machines(4), apps)) == [4, 0]
    assert dealt(Srtf(), snapshot_of(machines(2, 2, per_rack=1), apps)) == [0, 1]


def test_rungs_to_come_count_as_service_left() -> None:
    # a: 100 s on 2 jobs now, then one more of 700: 900 GPU-seconds; b: 800.
    sweep = app("a", [job(800.0), job(800.0)], tuner=Halving(rungs=(Rung(jobs=2, steps=100), Rung(jobs=1, steps=700))))
    s = snapshot_of(machines(1), [sweep, app("b", [job(800.0)])])
    assert dealt(Srsf(), s) == [0, 1]
    # One GPU each: a's sweep takes 900 s, b's job 800.
    assert dealt(Srtf(), s) == [0, 1]
