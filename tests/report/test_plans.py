"""Forecasts of plans against what happened: intervals learnt from the log, errors, a figure; nothing where nobody plans."""

from __future__ import annotations

import math

import numpy as np
import pytest
from report_cases import runs

from themis.model.answers import Proof
from themis.model.workload import Workload
from themis.policies.api import make_policy
from themis.report.html import render
from themis.report.metrics import Fold, RunMetrics
from themis.report.plans import MOST, Plans
from themis.sim.runner import Simulation
from themis.testing.builders import BOOK, NO_OVERHEAD, app, job, machines


def proof(**ends: float) -> Proof:
    """Of jobs j0, j1, ...: they start at once and end then."""
    ids = [int(name[1:]) for name in ends]
    return Proof(job=np.array(ids), starts=np.zeros(len(ids)), ends=np.array(list(ends.values())))


def test_a_job_that_takes_twice_as_long_as_forecast_is_half_its_time_late() -> None:
    plans = Plans()
    plans.add(0.0, proof(j0=100.0))
    plans.start(0, 10.0)
    plans.add(150.0, proof(j0=190.0))
    plans.end(0, 200.0)
    table = plans.table(["one"])
    (row,) = table.rows
    assert (row.job, row.told, row.ends, row.started, row.ended) == ("one", 0.0, 100.0, 10.0, 200.0)
    assert row.off == table.error == 0.5
    assert table.life.tolist() == [0.0, 0.75]
    assert table.off.tolist() == [0.5, 0.05]
    assert math.isnan(row.low)
    assert math.isnan(table.within)


def test_an_interval_is_what_ended_jobs_were_off_by() -> None:
    """Eleven jobs took 1.0, 1.1, ... 2.0 times as long as forecast: the next is given 1.1 to 2.0 times its forecast,
    for eleven make twelve gaps."""
    plans = Plans()
    plans.add(0.0, proof(**{f"j{i}": 100.0 for i in range(11)}))
    for i in range(11):
        plans.end(i, 100.0 + 10.0 * i)
    plans.add(1000.0, proof(j11=1200.0, j12=1200.0))
    plans.end(11, 1300.0)
    plans.end(12, 1900.0)
    table = plans.table([str(i) for i in range(13)])
    assert (table.rows[11].low, table.rows[11].high) == (pytest.approx(1220.0), pytest.approx(1400.0))
    assert table.within == 0.5


def test_a_start_has_an_interval_from_the_waits_of_others() -> None:
    """Eleven jobs were to wait for 100 s and waited 100, 110, ... 200 s; who is to start at once has nothing to wait for."""
    plans = Plans()
    ids = np.arange(11)
    plans.add(0.0, Proof(job=ids, starts=np.full(11, 100.0), ends=np.full(11, 500.0)))
    for i in range(11):
        plans.start(i, 100.0 + 10.0 * i)
        plans.end(i, 500.0)
    plans.add(
        1000.0, Proof(job=np.array([11, 12, 13]), starts=np.array([1200.0, 1200.0, 1000.0]), ends=np.full(3, 1500.0))
    )
    for j, start in ((11, 1300.0), (12, 1900.0), (13, 1000.0)):
        plans.start(j, start)
        plans.end(j, start + 100.0)
    table = plans.table([str(i) for i in range(14)])
    late, now = table.rows[11], table.rows[13]
    assert (late.start_low, late.start_high) == (pytest.approx(1220.0), pytest.approx(1400.0))
    assert (now.start_low, now.start_high) == (1000.0, 1000.0)
    assert math.isnan(table.rows[0].start_low)
    assert table.started_within == 0.5


def test_a_job_that_goes_on_shows_its_latest_forecast() -> None:
    plans = Plans()
    plans.add(0.0, proof(j0=100.0))
    plans.add(50.0, proof(j0=120.0))
    (row,) = plans.table(["one"]).rows
    assert (row.told, row.ends) == (50.0, 120.0)
    assert math.isnan(row.off)


def test_what_is_kept_of_a_job_is_bounded() -> None:
    plans = Plans()
    for i in range(1000):
        plans.add(float(i), proof(j0=2000.0))
    plans.end(0, 1000.0)
    life = plans.table(["one"]).life
    assert len(life) <= MOST
    assert life[0] == 0.0
    assert life[-1] > 0.9


def planned_run() -> RunMetrics:
    fold = Fold()
    apps = tuple(app(f"a{i}", [job(600.0 + 90.0 * (i % 5), 1)], 200.0 * i) for i in range(24))
    Simulation(
        workload=Workload(name="planned", apps=apps),
        cluster=machines(2),
        book=BOOK,
        policy_name="shockwave",
        policy=make_policy("shockwave"),
        settings=NO_OVERHEAD,
    ).run(fold)
    return fold.result()


def test_a_run_that_plans_reports_its_forecasts() -> None:
    run = planned_run()
    assert len(run.plans.rows) == 24
    assert all(row.started >= row.told and row.ended > row.started for row in run.plans.rows)
    assert run.plans.error < 0.5
    page = render([run])
    assert "Planned starts and finishes" in page
    assert "half of the jobs ended within" in page


def test_a_run_that_plans_nothing_has_no_such_section() -> None:
    page = render(runs(("themis", "fifo"), seeds=1))
    assert "Planned starts and finishes" not in page
