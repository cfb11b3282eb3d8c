"""Under ``drf`` the simulator takes the decisions of a heap kernel that knows rigid single jobs alone."""

from __future__ import annotations

import importlib
from pathlib import Path

import numpy as np
import pytest

from themis.model.cluster import Cluster
from themis.model.events import AppFinished, Grant
from themis.model.settings import Settings
from themis.model.units import Seconds
from themis.model.workload import Workload
from themis.policies.api import make_policy
from themis.sim.runner import Record, Simulation
from themis.testing.builders import BOOK, app, job
from themis.traces.profiles.presets import load_cluster

ROOT = Path(__file__).parents[2]


def _jobs(seed: int, span: Seconds) -> Workload:
    """Gangs of 1 to 24 GPUs; the shorter the span, the more wait."""
    rng = np.random.default_rng(seed)
    apps = [
        app(
            f"a{i}",
            [
                job(
                    float(rng.integers(300, 40_000)),
                    int(rng.choice([1, 2, 3, 4, 8, 12, 24])),
                    model=str(rng.choice(["flat", "chatty"])),
                )
            ],
            float(rng.integers(0, int(span))),
        )
        for i in range(120)
    ]
    return Workload(name="rigid", apps=tuple(apps), source="test")


@pytest.mark.parametrize(("seed", "span"), [(0, 3_000.0), (1, 60_000.0), (2, 20_000.0)])
def test_grants_and_completions_are_those_of_the_heap_kernel(
    seed: int, span: Seconds, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.syspath_prepend(str(ROOT / "benchmarks"))
    heap_kernel = importlib.import_module("heap_kernel")
    workload, cluster = _jobs(seed, span), _cluster()
    theirs, ours = list[object](), list[object]()
    ends, ended = dict[int, Seconds](), dict[int, Seconds]()
    heap_kernel.HeapKernel(
        heap_kernel.tasks_of(workload, cluster, BOOK),
        cluster,
        Settings(),
        lambda at, job, gpus: theirs.append((at, job, gpus)),
        lambda at, job: ends.update({job: at}),
    ).run()

    def sink(at: Seconds, record: Record) -> None:
        if isinstance(record, Grant):
            ours.append((at, record.job, record.gpus))
        elif isinstance(record, AppFinished):
            ended[record.app] = at

    Simulation(workload=workload, cluster=cluster, book=BOOK, policy_name="drf", policy=make_policy("drf")).run(sink)
    assert sorted(ours, key=repr) == sorted(theirs, key=repr)
    assert ended == ends


def _cluster() -> Cluster:
    whole = load_cluster("sim-256")
    return Cluster(name="part", machines=whole.machines[:10])
