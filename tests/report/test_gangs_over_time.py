"""What gangs of elastic jobs did, by hand: goodput from reported steps, batch size and efficiency from the last report, starts."""

from __future__ import annotations

import csv
import io
import math

import pytest
from report_cases import HEADER, finished, revoke

from themis.model import events as e
from themis.model.cluster import Machine
from themis.model.goodput import Adaptive, StepTimes
from themis.model.workload import App, Job, Regime
from themis.report.compare import compare
from themis.report.export import gangs_to_csv
from themis.report.figures import draw
from themis.report.gangs_over_time import said
from themis.report.html import render
from themis.report.metrics import Fold, RunMetrics
from themis.report.style import FILE

TIMES = StepTimes(
    grad_s=0.02, grad_example_s=0.001, network_s=0.1, network_gpu_s=0.0, machine_s=0.01, machine_gpu_s=0.0, overlap=1.0
)


def grant(attempt: int, gpus: tuple[int, ...]) -> e.Grant:
    return e.Grant(app=0, job=0, attempt=attempt, gpus=gpus, seat=0, until=600.0, locality=0, target=1e3, score=1.0)


def folded(adaptive: Adaptive | None, gpus_max: int = 4) -> RunMetrics:
    """One GPU for 100 s, a start of 30 s in it; a gang of two that is stopped before it trained; a gang of four to the end."""
    job = Job(name="j", model="m", regimes=(Regime(steps=1000.0),), gpus_max=gpus_max, adaptive=adaptive)
    fold = Fold()
    fold.add(0.0, HEADER)
    fold.add(0.0, e.MachineJoined(machine=Machine(name="n", gpus=4, gpu_type="T4")))
    fold.add(0.0, e.AppSubmitted(app=App(name="a", user="u", arrival=0.0, jobs=(job,))))
    fold.add(0.0, grant(1, (0,)))
    fold.add(30.0, e.JobStarted(job=0, attempt=1))
    report = e.GoodputReported(
        job=0, attempt=1, steps=60.0, noise=100.0, gpu_type="T4", times=tuple(TIMES.array().tolist())
    )
    fold.add(60.0, report)
    fold.add(100.0, revoke(0, 0, 1, "moved"))
    fold.add(100.0, e.JobStopped(job=0, attempt=1, steps=100.0))
    fold.add(100.0, grant(2, (0, 1)))
    fold.add(120.0, revoke(0, 0, 2, "moved"))
    fold.add(120.0, e.JobStopped(job=0, attempt=2, steps=100.0))
    fold.add(120.0, grant(3, (0, 1, 2, 3)))
    fold.add(150.0, e.JobStarted(job=0, attempt=3))
    fold.add(250.0, e.JobReached(job=0, attempt=3, steps=1000.0, loss=0.0))
    fold.add(250.0, revoke(0, 0, 3, "finished"))
    fold.add(250.0, e.JobEnded(app=0, job=0, outcome="completed", steps=1000.0))
    fold.add(250.0, finished(0, 250.0, 1.0, 1.0, 540.0))
    return fold.result()


def test_goodput_is_the_steps_that_were_done_and_a_gang_that_never_trained_lost_its_start() -> None:
    run = folded(Adaptive(base=64, most=64, local=(16, 64)))
    told = [(p.start, p.end, p.gpus, p.start_s, p.goodput) for p in run.gangs]
    assert told == [(30, 60, 1, 30, 2), (60, 100, 1, 0, 1), (120, 120, 2, 20, 0), (150, 250, 4, 30, 9)]
    assert math.isnan(run.gangs[0].batch)
    assert [(p.batch, p.efficiency) for p in (run.gangs[1], run.gangs[3])] == [(64, 1), (64, 1)]
    assert said(run).endswith("held 0.2 GPU hours; their gangs took 80 s to start, 0.1 GPU hours.")


def test_a_batch_beyond_the_base_has_the_efficiency_that_its_noise_gives_it() -> None:
    last = folded(Adaptive(base=64, most=1024, local=(16, 256))).gangs[3]
    assert last.batch > 64
    assert last.efficiency == pytest.approx((100 + 64) / (100 + last.batch))


def test_the_table_and_the_figure_are_of_elastic_jobs_alone() -> None:
    elastic, rigid = folded(None), folded(None, gpus_max=1)
    rows = list(csv.DictReader(io.StringIO(gangs_to_csv([elastic]))))
    assert [(row["app"], row["name"], row["gpus"], row["goodput"], row["batch"]) for row in rows[1:3]] == [
        ("a", "j", "1", "1", ""),
        ("a", "j", "2", "0", ""),
    ]
    assert gangs_to_csv([rigid]) == ""
    names = [[drawing.name for drawing in draw(compare([run]), FILE)] for run in (elastic, rigid)]
    assert [any(name.startswith("gangs-") for name in each) for each in names] == [True, False]
    assert 'id="elastic"' in render([elastic])
    assert 'id="elastic"' not in render([rigid])
