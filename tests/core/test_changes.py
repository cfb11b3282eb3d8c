"""Settings, policy and machines that change in mid-run: what held goes on, and the log folds to the same state."""

from __future__ import annotations

import os
from dataclasses import replace

import pytest

from themis.core.checkpoint import save
from themis.core.scheduler import Scheduler
from themis.model.cluster import Machine
from themis.model.events import (
    AppFinished,
    JobEnded,
    MachineJoined,
    MachineResized,
    SettingsChanged,
    UserWeightsSet,
)
from themis.policies.api import logged_params, make_policy, policy_names
from themis.report.idle import IdleFold
from themis.report.metrics import Fold
from themis.report.outlook import Followed
from themis.sim.replay import replay_records
from themis.sim.runner import Record, Simulation
from themis.testing.builders import leased_twice, random_simulation

PAIRS = int(os.environ.get("THEMIS_POLICY_CHANGES", "1"))
"""By how many places the list of policies is turned: each policy is followed by so many others in turn."""


def to_policy(name: str, **settings: float) -> SettingsChanged:
    """A change to this policy."""
    return SettingsChanged(
        user="admin",
        values={"policy": name, **settings},
        settings=settings,
        policy=name,
        params=logged_params(make_policy(name)),
    )


def run(simulation: Simulation) -> tuple[Scheduler, list[tuple[float, Record]]]:
    log: list[tuple[float, Record]] = []
    return simulation.run(lambda time, record: log.append((time, record))), log


def sound(simulation: Simulation, log: list[tuple[float, Record]], core: Scheduler) -> None:
    """Every app ended, no GPU had two jobs, and the log replays to the same state."""
    finished = sorted(r.app for _, r in log if isinstance(r, AppFinished))
    assert finished == list(range(len(simulation.workload.apps)))
    assert len([r for _, r in log if isinstance(r, JobEnded)]) == simulation.workload.jobs
    assert not leased_twice(log)
    done = replay_records(log, book=simulation.book)
    assert done.difference is None, str(done.difference)
    assert save(done.core)["state"] == save(core)["state"]
    measured, idle, followed = Fold(), IdleFold(), Followed()
    for time, record in log:
        for fold in (measured, idle, followed):
            fold.add(time, record)
    in_service = core.state.capacity
    assert (measured.levels.in_service, idle.service, followed.outlook.capacity) == (in_service,) * 3
    assert idle.free.total() <= in_service
    assert measured.result().policy.count("->") == 3


@pytest.mark.slow
@pytest.mark.parametrize("turn", range(1, 1 + PAIRS))
@pytest.mark.parametrize("name", policy_names())
def test_any_policy_may_follow_any_other_in_mid_run(name: str, turn: int) -> None:
    """With another lease, and machines that shrink, grow, go and come, in between."""
    names = policy_names()
    n = names.index(name)
    simulation = random_simulation(make_policy(name), seed=n % 5, name=name)
    other, third = names[(n + turn) % len(names)], names[(n + 7 * turn) % len(names)]
    size = simulation.cluster.machines[0].gpus
    changes: list[tuple[float, SettingsChanged | MachineResized | MachineJoined | UserWeightsSet]] = [
        (700.5, to_policy(other, lease_s=240.0)),
        (1100.0, MachineResized(machine=0, gpus=size + 3)),
        (1500.0, MachineJoined(machine=Machine(name="later", gpus=4))),
        (1700.0, MachineResized(machine=0, gpus=max(size - 1, 1))),
        (1900.25, to_policy(third, lease_s=600.0, tick_s=30.0)),
        (1900.25, UserWeightsSet(users=(("u1", 0.37), ("u2", 3.0)))),
        (2500.0, MachineResized(machine=1, gpus=0)),
        (3300.0, MachineResized(machine=1, gpus=simulation.cluster.machines[1].gpus)),
        (4000.0, to_policy(name)),
    ]
    simulation = replace(simulation, changes=changes)
    core, log = run(simulation)
    sound(simulation, log, core)
