"""The column job_seconds: each regime at its own speed, gangs on the narrowest place."""

from __future__ import annotations

import numpy as np
import pytest

from themis.core import take_snapshot
from themis.core.scheduler import Scheduler
from themis.model.cluster import in_racks
from themis.model.events import AppSubmitted, MachineJoined
from themis.model.settings import Settings
from themis.model.speed import ANY_TYPE, Curve, Profile, ProfileBook
from themis.model.workload import App, Job, Regime
from themis.policies.api import Cadence

PROFILE = Profile(
    name="m",
    curves={(ANY_TYPE, 1): Curve(gpus=(1, 4), rate=(1.0, 2.0)), (ANY_TYPE, 2): Curve(gpus=(1, 4), rate=(1.0, 4.0))},
    slowdown=(1.0, 1.0, 1.5, 2.0),
)


def test_time_left_counts_each_regime_at_its_own_curve_and_a_spread_gang_at_its_slowdown() -> None:
    core = Scheduler(ProfileBook.of([PROFILE]), Settings(), Cadence(), frozenset())
    for machine in in_racks("pair", [(2, 2, 2)]).machines:
        core.step(MachineJoined(machine=machine), 0.0)
    job = Job(
        name="j",
        model="m",
        regimes=(Regime(steps=100.0, batch=1), Regime(steps=200.0, batch=2)),
        gpus_min=1,
        gpus_max=4,
    )
    core.step(AppSubmitted(app=App(name="app", user="u", arrival=0.0, jobs=(job,))), 0.0)
    seconds = take_snapshot.take(core.state, needs=frozenset({"job_seconds"})).job_seconds
    assert seconds is not None
    assert seconds.shape == (1, 1, 5)
    assert np.isinf(seconds[0, 0, 0])
    assert seconds[0, 0, 1] == pytest.approx(300.0)
    assert seconds[0, 0, 2] == pytest.approx(100 / np.sqrt(2) + 200 / 2)  # on logarithmic axes, on one machine
    assert seconds[0, 0, 4] == pytest.approx(1.5 * (100 / 2 + 200 / 4))
