"""Fair finish: the horizon, GPU types, and the proof of a decision."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from themis.core import reference
from themis.core.scheduler import Scheduler
from themis.model.cluster import Cluster
from themis.model.events import Allocated, AppSubmitted, MachineJoined
from themis.model.log import LogWriter
from themis.model.settings import Settings
from themis.model.speed import ProfileBook, linear
from themis.model.workload import App, Workload
from themis.policies.api import make_policy
from themis.policies.fair_finish import FairFinish
from themis.report.explain import explain
from themis.report.metrics import Fold
from themis.sim.runner import Record, Simulation
from themis.testing.builders import BOOK, app, job, machines

NO_COSTS = Settings(lease_s=60.0, tick_s=1.0, step_s=15.0, container_s=0.0)
LIKES_FAST = linear("likes_fast", 1.0, type_speed={"fast": 4.0, "slow": 0.1})
INDIFFERENT = linear("indifferent", 1.0, type_speed={"fast": 1.0, "slow": 0.9})
TYPES = ProfileBook({**BOOK.profiles, "likes_fast": LIKES_FAST, "indifferent": INDIFFERENT})


def _run(apps: list[App], cluster: Cluster, policy: str = "fair_finish", book: ProfileBook = BOOK) -> Scheduler:
    return Simulation(
        workload=Workload(name="made", apps=tuple(apps)),
        cluster=cluster,
        book=book,
        policy_name=policy,
        policy=make_policy(policy),
        settings=NO_COSTS,
    ).run()


def _ended(core: Scheduler) -> list[float]:
    return core.state.apps.ended[: core.state.apps.size].tolist()


def _two_types() -> Cluster:
    cluster = machines(2, 2)
    kinds = ("fast", "slow")
    return replace(cluster, machines=tuple(replace(m, gpu_type=k) for m, k in zip(cluster.machines, kinds)))


def test_the_horizon_moves_when_apps_arrive_and_not_while_they_wait() -> None:
    core = Scheduler(BOOK, NO_COSTS, FairFinish().pace, FairFinish.needs)
    for machine in machines(4).machines:
        core.step(MachineJoined(machine=machine), 0.0)
    core.step(AppSubmitted(app=app("a", [job(4000.0, (1, 4))]), weight=1.0), 0.0)
    first = core.state.horizon
    assert first == pytest.approx(1050.0)
    reference.advance(core.state)
    assert core.state.horizon == first
    core.step(AppSubmitted(app=app("b", [job(400.0, (1, 4))]), weight=1.0), 500.0)
    assert core.state.horizon == pytest.approx(500.0 + 1.05 * (2000.0 + 400.0) / 4)


def test_jobs_get_the_types_on_which_they_gain_most() -> None:
    """Three quarters of the jobs are 40 times as fast on the fast type; shortest first by mean speed wastes it on the others."""
    mean = {}
    for policy in ("srsf", "fair_finish"):
        jct = []
        for seed in range(3):
            rng = np.random.default_rng(seed)
            models = rng.choice(["likes_fast", "likes_fast", "likes_fast", "indifferent"], 12).tolist()
            at = np.sort(rng.uniform(0, 2000, 12))
            apps = [
                app(f"a{i}", [job(float(w), model=m)], arrival=float(t), user=f"u{i}")
                for i, (m, w, t) in enumerate(zip(models, rng.uniform(200, 3000, 12), at))
            ]
            jct.append((np.array(_ended(_run(apps, _two_types(), policy, TYPES))) - at).mean())
        mean[policy] = float(np.mean(jct))
    assert mean["fair_finish"] < 0.6 * mean["srsf"]


def test_the_proof_names_who_is_late_and_explain_says_who_lent(tmp_path: Path) -> None:
    """An app of one GPU for 4,000 s lets shorter ones go first; a gang of all GPUs that came later cannot end in time."""
    apps = [app("long", [job(16000.0, (1, 4))]), *(app(f"s{i}", [job(1000.0, (1, 4))], arrival=10.0) for i in range(6))]
    path = tmp_path / "log.jsonl"
    proofs = []
    with LogWriter(path) as writer:

        def watch(time: float, record: Record) -> None:
            if time < 1000.0:
                writer(time, record)
            if isinstance(record, Allocated):
                proofs.append(record.solved.proof)

        Simulation(
            workload=Workload(name="made", apps=tuple(apps)),
            cluster=machines(4),
            book=BOOK,
            policy_name="fair_finish",
            policy=FairFinish(),
            settings=replace(NO_COSTS, container_s=20.0),
        ).run(watch)
    assert all(len(p.stretched) == len(p.stretch) and (p.stretch > 0).all() for p in proofs)
    story = explain(path, "long")
    # After 1,000 s its seventh of 4 GPUs is about 570 GPU-seconds, and it had the first 10 s alone.
    assert story.lent == pytest.approx(1000.0 * 4 / 7 - story.received, rel=0.2)
    assert story.lent > 0
    # The short apps that had GPUs so far have what it lent.
    assert {name for name, _ in story.loans} <= {f"s{i}" for i in range(6)}
    assert 0 < sum(part for _, part in story.loans) <= story.lent + 1e-6
    assert not math.isnan(story.stretch)


def test_the_reference_so_far_is_what_the_core_keeps() -> None:
    fold, seen = Fold(), []
    apps = [app("a", [job(4000.0, (1, 4))]), app("b", [job(800.0, (1, 4))], arrival=100.0)]

    def watch(time: float, record: Record) -> None:
        fold.add(time, record)
        if isinstance(record, AppSubmitted) and record.app.name == "b":
            seen.append(fold.reference.received(300.0).tolist())

    Simulation(
        workload=Workload(name="made", apps=tuple(apps)),
        cluster=machines(4),
        book=BOOK,
        policy_name="fair_finish",
        policy=FairFinish(),
        settings=NO_COSTS,
    ).run(watch)
    assert seen == [pytest.approx([100.0 * 4 + 200.0 * 2, 200.0 * 2])]
