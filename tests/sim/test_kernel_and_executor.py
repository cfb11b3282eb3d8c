"""The event kernel's order, and the simulated executor's truth."""

from __future__ import annotations

import pytest

from themis.model.events import AppCancelled, Grant, JobProgress, JobReached, JobStarted, JobStopped, Revoke, Wake
from themis.model.settings import Settings
from themis.model.workload import Job, Regime
from themis.sim.kernel import Kernel
from themis.sim.runner import outages
from themis.sim.simulated_executor import SimulatedExecutor
from themis.testing.builders import BOOK, app, job, machines


def test_equal_times_go_in_order_of_scheduling_and_wake_comes_last() -> None:
    kernel = Kernel()
    for event in (Wake(), AppCancelled(app=1), AppCancelled(app=2)):
        kernel.schedule(5.0, event)
    kernel.schedule(1.0, AppCancelled(app=0))
    assert [kernel.pop() for _ in range(4)] == [AppCancelled(app=a) for a in (0, 1, 2)] + [Wake()]
    assert kernel.pop() is None


def test_cancelled_events_are_never_delivered_and_time_never_goes_back() -> None:
    kernel = Kernel()
    kernel.schedule(1.0, AppCancelled(app=0)).cancel()
    kernel.schedule(3.0, AppCancelled(app=1))
    kernel.pop()
    kernel.schedule(2.0, AppCancelled(app=2))
    assert (kernel.pop(), kernel.now) == (AppCancelled(app=2), 3.0)


def started(spec: Job, **settings: float) -> tuple[Kernel, SimulatedExecutor]:
    kernel = Kernel()
    executor = SimulatedExecutor(BOOK, Settings(**{"container_s": 0.0, **settings}), kernel, ["gpu"] * 8)  # type: ignore[arg-type]
    executor.admit(0, app("a", [spec]))
    executor.submit(
        Grant(app=0, job=0, attempt=1, gpus=(0, 1), seat=0, until=9e9, locality=1, target=spec.steps, score=1.0)
    )
    return kernel, executor


def test_gang_reports_its_start_its_regimes_and_its_end() -> None:
    spec = Job(name="j", model="flat", regimes=(Regime(steps=100.0), Regime(steps=50.0)), gpus_max=2)
    kernel, _ = started(spec, container_s=35.0)
    seen = []
    while (event := kernel.pop()) is not None:
        seen.append((kernel.now, type(event)))
    assert seen == [(35.0, JobStarted), (85.0, JobProgress), (110.0, JobReached)]


@pytest.mark.parametrize(("cause", "steps"), [("expired", 500.0), ("failed", 400.0)])
def test_a_preempted_gang_keeps_its_work_and_a_crashed_one_what_was_checkpointed(cause: str, steps: float) -> None:
    kernel, executor = started(job(1000.0, (1, 2)), checkpoint_every_s=100.0)
    kernel.schedule(250.0, Wake())
    while not isinstance(kernel.pop(), Wake):
        pass
    executor.submit(Revoke(app=0, job=0, attempt=1, cause=cause))
    assert kernel.pop() == JobStopped(job=0, attempt=1, steps=steps)
    assert kernel.pop() is None


def test_random_outages_are_the_same_for_the_same_seed_and_as_frequent_as_asked() -> None:
    cluster = machines(*[1] * 50)
    drawn = outages(cluster, mtbf_s=1000.0, lasts_s=10.0, until=100_000.0, seed=4)
    assert drawn == outages(cluster, mtbf_s=1000.0, lasts_s=10.0, until=100_000.0, seed=4)
    assert len(drawn) == pytest.approx(50 * 100_000 / 1010, rel=0.1)
