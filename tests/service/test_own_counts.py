"""Steps and metrics of a job are those that its program reports; nothing is computed from an assumption about its work."""

from __future__ import annotations

import math
from inspect import signature
from pathlib import Path

import pytest
from fake import World, request, world
from test_fairness_over_time import api_of

from themis.cli.act import run
from themis.cli.table_columns import JOBS
from themis.client.command import run_request
from themis.model.events import JobReached, MetricsReported
from themis.schema import messages as schema
from themis.service.api.submission import submit


def enter(w: World, *, own: bool) -> int:
    """An app of one job of unknown work, or of 2,000 steps."""
    asked = request("a", steps=2000.0)
    asked.jobs[0].program.work_is_time = not own
    return int(w.ask(lambda a: submit(a, asked)).app)


def reported(steps: float, **values: float) -> MetricsReported:
    return MetricsReported(job=0, attempt=1, steps=steps, total=1500.0, values=tuple(values.items()))


def test_steps_of_unknown_work_are_what_the_program_reports(tmp_path: Path) -> None:
    with world(tmp_path) as w:
        enter(w, own=False)
        w.turn(30.0)
        api = api_of(w, tmp_path)
        (job,) = api.Show(schema.AppRef(app="a")).jobs
        assert (job.steps, job.total, job.steps_known) == (None, None, False), "nothing was reported"
        w.say(reported(500.0, loss=2.0), reported(600.0, f1=math.nan))
        (job,) = api.Show(schema.AppRef(app="a")).jobs
        assert (job.steps, job.total) == (600.0, 1500.0)
        assert job.metrics["loss"] == 2.0
        assert math.isnan(job.metrics["f1"])
        row = job.model_dump()
        assert (JOBS["steps"](row), JOBS["metrics"](row)) == ("600/1500", "loss 2, f1 nan")
        curves = {curve.metric: (curve.steps, curve.values) for curve in api.course(0).curves}
        assert curves == {"loss": ((500.0,), (2.0,)), "f1": ((600.0,), (None,))}, "a single run has curves too"


def test_the_end_of_unknown_work_is_no_point_of_a_curve(tmp_path: Path) -> None:
    with world(tmp_path) as w:
        enter(w, own=False)
        w.turn(30.0)
        w.say(reported(500.0, loss=2.0), JobReached(job=0, attempt=1, steps=54_000.0, loss=math.inf))
        (curve,) = api_of(w, tmp_path).course(0).curves
        assert (curve.metric, curve.steps) == ("loss", (500.0,))


def test_work_in_steps_stays_the_users(tmp_path: Path) -> None:
    with world(tmp_path) as w:
        enter(w, own=True)
        w.turn(1.0)
        w.say(reported(600.0))
        (job,) = api_of(w, tmp_path).Show(schema.AppRef(app="a")).jobs
        assert (job.total, job.steps_known) == (2000.0, True)
        assert job.steps == pytest.approx(w.ask(lambda a: float(a.state.at(a.instant).steps_now([0])[0])), abs=1.0)


def test_a_trial_shows_a_loss_that_is_no_number(tmp_path: Path) -> None:
    with world(tmp_path) as w:
        enter(w, own=False)
        w.say(reported(5.0, loss=0.5), reported(6.0, loss=math.nan))
        (trial,) = api_of(w, tmp_path).Trials(schema.AppRef(app="a")).trials
        assert math.isnan(trial.last_loss)
        assert (trial.best_loss, trial.best_steps) == (0.5, 5.0)
        assert (trial.steps, trial.total) == (6.0, 1500.0)
        w.say(reported(7.0, loss=0.25), JobReached(job=0, attempt=1, steps=54_000.0, loss=math.inf))
        (trial,) = api_of(w, tmp_path).Trials(schema.AppRef(app="a")).trials
        assert (trial.last_loss, trial.best_loss) == (0.25, 0.25), "the end of a job that names no loss is not one"


def test_work_that_nobody_named_is_what_the_service_assumes_however_it_is_submitted(tmp_path: Path) -> None:
    """``themis run`` without ``--hours`` assumes what a job file without work does, and says that it is an assumption."""
    asked = run_request(["sleep", "1"], gpus=(2, 2), name="a", hours=None, model="", env={})
    (job,) = asked["jobs"]
    assert job["program"]["work_unknown"]
    assert signature(run).parameters["hours"].default is None
    with world(tmp_path, unknown_work_s=100.0) as w:
        request = schema.SubmitRequest.model_validate({**asked, "user": "ann"})
        w.ask(lambda a: submit(a, request))
        assert w.arbiter.state.jobs.total[0] == 2 * 100.0
