"""Machines fail all the time: no job is lost, no GPU leased twice. ``make soak`` simulates 10,000 failures."""

from __future__ import annotations

import os

import numpy as np
import pytest

from themis.model.events import MachineFailed
from themis.model.settings import Settings
from themis.model.workload import App, Workload
from themis.policies.api import make_policy
from themis.sim.runner import Record, Simulation, outages
from themis.testing.builders import BOOK, app, job
from themis.traces.profiles.presets import load_cluster
from witness import check_leases

FAULTS = int(os.environ.get("THEMIS_SIMULATED_FAULTS", "100"))
POLICIES = ("themis", "drf", "tiresias", "gandiva", "max_min_fairness", "isolated", "round_robin", "fifo")
MTBF_S, REPAIR_S = 8000.0, 1500.0
"""Of four machines one fails about every 40 minutes."""


def apps_of(seed: int) -> list[App]:
    """Bags of gangs of up to six GPUs."""
    rng = np.random.default_rng(seed)
    made = []
    for a in range(6):
        low = int(rng.integers(1, 4))
        jobs = [job(float(rng.uniform(500, 4000)), (low, int(rng.integers(low, 7)))) for _ in range(rng.integers(1, 4))]
        made.append(app(f"app{a}", jobs, arrival=float(rng.uniform(0, 4000))))
    return made


@pytest.mark.parametrize("policy", POLICIES)
def test_no_job_is_lost_and_no_gpu_leased_twice_when_machines_fail(policy: str) -> None:
    faults, seed = 0, 0
    cluster = load_cluster("4x2")
    while faults < FAULTS / len(POLICIES):
        apps = apps_of(seed)
        log: list[Record] = []
        Simulation(
            workload=Workload(name="faults", apps=tuple(apps)),
            cluster=cluster,
            book=BOOK,
            policy_name=policy,
            policy=make_policy(policy),
            settings=Settings(checkpoint_every_s=120.0, container_s=10.0, seed=seed, validate=True),
            outages=outages(cluster, mtbf_s=MTBF_S, lasts_s=REPAIR_S, until=100_000.0, seed=seed),
        ).run(lambda now, record, log=log: log.append(record))
        check_leases(log, apps=len(apps), jobs=sum(len(a.jobs) for a in apps))
        faults += sum(isinstance(record, MachineFailed) for record in log)
        seed += 1
    assert faults >= FAULTS / len(POLICIES)
