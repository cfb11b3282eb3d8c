"""Taking a snapshot is reading: neither the state nor what happens next depends on how often somebody looks."""

from __future__ import annotations

import pickle
from dataclasses import fields, replace

import pytest

from themis.core import take_snapshot as snapshots
from themis.core.scheduler import Scheduler
from themis.core.state import State
from themis.core.tables import Growing, Table, Unended
from themis.model.events import Command, Event
from themis.model.units import Seconds
from themis.policies.api import make_policy
from themis.sim.runner import Simulation
from themis.testing.builders import app, job, machines, random_simulation, state_at

NEEDS = frozenset({"ahead", "reference"})


def frozen(state: State) -> bytes:
    """Everything that the state holds, private attributes too."""
    held: dict[str, object] = {}
    for name, value in vars(state).items():
        if isinstance(value, Table):
            held[name] = value.size, value.f, value.i
        elif not isinstance(value, memoryview | Growing | Unended) and name not in (
            "_columns",
            "_best_gangs",
            "_open",
            "_taken",
            "_ends",
            "_lent",
            "leased_to",
            "occupied_by",
        ):  # other views of columns that are fields, and what is computed from columns
            held[name] = value
    return pickle.dumps(held)


def logged(sim: Simulation) -> list[str]:
    out: list[str] = []
    sim.run(lambda time, record: out.append(f"{time!r} {record!r}"))
    return out


@pytest.mark.parametrize("policy", ["themis", "fair_finish", "shockwave"])
def test_snapshots_leave_the_state_as_it_is(policy: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """At every step of a run with bags, sweeps and failures, and the run's log is that of a run that nobody looks at."""
    made = make_policy(policy)
    untouched = random_simulation(made, 0, name=policy)
    untouched = replace(untouched, settings=replace(untouched.settings, validate=False))
    log = logged(untouched)
    step = Scheduler.step
    looked: list[Event] = []

    def looking(self: Scheduler, event: Event, now: Seconds) -> list[Command]:
        out = step(self, event, now)
        if len(looked) % 5 == 0 and len(self.state.machines):
            before = frozen(self.state)
            snapshots.take(self.state, needs=NEEDS)
            snapshots.take(self.state.at(self.state.now + 60.0), needs=NEEDS)
            assert frozen(self.state) == before
        looked.append(event)
        return out

    monkeypatch.setattr(Scheduler, "step", looking)
    assert logged(replace(untouched, policy=make_policy(policy))) == log
    assert len(looked) > 200


def test_a_bag_whose_jobs_changed_is_forecast_without_being_written_down() -> None:
    state = state_at(machines(2), [app("bag", [job(100.0), job(300.0)])], held=[(0, (0,), 500.0)])
    first = snapshots.take(state).app_left_held
    assert state.apps.stale[0] == 1
    snapshot, renewed = snapshots.take_renewing(state)
    assert snapshot.app_left_held.tolist() == first.tolist() == [400.0]
    assert renewed == {0: 400.0}


def test_a_look_ahead_moves_no_clock() -> None:
    state = state_at(machines(2), [app("a", [job(100.0)])])
    before = frozen(state)
    later = state.at(50.0)
    assert (later.now, later.capacity_integral, state.now) == (50.0, 100.0, 0.0)
    assert frozen(state) == before
    assert {f.name for f in fields(later)} == {f.name for f in fields(state)}
