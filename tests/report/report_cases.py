"""A tiny log whose every metric is computed by hand, and runs made from it."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np

from themis.model import events as e
from themis.model.answers import GpuGrant, Proof, Solved
from themis.model.cluster import Machine
from themis.model.log import LogWriter, Record
from themis.model.workload import App, Job, Regime
from themis.report.metrics import Fold, RunMetrics

Log = list[tuple[float, Record]]
HEADER = e.Header(
    schema=e.SCHEMA,
    version="1.2",
    simulated=True,
    policy="themis",
    params={"f": 0.8, "rho": "paper"},
    seed=0,
    workload="mini",
    source="mini by hand",
    cluster="4+2",
    settings={"lease_s": 600.0, "tick_s": 60.0, "container_s": 35.0, "checkpoint_every_s": 30.0},
)
NOTHING = GpuGrant(
    **{name: np.zeros(0, dtype=np.int64) for name in ("app", "gang", "machine", "gpus", "extend")}, until=np.zeros(0)
)


def app(name: str, arrival: float, jobs: int, user: str = "ann") -> e.AppSubmitted:
    made = tuple(Job(name=f"{name}-{i}", model="m", regimes=(Regime(steps=1.0),)) for i in range(jobs))
    return e.AppSubmitted(app=App(name=name, user=user, arrival=arrival, jobs=made))


def grant(app: int, job: int, attempt: int, gpus: tuple[int, ...], score: float = 1.0, seat: int = 0) -> e.Grant:
    return e.Grant(
        app=app, job=job, attempt=attempt, gpus=gpus, seat=seat, until=600.0, locality=0, target=1.0, score=score
    )


def revoke(app: int, job: int, attempt: int, cause: str) -> e.Revoke:
    return e.Revoke(app=app, job=job, attempt=attempt, cause=cause)


def finished(app: int, jct: float, paper: float, exact: float, gpu_seconds: float) -> e.AppFinished:
    return e.AppFinished(
        app=app,
        outcome="completed",
        jct=jct,
        rho_paper=paper,
        rho_exact=exact,
        t_id_paper=jct / paper,
        t_id_exact=jct / exact,
        contention=1.5,
        capacity=5.5,
        gpu_seconds=gpu_seconds,
        needed=((gpu_seconds, 8.0),),
    )


def decision(proof: Proof | None = None) -> e.Allocated:
    return e.Allocated(version=1, solved=Solved(answer=NOTHING, proof=proof or Proof()))


def auction(
    offered: int,
    app: list[int],
    rho: list[float],
    bid: list[bool],
    won: list[int],
    kept: list[float],
    leftover: list[int],
) -> e.Allocated:
    return decision(
        Proof(
            objective=1.0,
            bound=1.25,
            method="exact",
            offered=offered,
            app=np.array(app),
            rho=np.array(rho),
            bid=np.array(bid),
            won=np.array(won),
            kept=np.array(kept),
            kept_low=np.array(kept) - 0.01,
            kept_high=np.array(kept),
            leftover=np.array(leftover),
        )
    )


MINI: Log = [
    (0.0, HEADER),
    (0.0, e.MachineJoined(machine=Machine(name="m0", gpus=4))),
    (0.0, e.MachineJoined(machine=Machine(name="m1", gpus=2))),
    (10.0, app("A", 10.0, 1)),
    (10.0, auction(6, [0], [1.0], [True], [4], [1.0], [0])),
    (10.0, grant(0, 0, 1, (0, 1, 2, 3))),
    (45.0, e.JobStarted(job=0, attempt=1)),
    (110.0, app("B", 110.0, 2, "bob")),
    (120.0, auction(2, [1, 0], [3.0, 1.0], [True, False], [2, 0], [0.75, 1.0], [0, 0])),
    (120.0, e.Renew(jobs=(0,), until=900.0)),
    (120.0, grant(1, 1, 1, (4, 5), score=0.5)),
    (155.0, e.JobStarted(job=1, attempt=1)),
    (200.0, e.MachineFailed(machine=1)),
    (200.0, revoke(1, 1, 1, "failed")),
    (200.0, e.JobStopped(job=1, attempt=1, steps=0.1)),
    (210.0, e.JobReached(job=0, attempt=1, steps=1.0, loss=0.1)),
    (210.0, revoke(0, 0, 1, "finished")),
    (210.0, e.JobEnded(app=0, job=0, outcome="completed", steps=1.0)),
    (210.0, finished(0, 200.0, 0.5, 0.8, 800.0)),
    (220.0, decision()),
    (220.0, grant(1, 1, 2, (0, 1))),
    (240.0, revoke(1, 1, 2, "expired")),
    (240.0, e.JobStarted(job=1, attempt=1)),  # late, of an attempt that is over
    (250.0, e.MachineReturned(machine=1)),
    (260.0, auction(6, [1], [3.5], [True], [0], [1.0], [4])),
    (260.0, grant(1, 1, 3, (0, 1))),
    (260.0, grant(1, 2, 1, (0, 1), seat=1)),
    (270.0, e.JobStarted(job=2, attempt=1)),
    (290.0, e.JobStarted(job=1, attempt=3)),
    (310.0, revoke(1, 1, 3, "finished")),
    (310.0, revoke(1, 2, 1, "finished")),
    (310.0, finished(1, 200.0, 2.0, 2.5, 400.0)),
]


def fold(log: Log) -> RunMetrics:
    made = Fold()
    for time, record in log:
        made.add(time, record)
    return made.result()


def write(path: Path, log: Log) -> Path:
    with LogWriter(path) as writer:
        for time, record in log:
            writer(time, record)
    return path


def runs(policies: tuple[str, ...] = ("themis", "drf"), seeds: int = 1) -> list[RunMetrics]:
    """Runs of the mini log under other names."""
    run = fold(MINI)
    return [
        replace(run, policy=name, seed=seed, makespan=run.makespan * (1 + i + seed))
        for i, name in enumerate(policies)
        for seed in range(seeds)
    ]
