"""Gangs of one process: all GPUs on one machine, whatever the policy plans, and no wait without end."""

from __future__ import annotations

from dataclasses import replace

import pytest

from themis.errors import ClusterError
from themis.model.events import AppFinished, Grant
from themis.model.settings import Settings
from themis.model.workload import Workload
from themis.policies.api import make_policy, policy_names
from themis.sim.runner import Record, Simulation
from themis.testing.builders import BOOK, app, job, machines, random_simulation

SOME = ("themis", "fair_finish", "srsf", "tiresias", "max_min_fairness", "shockwave")


@pytest.mark.parametrize("name", [name for name in policy_names() if name in SOME])
def test_gangs_of_one_process_lie_on_one_machine_and_all_of_them_end(name: str) -> None:
    simulation = random_simulation(make_policy(name), 3)
    apps = tuple(
        replace(one, jobs=tuple(replace(j, one_machine=True) for j in one.jobs)) if i % 4 != 1 else one
        for i, one in enumerate(simulation.workload.apps)
    )
    out: list[Record] = []
    replace(simulation, workload=replace(simulation.workload, apps=apps)).run(lambda _, record: out.append(record))
    ended = [record.outcome for record in out if isinstance(record, AppFinished)]
    # ``validate`` checks after each step that such a gang has GPUs of one machine.
    assert ended == ["completed"] * len(apps)


@pytest.mark.parametrize("name", ["srsf", "tiresias", "fifo", "themis", "fair_finish"])
def test_a_gang_of_one_process_starts_although_single_gpus_of_every_machine_end_one_after_the_other(name: str) -> None:
    small = [app(f"s{i}", [job(1700.0)], 100.0 * i, user=f"u{i % 4}") for i in range(90)]
    whole = app("whole", [job(400.0, 4, one_machine=True)], 1000.0, user="v")
    log: list[tuple[float, Record]] = []
    Simulation(
        workload=Workload(name="w", apps=(*small, whole)),
        cluster=machines(4, 4),
        book=BOOK,
        policy_name=name,
        policy=make_policy(name),
        settings=Settings(validate=True, lease_s=300.0),
    ).run(lambda time, record: log.append((time, record)))
    began = [time for time, record in log if isinstance(record, Grant) and len(record.gpus) == 4]
    last = max(time for time, record in log if isinstance(record, Grant))
    assert began[0] < last / 2, f"{name} started it at {began[0]:.0f} s of {last:.0f} s"
    (grant,) = [record for _, record in log if isinstance(record, Grant) and len(record.gpus) == 4][:1]
    assert grant.gpus in ((0, 1, 2, 3), (4, 5, 6, 7))


def test_a_gang_of_one_process_that_no_machine_can_hold_is_refused_with_the_way_out() -> None:
    wide = app("wide", [job(100.0, 6, one_machine=True)])
    with pytest.raises(
        ClusterError, match=r"is one process with 6 GPUs, and the largest machine has 4\. .*launch: gpu"
    ):
        Simulation(
            workload=Workload(name="w", apps=(wide,)),
            cluster=machines(4, 4),
            book=BOOK,
            policy_name="srsf",
            policy=make_policy("srsf"),
            settings=Settings(),
        ).run(lambda _, __: None)
