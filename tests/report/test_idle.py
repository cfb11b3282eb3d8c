"""Idle GPU time with a fitting waiter, on logs written by hand and of simulations."""

from __future__ import annotations

import math

import pytest

from themis.model.cluster import Machine
from themis.model.events import (
    AppHeld,
    AppResumed,
    AppSubmitted,
    Grant,
    JobDelayed,
    JobEnded,
    JobReached,
    JobStopped,
    MachineDraining,
    MachineFailed,
    MachineJoined,
    MachineReturned,
    QuotaSet,
    Revoke,
)
from themis.model.workload import App, Halving, Rung
from themis.policies.api import make_policy
from themis.report.idle import IdleFold, IdleTime
from themis.report.metrics import Fold
from themis.sim.runner import Record
from themis.testing.builders import app, job, random_simulation


def fold(*records: tuple[float, Record]) -> IdleTime:
    out = IdleFold()
    for time, record in records:
        out.add(time, record)
    return out.result()


def joined(gpus: int, gpu_type: str = "gpu") -> tuple[float, Record]:
    return 0.0, MachineJoined(machine=Machine(name=f"m-{gpu_type}-{gpus}", gpus=gpus, rack="r", gpu_type=gpu_type))


def came(spec: App, time: float = 0.0) -> tuple[float, Record]:
    return time, AppSubmitted(app=spec)


def grant(time: float, j: int, gpus: tuple[int, ...], a: int = 0, attempt: int = 1) -> tuple[float, Record]:
    return time, Grant(
        app=a, job=j, attempt=attempt, gpus=gpus, seat=0, until=time + 600.0, locality=0, target=1.0, score=1.0
    )


def stop(time: float, j: int, cause: str = "expired", a: int = 0) -> tuple[tuple[float, Record], tuple[float, Record]]:
    return (
        (time, Revoke(app=a, job=j, attempt=1, cause=cause)),
        (time, JobStopped(job=j, attempt=1, steps=0.0)),
    )


END = (1000.0, MachineReturned(machine=0))
"""Time goes on to here; the machine is there already."""


def test_gpus_count_while_a_waiting_job_fits_and_only_on_types_where_it_does() -> None:
    wide = app("a", [job(9.0, 4), job(9.0, 2, gpu_types=("b",))])
    found = fold(joined(3, "a"), joined(2, "b"), came(wide), (100.0, MachineReturned(machine=0)))
    assert (found.capacity, found.idle) == (500.0, 500.0)
    assert found.fitting == 200.0, "two GPUs of type b for the second job; the first fits nowhere"
    assert found.share == 0.4


def test_a_gang_that_is_stopped_and_whose_gpus_then_idle_is_counted_unless_it_goes_on_elsewhere() -> None:
    start = joined(4), came(app("a", [job(9.0, 2)])), grant(0.0, 0, (0, 1))
    idles = fold(*start, *stop(300.0, 0), END)
    assert (idles.stopped_idle, idles.fitting) == (1, 700.0 * 4)
    moved = fold(*start, *stop(300.0, 0), grant(300.0, 0, (2, 3), attempt=2), END)
    assert (moved.stopped_idle, moved.fitting) == (0, 0.0)


def test_a_process_that_has_not_stopped_keeps_its_gpus_busy() -> None:
    revoke = (300.0, Revoke(app=0, job=0, attempt=1, cause="expired"))
    stopped = (500.0, JobStopped(job=0, attempt=1, steps=0.0))
    found = fold(joined(2), came(app("a", [job(9.0, 2)])), grant(0.0, 0, (0, 1)), revoke, stopped, END)
    assert found.idle == 500.0 * 2


def test_jobs_that_may_not_run_now_are_no_waiting_jobs() -> None:
    one = joined(1), came(app("a", [job(9.0)]))
    assert fold(*one, (0.0, AppHeld(app=0)), (400.0, AppResumed(app=0)), END).fitting == 600.0
    assert (
        fold(*one, (0.0, JobDelayed(job=0, until=300.0)), (300.0, QuotaSet(name="q", users=(), gpus=None)), END).fitting
        == 700.0
    )
    assert fold(*one, (0.0, QuotaSet(name="q", users=("u",), gpus=0)), END).fitting == 0.0
    limited = joined(2), came(app("a", [job(9.0), job(9.0)], at_once=1)), grant(0.0, 0, (0,))
    assert fold(*limited, END).fitting == 0.0
    assert fold(*limited, *stop(600.0, 0), END).fitting == 400.0 * 2


def test_jobs_wait_for_their_rung_and_then_for_gpus() -> None:
    sweep = app("a", [job(20.0), job(20.0)], tuner=Halving(rungs=(Rung(jobs=2, steps=10.0), Rung(jobs=1, steps=10.0))))
    start = joined(2), came(sweep), grant(0.0, 0, (0,)), grant(0.0, 1, (1,))
    first = (100.0, JobReached(job=0, attempt=1, steps=10.0, loss=1.0)), *stop(100.0, 0, "rung")
    second = (400.0, JobReached(job=1, attempt=1, steps=10.0, loss=2.0)), *stop(400.0, 1, "rung")
    over = (400.0, JobEnded(app=0, job=1, outcome="stopped", steps=10.0))
    found = fold(*start, *first, *second, over, END)
    assert found.idle == 300.0 + 600.0 * 2
    assert found.fitting == 600.0 * 2


def test_machines_that_are_away_or_drain_have_no_free_gpus() -> None:
    one = joined(2), came(app("a", [job(9.0)]))
    away = fold(*one, (200.0, MachineFailed(machine=0)), (500.0, MachineReturned(machine=0)), (600.0, AppHeld(app=0)))
    assert (away.capacity, away.fitting) == (600.0, 600.0)
    drains = (200.0, MachineDraining(machine=0, until=900.0)), (500.0, MachineDraining(machine=0))
    assert fold(*one, *drains, (600.0, AppHeld(app=0))).fitting == 600.0


def test_the_first_grant_of_each_app_counts() -> None:
    found = fold(
        joined(1),
        came(app("a", [job(9.0)]), 10.0),
        came(app("b", [job(9.0)]), 20.0),
        grant(70.0, 0, (0,)),
        *stop(100.0, 0),
        grant(200.0, 0, (0,)),
        END,
    )
    assert found.first_gpu[0] == 60.0
    assert math.isnan(found.first_gpu[1])


@pytest.mark.parametrize("policy", ["themis", "drf", "max_min_fairness", "gandiva_packing"])
def test_capacity_and_idle_time_are_those_of_the_metrics(policy: str) -> None:
    idle, metrics = IdleFold(), Fold()

    def sink(time: float, record: Record) -> None:
        idle.add(time, record)
        metrics.add(time, record)

    random_simulation(make_policy(policy), 5, mixed=True).run(sink)
    found, run = idle.result(), metrics.result()
    assert found.capacity == pytest.approx(run.gpu_seconds / run.utilisation)
    assert found.capacity - found.idle == pytest.approx(run.gpu_seconds)
    assert found.first_gpu == pytest.approx([a.wait for a in run.apps])
