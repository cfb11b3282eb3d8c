"""GPUs that jobs hold and do not use: measured by NVML or by reports, charged, warned of, and taken back. Real processes."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
from fake import world
from test_arbiter import enter

from processes import PATIENCE_S, wait_until
from themis.client.client import Client
from themis.machines.agent.messages import TaskIdle, TaskReport
from themis.machines.engines.idle_gangs import IdleGang
from themis.machines.engines.program import GangIdle
from themis.model.events import GpusIdle, Grant
from themis.schema import messages as schema
from themis.service.api import accounts, views
from themis.service.engine.config import Config
from themis.service.operations.up import running

GRANT = Grant(app=0, job=0, attempt=1, gpus=(0, 1), seat=0, until=1e9, locality=0, target=1.0, score=1.0)
TRAINS = """
import time
from themis.train import Run
run = Run(report_every_s=0.0)
for step in range(1, 6):
    run.observe(step)
    time.sleep(0.05)
time.sleep(1000)
"""


def report(steps: float, step_s: float = 1.0) -> TaskReport:
    return TaskReport(task="t", steps=steps, saved=0.0, step_s=step_s)


def test_a_job_that_reports_no_new_steps_is_idle_since_its_last_one() -> None:
    gang = IdleGang()
    every = {"after_s": 60.0, "every_s": 30.0}
    assert gang.look(GRANT, 0.0, **every) is None, "a job that never reports is not measured"
    gang.reported(report(5.0), 10.0)
    gang.reported(report(5.0), 40.0)
    assert gang.look(GRANT, 60.0, **every) is None
    found = gang.look(GRANT, 80.0, **every)
    assert found == GangIdle(app=0, job=0, attempt=1, gpu_seconds=140.0, idle_s=70.0, by="reports")
    assert gang.look(GRANT, 90.0, **every) is None
    found = gang.look(GRANT, 110.0, **every)
    assert found is not None
    assert (found.gpu_seconds, found.idle_s) == (60.0, 100.0)
    gang.reported(report(6.0), 120.0)
    found = gang.look(GRANT, 140.0, **every)
    assert found is not None
    assert (found.gpu_seconds, found.idle_s) == (0.0, 0.0), "the end of idle time is reported"
    gang.reported(report(7.0, 100.0), 300.0)
    assert gang.look(GRANT, 500.0, **every) is None, "a long step is no idle time"


def test_what_nvml_measures_goes_before_reports() -> None:
    gang = IdleGang()
    gang.reported(report(5.0), 0.0)
    gang.measured(0, TaskIdle(task="t", gpu_seconds=10.0, each_s=(10.0, 12.0)))
    gang.measured(1, TaskIdle(task="t", gpu_seconds=5.0, each_s=(5.0,)))
    found = gang.look(GRANT, 900.0, after_s=60.0, every_s=30.0)
    assert found == GangIdle(app=0, job=0, attempt=1, gpu_seconds=15.0, idle_s=5.0, by="nvml", each_s=(10.0, 12.0, 5.0))


def test_a_gpu_that_one_process_leaves_unused_is_told_after_five_minutes(tmp_path: Path) -> None:
    with world(tmp_path, 4, lease_s=600.0) as w:
        enter(w, steps=1e6, gpus=(4, 4))
        w.turn(400.0)

        def warning() -> str:
            return str(w.ask(lambda a: views.apps(a, schema.AppsRequest())).apps[0].warning)

        w.say(
            GangIdle(app=0, job=0, attempt=1, gpu_seconds=0.0, idle_s=0.0, by="nvml", each_s=(0.0, 290.0, 0.0, 290.0))
        )
        assert warning() == ""
        w.say(
            GangIdle(app=0, job=0, attempt=1, gpu_seconds=0.0, idle_s=0.0, by="nvml", each_s=(0.0, 320.0, 320.0, 320.0))
        )
        assert warning() == "3 of the GPUs of job j0 (4) did nothing for 5m20s (by NVML)"
        assert "3 of the GPUs" in w.ask(lambda a: views.show(a, "0")).app.warning
        assert [e.action for _, e in w.arbiter.journal.records() if isinstance(e, GpusIdle)] == ["warned"]
        w.say(GangIdle(app=0, job=0, attempt=1, gpu_seconds=0.0, idle_s=0.0, by="nvml", each_s=(0.0, 1.0, 2.0, 1.0)))
        assert warning() == ""


def test_idle_hours_are_charged_and_warned_of_until_the_gpus_work_again(tmp_path: Path) -> None:
    with world(tmp_path, 1, idle_warn_s=20.0, idle_cancel_s=40.0, lease_s=600.0) as w:
        enter(w, steps=1e6)
        w.turn(30.0)

        def warning() -> str:
            return str(w.ask(lambda a: views.apps(a, schema.AppsRequest())).apps[0].warning)

        idle = GangIdle(app=0, job=0, attempt=1, gpu_seconds=25.0, idle_s=25.0, by="nvml")
        w.say(idle)
        assert warning() == "the GPUs of job j0 (1) did nothing for 25s (by NVML); the app is cancelled after 40s"
        row = w.ask(lambda a: accounts.usage(a, schema.UsageRequest())).users[0]
        assert row.idle_hours == pytest.approx(25 / 3600)
        w.turn(5.0)
        w.say(GangIdle(app=0, job=0, attempt=1, gpu_seconds=0.0, idle_s=0.0, by="nvml"))
        assert warning() == ""
        w.say(GangIdle(app=0, job=0, attempt=1, gpu_seconds=1e6, idle_s=41.0, by="nvml"))
        (past,) = w.ask(lambda a: accounts.history(a, schema.HistoryRequest())).apps
        assert past.state == "cancelled"
        assert past.reason == "the GPUs of job j0 (1) did nothing for 41s (by NVML), and idle_cancel is 40s"
        assert past.idle_hours == pytest.approx(past.gpu_hours, rel=1e-3), "never more than it trained"
        assert past.attempts[0].idle_by == "nvml"


@pytest.mark.slow
def test_an_app_that_stops_reporting_steps_is_cancelled_with_the_reason(tmp_path: Path) -> None:
    config = Config(
        gpus=2,
        port=0,
        gather_s=0.0,
        policy="fifo",
        allow_root=True,
        single_trust=True,
        idle_warn_s=1.0,
        idle_cancel_s=3.0,
    )
    with running(tmp_path, config) as service, Client(tmp_path) as client:
        quiet = client.run(["sleep", "1000"], name="quiet").app
        made = client.run([sys.executable, "-c", TRAINS], name="trains", env={"MLFLOW_RUN_ID": "abc123"}).app
        wait_until(lambda: "did nothing for" in client.show(made).app.warning, "the warning")
        ended = client.wait(made, timeout_s=PATIENCE_S)
        assert ended.state == "cancelled"
        assert "(it reports no new steps), and idle_cancel is 3s" in ended.reason
        assert client.show(quiet).app.state == "running", "what reports no steps is not measured"
        found = client.history(state=["cancelled"])[0]
        assert 0 < found.idle_hours < found.gpu_hours
        assert [(run.tracker, run.run) for run in found.runs] == [("mlflow", "abc123")]
        assert client.show(made).runs == found.runs
        kinds = [record for record in client.events() if record.kind == "GpusIdle"]
        assert [record.record["action"] for record in kinds][-1] == "cancelled"
        assert service.arbiter.broken is None
