"""Apps that run on one named machine, whatever the policy plans."""

from __future__ import annotations

from dataclasses import replace

import pytest

from themis.model.events import AppFinished, Grant
from themis.policies.api import make_policy
from themis.sim.runner import Record
from themis.testing.builders import random_simulation


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("name", ["themis", "fair_finish", "drf", "tiresias", "max_min_fairness"])
def test_an_app_that_names_a_machine_runs_on_no_other_and_the_others_end(name: str, seed: int) -> None:
    simulation = random_simulation(make_policy(name), seed)
    machines = simulation.cluster.machines
    apps = list(simulation.workload.apps)
    named = []
    for i in range(0, len(apps), 4):
        machine = machines[i % len(machines)]
        if all(
            j.gpus_min <= machine.gpus and machine.gpu_type in (j.gpu_types or (machine.gpu_type,))
            for j in apps[i].jobs
        ):
            jobs = tuple(replace(j, gpus_max=min(j.gpus_max, machine.gpus)) for j in apps[i].jobs)
            apps[i] = replace(apps[i], jobs=jobs, machine=machine.name)
            named.append(i)
    assert named
    out: list[Record] = []
    replace(simulation, workload=replace(simulation.workload, apps=tuple(apps))).run(
        lambda _, record: out.append(record)
    )
    # ``validate`` checks after each step that such an app has GPUs of its machine alone.
    ended = [record.outcome for record in out if isinstance(record, AppFinished)]
    assert ended == ["completed"] * len(apps)
    assert any(isinstance(record, Grant) for record in out)
