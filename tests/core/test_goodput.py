"""Reports of adaptive jobs: the row of the speed table that a job has of its own, and what it may have until the next report."""

from __future__ import annotations

import numpy as np
import pytest

from step_time_cases import TIMES
from themis.core import checkpoint, take_snapshot
from themis.core.scheduler import Scheduler
from themis.model.cluster import in_racks
from themis.model.events import AppSubmitted, GoodputReported, JobStarted, MachineJoined
from themis.model.goodput import Adaptive, Goodput
from themis.model.settings import Settings
from themis.model.speed import ANY_TYPE, Curve, Profile, ProfileBook
from themis.model.workload import App, Job, Regime
from themis.policies.api import Cadence

BATCHES = Adaptive(base=128, most=4096, local=(32, 512))
BOOK = ProfileBook.of(
    Profile(name=f"m/{n}", curves={(ANY_TYPE, 0): Curve(gpus=(1,), rate=(5.0,))}, slowdown=(1.0,) * 4) for n in range(2)
)


def fresh() -> Scheduler:
    return Scheduler(BOOK, Settings(lease_s=60.0, validate=True), Cadence(), frozenset())


def cluster_of_two_jobs() -> Scheduler:
    core = fresh()
    for machine in in_racks("pair", [(4, 4, 4)]).machines:
        core.step(MachineJoined(machine=machine), 0.0)
    for n in range(2):
        job = Job(name="j", model=f"m/{n}", regimes=(Regime(steps=1000.0, batch=60),), gpus_max=16, adaptive=BATCHES)
        core.step(AppSubmitted(app=App(name=f"a{n}", user="u", arrival=0.0, jobs=(job,))), 0.0)
    return core


def seconds(core: Scheduler) -> np.ndarray:
    found = take_snapshot.take(core.state, needs=frozenset({"job_seconds"})).job_seconds
    assert found is not None
    return found[:, 0]


def run_on(core: Scheduler, gpus: tuple[int, ...]) -> None:
    core.state.lease(0, gpus, 0, 1e9, 1)
    core.state.occupy(0, gpus, 0)
    core.step(JobStarted(job=0, attempt=1), 0.0)


def reported(noise: float, steps: float = 0.0) -> GoodputReported:
    return GoodputReported(
        job=0, attempt=1, steps=steps, noise=noise, gpu_type=core_type(), times=tuple(TIMES.array().tolist())
    )


def core_type() -> str:
    return in_racks("pair", [(4, 4, 4)]).machines[0].gpu_type


def test_an_unmeasured_job_gets_one_gpu_and_one_that_reported_twice_what_it_had_at_its_goodput() -> None:
    core = cluster_of_two_jobs()
    assert np.isfinite(seconds(core)).sum(axis=1).tolist() == [1, 1]
    assert seconds(core)[0, 1] == pytest.approx(1000 / 5.0)
    run_on(core, (0, 1, 2))
    core.step(reported(noise=2000.0), 0.0)
    found, best = seconds(core), Goodput(batches=BATCHES, times=(("*", TIMES),)).best("any", 2000.0, 16)
    assert np.isfinite(found).sum(axis=1).tolist() == [6, 1]
    np.testing.assert_allclose(found[0, 1:7], 1000 / best.rate[1:7], rtol=1e-6)


def test_noise_that_changed_by_less_than_a_tenth_renews_nothing() -> None:
    core = cluster_of_two_jobs()
    run_on(core, (0,))
    core.step(reported(noise=2000.0), 0.0)
    before = core.state.speeds
    core.step(reported(noise=2150.0, steps=10.0), 0.0)
    assert core.state.speeds is before
    assert core.state.jobs.done[0] == 10.0
    core.step(reported(noise=2300.0, steps=20.0), 0.0)
    assert core.state.speeds is not before


def test_a_snapshot_keeps_the_speeds_that_it_was_taken_with_and_without_one_no_table_is_copied() -> None:
    core = cluster_of_two_jobs()
    run_on(core, (0,))
    view = take_snapshot.take(core.state)
    old = view.speeds.scale.copy()
    core.step(reported(noise=500.0), 0.0)
    np.testing.assert_array_equal(view.speeds.scale, old)
    kept = core.state.speeds.scale
    assert not np.array_equal(kept, old)
    core.step(reported(noise=5000.0), 0.0)
    assert core.state.speeds.scale is kept


def test_a_saved_state_believes_what_was_reported() -> None:
    core = cluster_of_two_jobs()
    run_on(core, (0, 1))
    core.step(reported(noise=700.0), 0.0)
    loaded = checkpoint.load(checkpoint.save(core), fresh())
    np.testing.assert_array_equal(seconds(loaded), seconds(core))
    np.testing.assert_array_equal(loaded.state.config_speed, core.state.config_speed)
