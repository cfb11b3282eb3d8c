"""A saved core goes on exactly as the core itself would."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import pytest

from themis.core.checkpoint import FORMAT, load, save
from themis.core.packed import pack, unpack
from themis.core.retire import is_pruned, prune
from themis.core.scheduler import Scheduler
from themis.errors import InputError, InvariantBroken
from themis.model.events import Allocated, CollectBids, Event, Grant, Solve, SpeedMeasured, Wake
from themis.model.settings import Settings
from themis.model.units import Seconds
from themis.policies.api import Workbench, forecaster_of, make_policy
from themis.sim.runner import Record, Simulation, _Run
from themis.testing.builders import random_simulation

POLICIES = ["themis", "isolated", "max_min_fairness", "tiresias", "gandiva_packing"]


class Saving(_Run):
    """The simulator, whose core is saved and loaded again now and then, as if the service had been started anew."""

    def __init__(self, simulation: Simulation, log: list[tuple[float, Record]], every: int, seed: int = 0) -> None:
        super().__init__(
            simulation, lambda time, record: log.append((time, record)), lambda *_: None, Workbench(), lambda: False
        )
        self.every, self.count, self.loaded, self.retired = every, seed, 0, 0

    def feed(self, event: Event, now: Seconds) -> None:
        self.count += 1
        if (
            self.every
            and self.count % self.every == 0
            and self.core.solving is None
            and not isinstance(event, Allocated)
        ):
            # Apps that are over long enough are forgotten but for their names: nothing that is decided depends on them.
            self.retired += len(prune(self.core.state, self.core.state.now - 500.0))
            text = json.dumps(save(self.core))
            core = load(json.loads(text), fresh(self.sim))
            assert save(core) == json.loads(text)
            assert_alike(core, self.core)
            self.core, self.loaded = core, self.loaded + 1
        if self.count % 40 == 0:
            # What jobs measure of themselves survives too.
            rate = 1.0 + (self.count % 7) / 10
            measured = SpeedMeasured(model="chatty", batch=0, gpu_type="gpu", gpus=2, locality=2, steps_per_s=rate)
            super().feed(measured, now)
        super().feed(event, now)


def assert_alike(one: Scheduler, other: Scheduler) -> None:
    """Nothing of the state is missing: every attribute is there, with the same value."""
    assert vars(one.state).keys() == vars(other.state).keys()
    for name, value in vars(other.state).items():
        if name[0] != "_" and name not in ("book", "settings", "forecaster", "outlines"):
            assert_equal(getattr(one.state, name), value, name)


def assert_equal(one: Any, other: Any, name: str) -> None:
    if isinstance(other, np.ndarray):
        assert one.dtype == other.dtype, name
        assert np.array_equal(one, other, equal_nan=one.dtype.kind == "f"), name
    elif hasattr(other, "floats"):
        for column in (*other.floats, *other.ints):
            assert_equal(getattr(one, column)[: one.size], getattr(other, column)[: other.size], f"{name}.{column}")
    elif hasattr(other, "__dict__") and not isinstance(other, int | float):
        for key, value in vars(other).items():
            assert_equal(getattr(one, key), value, f"{name}.{key}")
    elif hasattr(other, "__dataclass_fields__"):
        for key in other.__dataclass_fields__:
            assert_equal(getattr(one, key), getattr(other, key), f"{name}.{key}")
    else:
        assert one == other, name


@pytest.mark.parametrize("policy", POLICIES)
@pytest.mark.parametrize("seed", range(2))
def test_a_run_whose_core_is_saved_and_loaded_all_the_time_has_the_log_of_one_that_is_not(
    policy: str, seed: int
) -> None:
    logs: list[list[tuple[float, Record]]] = []
    for every in (0, 23):
        log: list[tuple[float, Record]] = []
        run = Saving(random_simulation(make_policy(policy), seed, name=policy), log, every, seed)
        run.run()
        logs.append(log)
        assert run.loaded > 10 or not every
        assert run.retired > 0 or not every
    assert len(logs[0]) == len(logs[1])
    for (t, one), (u, other) in zip(*logs):
        assert (t, type(one)) == (u, type(other))
        assert isinstance(one, Allocated) or one == other


SIMULATION = random_simulation(make_policy("themis"), 1)


def fresh(sim: Simulation) -> Scheduler:
    return Scheduler(sim.book, sim.settings, sim.policy.pace, sim.policy.needs, forecaster_of(sim.policy))


def test_retired_apps_keep_their_names_and_are_retired_once() -> None:
    core = some_core()
    s = core.state
    before = [(app.name, app.user, [job.name for job in app.jobs]) for app in core.state.app_specs]
    jobs = prune(core.state, np.inf)
    over = [
        a for a in range(s.apps.size) if not s.apps.active[a] and s.occupied.keys().isdisjoint(s.app_jobs(a).tolist())
    ]
    assert len(over) > 3
    assert jobs == [j for a in over for j in s.app_jobs(a).tolist()]
    assert [(app.name, app.user, [job.name for job in app.jobs]) for app in core.state.app_specs] == before
    assert [a for a, app in enumerate(s.app_specs) if is_pruned(app)] == over
    assert prune(core.state, np.inf) == []
    assert s.retired_below == next((a for a in range(s.apps.size) if a not in over), s.apps.size)


def test_a_state_of_another_format_is_refused() -> None:
    with pytest.raises(InputError, match="has format 1, this Themis reads"):
        load(save(some_core()) | {"format": 1}, fresh(SIMULATION))


def test_accounts_of_rounds_are_stored_under_the_names_of_the_format() -> None:
    """States of versions that said ``promised`` and ``dealt`` are read, and such a version reads today's."""
    core = some_core()
    core.state.rounds.entitled, core.state.rounds.received = np.array([[30.0, 0.5]]), np.array([[20.0, 0.25]])
    saved = json.loads(json.dumps(save(core)))
    names = json.dumps(saved["rounds"])
    assert '"promised"' in names
    assert '"dealt"' in names
    assert "entitled" not in names
    assert "received" not in names
    rounds = load(saved, fresh(SIMULATION)).state.rounds
    assert rounds.entitled.tolist() == [[30.0, 0.5]]
    assert rounds.received.tolist() == [[20.0, 0.25]]


def some_core() -> Scheduler:
    run = Saving(SIMULATION, [], 0)
    run.run()
    return run.core


def test_columns_of_other_versions_are_passed_over_or_begin_with_their_default() -> None:
    core = some_core()
    saved = save(core)
    del saved["jobs"]["columns"]["order"]
    saved["jobs"]["columns"]["of_the_past"] = pack(np.zeros(core.state.jobs.size))
    saved["state"]["of_the_past"] = 3
    back = load(saved, fresh(SIMULATION))
    assert back.state.jobs.order[: back.state.jobs.size].tolist() == [0] * core.state.jobs.size
    assert not hasattr(back.state, "of_the_past")


def test_attributes_that_only_another_version_has_are_passed_over() -> None:
    saved = save(some_core())
    for owner in ("rounds", "curves", "leases", "scheduler"):
        saved[owner] = pack({**unpack(saved[owner]), "of_the_past": 3})
    back = load(saved, fresh(SIMULATION))
    for owner in (back.state.rounds, back.state.curves, back.leases, back):
        assert not hasattr(owner, "of_the_past")


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda d: d.update(format=FORMAT + 1), f"has format {FORMAT + 1}, this Themis reads {FORMAT}"),
        (lambda d: d.pop("jobs"), "is damaged"),
        (lambda d: d["state"].update(gpu_job=pack(np.zeros((1, 1, 1)))), "is damaged"),
        (lambda d: d["state"].update(gpu_job={"~array": ["<f8", [3], "!"]}), "is damaged"),
        (lambda d: d["state"].update(weight_in_system=7.0), "contradicts itself"),
    ],
)
def test_what_is_no_saved_core_is_refused_in_words(change: Any, words: str) -> None:
    core = some_core()
    saved = save(core)
    change(saved)
    with pytest.raises(InputError, match=words):
        load(saved, fresh(SIMULATION))


def test_values_come_back_as_they_were() -> None:
    grant = Grant(app=1, job=2, attempt=3, gpus=(4, 5), seat=0, until=float("inf"), locality=1, target=1 / 3, score=0.5)
    for value in (1, 1 / 3, float("-inf"), "x", None, True, (1, (2.5, "y")), {3: [1.0]}, {1.5, 2.5}, grant):
        again = unpack(json.loads(json.dumps(pack(value))))
        assert (again, type(again)) == (value, type(value))
    with pytest.raises(InvariantBroken, match="holds a object"):
        pack(object())


def test_events_that_drive_the_machinery_are_no_part_of_it() -> None:
    core = some_core()
    commands = load(save(core), fresh(SIMULATION)).step(Wake(), core.state.now)
    assert not any(isinstance(c, Solve | CollectBids) for c in commands)


def test_whole_numbers_of_seconds_are_times_like_others() -> None:
    """A lease of 60 and one of 60.0 seconds end at the same bytes, also after the record was read again."""
    assert repr(Settings(lease_s=60, tick_s=1, step_s=5)) == repr(Settings(lease_s=60.0, tick_s=1.0, step_s=5.0))
