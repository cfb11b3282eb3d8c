"""Settings, policy and machines that change in mid-run: what held goes on, and the log folds to the same state."""

from __future__ import annotations

import json
import os
from dataclasses import replace

import numpy as np
import pytest

from themis.core.app_lifecycle import add_app
from themis.core.checkpoint import load, save
from themis.core.offer import free_gpus
from themis.core.placed_gangs import Placed
from themis.core.scheduler import Scheduler
from themis.errors import ClusterError
from themis.model.cluster import Machine
from themis.model.events import (
    Allocated,
    AppFinished,
    JobEnded,
    JobStopped,
    MachineJoined,
    MachineResized,
    Revoke,
    SettingsChanged,
    UserWeightsSet,
)
from themis.model.units import Locality
from themis.policies.api import logged_params, make_policy, policy_names
from themis.report.idle import IdleFold
from themis.report.metrics import Fold
from themis.report.outlook import Followed
from themis.sim.replay import replay_records
from themis.sim.runner import Record, Simulation
from themis.testing.builders import (
    BOOK,
    NO_OVERHEAD,
    app,
    job,
    leased_twice,
    machines,
    random_simulation,
)

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


def small(*gpus: int, **more: object) -> Scheduler:
    """A scheduler with these machines, at time 0."""
    policy = make_policy("fifo")
    core = Scheduler(BOOK, NO_OVERHEAD, policy.pace, policy.needs)
    for machine in machines(*gpus).machines if gpus else ():
        core.step(MachineJoined(machine=replace(machine, **more)), 0.0)
    return core


def holding(core: Scheduler, gpus: tuple[int, ...]) -> int:
    """A job that holds these GPUs until 100."""
    a = add_app(core.state, app(f"a{core.state.apps.size}", [job(1000.0, len(gpus))]), 1.0)
    j = int(core.state.apps.first_job[a])
    core.leases.grant(Placed(job=j, gpus=gpus, seat=0, until=100.0))
    return j


def test_a_machine_that_shrinks_loses_its_last_gpus_and_has_them_again_when_it_grows() -> None:
    core = small(4, 2)
    first, last = holding(core, (0, 1)), holding(core, (2, 3))
    (revoked,) = [c for c in core.step(MachineResized(machine=0, gpus=3), 1.0) if isinstance(c, Revoke)]
    assert (revoked.job, revoked.cause) == (last, "moved")
    s = core.state
    assert (s.capacity, s.machine_size.tolist()) == (5.0, [3, 2])
    assert s.open_gpus().tolist() == [True, True, True, False, True, True]
    core.step(MachineResized(machine=0, gpus=6), 2.0)
    assert (s.capacity, s.gpus_of) == (8.0, [[0, 1, 2, 3, 6, 7], [4, 5]])
    assert s.machine_of[6] == 0
    # The gang that was preempted has not ended: its GPUs serve nobody else, though their machine has them again.
    assert np.flatnonzero(free_gpus(s, s.now)).tolist() == [4, 5, 6, 7]
    assert first in s.job_gpus


def test_gpus_that_come_are_wired_as_their_machine_is() -> None:
    whole, pairs = small(2, 1), small(3, 2, gpus_per_slot=2)
    for core in (whole, pairs):
        core.step(MachineResized(machine=0, gpus=5), 0.0)
    assert whole.state.gpu_slot.tolist() == [0, 0, 1, 0, 0, 0]
    assert pairs.state.gpu_slot.tolist() == [0, 0, 1, 2, 2, 1, 3]
    assert whole.state.locality((0, 4)) == Locality.SLOT


def test_a_saved_state_has_machines_settings_and_policy_as_they_changed() -> None:
    core = small(4, 2, 1)
    holding(core, (0, 1))
    for event in (
        MachineResized(machine=0, gpus=2),
        MachineResized(machine=1, gpus=5),
        MachineResized(machine=2, gpus=0),
        MachineResized(machine=0, gpus=3),
        to_policy("fair_finish", lease_s=240.0),
    ):
        core.step(event, 1.0)
    again = load(json.loads(json.dumps(save(core))), small())
    assert save(again) == save(core)
    assert again.settings.lease_s == 240.0
    assert again.state.gpus_of == core.state.gpus_of
    assert again.state.gpu_slot.tolist() == core.state.gpu_slot.tolist()
    assert again.state.policy == core.state.policy
    assert again.state.removed == {2}


def test_a_removed_machine_is_out_of_service_until_it_is_back() -> None:
    core = small(2, 2)
    j = holding(core, (2, 3))
    core.step(MachineResized(machine=1, gpus=0), 1.0)
    core.step(JobStopped(job=j, attempt=1, steps=1.0), 2.0)
    assert core.state.capacity == 2.0
    with pytest.raises(ClusterError, match="the cluster has 2"):
        core.state.check_fits(app("large", [job(1.0, 3)]))
    core.step(MachineResized(machine=1, gpus=1), 3.0)
    assert core.state.capacity == 3.0
    assert core.state.open_gpus().tolist() == [True, True, True, False]


def test_a_reference_that_begins_late_takes_up_what_each_app_received() -> None:
    core = small(4)
    holding(core, (0, 1))
    core.step(to_policy("fair_finish"), 50.0)
    s = core.state
    assert s.keeps_reference
    assert s.apps.shadow[0] == pytest.approx(100.0)
    assert s.apps.in_reference[0] == 1
    core.step(to_policy("fifo"), 60.0)
    assert not s.keeps_reference
    assert s.apps.in_reference[0] == 0


def test_old_promises_end_with_the_policy_that_made_them() -> None:
    policy = make_policy("max_min_fairness")
    simulation = random_simulation(policy, 1, name="max_min_fairness", failures=False)
    core, log = run(replace(simulation, changes=[(1000.0, to_policy("max_min_fairness"))]))
    at = next(i for i, (_, r) in enumerate(log) if isinstance(r, SettingsChanged))
    before = [r for _, r in log[:at] if isinstance(r, Allocated)]
    assert before
    half = replay_records(log[: at + 1], book=simulation.book).core
    assert half.state.rounds.answer is None
    assert half.solving is None
    assert core.state.rounds.answer is not None
