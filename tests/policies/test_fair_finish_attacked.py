"""Fair finish where users flood, machines fail, speeds change, apps are held, and the core is saved and loaded."""

from __future__ import annotations

import json
from dataclasses import replace

import numpy as np
import pytest

from themis.core import reference
from themis.core.checkpoint import load, save
from themis.core.scheduler import Scheduler
from themis.model.events import (
    Allocated,
    AppCancelled,
    AppHeld,
    AppResumed,
    AppSubmitted,
    Event,
    MachineFailed,
    MachineJoined,
    MachineReturned,
    SpeedMeasured,
)
from themis.model.settings import Settings
from themis.model.speed import Curve, ProfileBook, linear
from themis.model.units import Seconds
from themis.model.workload import App, Workload
from themis.policies.api import Workbench, make_policy
from themis.policies.fair_finish import FairFinish
from themis.sim.runner import Record, Simulation, _Run
from themis.testing.builders import BOOK, app, job, machines, random_simulation

SETTINGS = Settings(lease_s=60.0, tick_s=1.0, step_s=15.0, container_s=0.0, between="users")
ONLY_FAST = replace(linear("only_fast", 1.0), curves={("fast", 0): Curve(gpus=(1,), rate=(1.0,))})
OWN_BOOK = ProfileBook({**BOOK.profiles, "only_fast": ONLY_FAST})


def _flood(gpus: int, rigid: bool) -> list[App]:
    """One long app of ada's, and 120 short ones of bob's that alone would fill the cluster for longer."""
    wide = gpus if rigid else (1, gpus)
    long = app("long", [job(3000.0 * gpus, wide)], user="ada")
    return [long, *(app(f"s{i}", [job(95.0 * gpus, (1, gpus))], arrival=90.0 * i, user="bob") for i in range(120))]


@pytest.mark.parametrize("rigid", [False, True])
def test_a_user_who_floods_does_not_delay_another_users_long_app(rigid: bool) -> None:
    """ada's app and all of bob's have one share each: shortest first lets it wait for all of them."""
    end = {}
    for policy in ("srsf", "fair_finish"):
        core = Simulation(
            workload=Workload(name="flood", apps=tuple(_flood(4, rigid))),
            cluster=machines(4),
            book=BOOK,
            policy_name=policy,
            policy=make_policy(policy),
            settings=SETTINGS,
        ).run()
        end[policy] = float(core.state.apps.ended[0])
    due = float(reference.finishes(core.state, np.arange(1))[0])
    assert due <= 6000.0 + 1.0, "half of the cluster is its share at worst"
    assert end["srsf"] > 1.5 * due
    assert end["fair_finish"] <= due + 2 * SETTINGS.lease_s


def _two_types(book: ProfileBook = OWN_BOOK, second: str = "slow") -> Scheduler:
    core = Scheduler(book, SETTINGS, FairFinish().pace, FairFinish.needs)
    for machine, kind in zip(machines(2, 2).machines, ("fast", second)):
        core.step(MachineJoined(machine=replace(machine, gpu_type=kind)), 0.0)
    return core


def _due(core: Scheduler, a: int = 0) -> float:
    return float(reference.finishes(core.state, np.array([a]))[0])


def test_work_done_in_the_reference_stays_done_when_speeds_change() -> None:
    """Two GPUs of mean speed 2 do 6000 of 8000 s in 1500 s; without the fast machine the other 2000 s are 1000 s."""
    core = _two_types()
    core.step(AppSubmitted(app=app("a", [job(8000.0, (1, 2), model="two_speeds")]), weight=1.0), 0.0)
    assert _due(core) == pytest.approx(2000.0)
    core.step(MachineFailed(machine=0), 1500.0)
    assert _due(core) == pytest.approx(2500.0)
    core.step(MachineReturned(machine=0), 1600.0)
    assert _due(core) == pytest.approx(1600.0 + 1800.0 / 4)


def test_a_speed_that_is_measured_counts_from_then_on() -> None:
    core = _two_types(second="fast")
    core.step(AppSubmitted(app=app("a", [job(8000.0, (1, 4))]), weight=1.0), 0.0)
    assert _due(core) == pytest.approx(2000.0)
    measured = SpeedMeasured(model="flat", batch=0, gpu_type="fast", gpus=1, locality=0, steps_per_s=0.5)
    core.step(measured, 1000.0)
    speed = float(core.state.config_speed[core.state.apps.config[0]])
    assert speed < 0.99
    assert _due(core) == pytest.approx(1000.0 + 4000.0 / (4 * speed))


def test_an_app_whose_gpus_are_away_stands_still_and_leaves_its_share_to_others() -> None:
    core = _two_types()
    core.step(AppSubmitted(app=app("a", [job(4000.0, (1, 4), model="only_fast")]), weight=1.0), 0.0)
    core.step(AppSubmitted(app=app("b", [job(4000.0, (1, 4))], user="other"), weight=1.0), 0.0)
    core.step(MachineFailed(machine=0), 0.0)
    assert _due(core, 0) == np.inf
    assert _due(core, 1) == pytest.approx(2000.0)
    core.step(MachineReturned(machine=0), 1000.0)
    # a : 4000 s at 1/2 of 2 GPUs each; b : the other 2000 s.
    assert _due(core, 1) == pytest.approx(2000.0)
    assert np.isfinite(_due(core, 0))


def test_a_held_app_stands_still_and_a_cancelled_one_leaves() -> None:
    core = _two_types(second="fast")
    for name in "abc":
        core.step(AppSubmitted(app=app(name, [job(1200.0, (1, 4))], user=name), weight=1.0), 0.0)
    assert _due(core) == pytest.approx(900.0)
    core.step(AppHeld(app=1), 300.0)  # 400 s done of each
    assert _due(core) == pytest.approx(300.0 + 2 * 800.0 / 4)
    core.step(AppCancelled(app=2), 500.0)  # 800 s done of a and c
    assert _due(core) == pytest.approx(600.0)
    core.step(AppResumed(app=1), 550.0)  # 200 s left of a, 800 s of b
    assert _due(core) == pytest.approx(650.0)
    assert _due(core, 1) == pytest.approx(550.0 + 100.0 + 600.0 / 4)


class Reloading(_Run):
    """The simulator, whose core is saved as JSON and loaded again after every 23rd event."""

    count = loaded = 0

    def feed(self, event: Event, now: Seconds) -> None:
        self.count += 1
        if self.count % 23 == 0 and self.core.solving is None and not isinstance(event, Allocated):
            sim = self.sim
            fresh = Scheduler(sim.book, sim.settings, sim.policy.pace, sim.policy.needs)
            self.core, self.loaded = load(json.loads(json.dumps(save(self.core))), fresh), self.loaded + 1
        super().feed(event, now)


@pytest.mark.parametrize("between", ["apps", "users", "groups"])
def test_a_run_that_is_saved_and_loaded_all_the_time_has_the_same_log(between: str) -> None:
    sim = random_simulation(FairFinish(), 1, name="fair_finish", mixed=True)
    sim = replace(sim, settings=replace(sim.settings, between=between))
    logs: list[list[tuple[float, Record]]] = [[], []]
    sim.run(lambda time, record: logs[0].append((time, record)))
    run = Reloading(
        sim, lambda time, record: logs[1].append((time, record)), lambda *_: None, Workbench(), lambda: False
    )
    run.run()
    assert run.loaded > 10
    assert len(logs[0]) == len(logs[1])
    for (t, one), (u, other) in zip(*logs):
        assert (t, type(one)) == (u, type(other))
        assert repr(one) == repr(other)
