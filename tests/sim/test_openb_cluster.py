"""Alibaba's cluster of 2023 from end to end: its machines, its pods, a policy that knows types."""

from __future__ import annotations

from pathlib import Path

import pytest

from themis.model.events import AppFinished, Grant
from themis.model.settings import Settings
from themis.policies.api import make_policy
from themis.sim.runner import Simulation
from themis.traces.formats import load_workload
from themis.traces.profiles.models import DEFAULT_BOOK
from themis.traces.profiles.presets import load_cluster
from themis.traces.scale import Scale, scale
from themis.traces.trace_summary import check_fits


@pytest.mark.slow
def test_pods_run_on_the_types_that_they_ask_for(shared_data: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Forty pods of the trace whose times are cut to a thousandth, on 6,212 GPUs of seven types, in rounds of a minute."""
    monkeypatch.setenv("THEMIS_DATA", str(shared_data))
    cluster = load_cluster("openb")
    pods = shared_data / "alibaba-gpu-v2023" / "openb_pod_list_gpuspec33.csv.gz"
    workload = scale(load_workload(str(pods), limit=40, single_jobs=True), Scale(time=0.001))
    check_fits(workload, cluster)
    types = [m.gpu_type for m in cluster.machines for _ in range(m.gpus)]
    specs = [job for app in workload.apps for job in app.jobs]
    ended = 0
    wanted = 0

    def watch(now: float, record: object) -> None:
        nonlocal ended, wanted
        if isinstance(record, Grant):
            asked = specs[record.job].gpu_types
            wanted += bool(asked)
            assert not asked or types[record.gpus[0]] in asked
            assert len({types[g] for g in record.gpus}) == 1
        ended += isinstance(record, AppFinished)

    Simulation(
        workload=workload,
        cluster=cluster,
        book=DEFAULT_BOOK,
        policy_name="max_min_fairness",
        policy=make_policy("max_min_fairness:round_s=60"),
        settings=Settings(container_s=0.0),
    ).run(watch)
    assert ended == len(workload.apps) == 40
    assert wanted > 0, "some pods name their types"
