"""A dynamic job, from its job file through service, node agent and real process to the journal and what is forecast."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
from daemon import daemon
from fake import request, world

from processes import wait_until
from themis.client.client import user_name
from themis.client.submit_requests import read_requests
from themis.core.forecasting import forecast_jobs
from themis.errors import InputError
from themis.model.events import BatchChanged, JobStarted
from themis.schema import messages as schema
from themis.service.api.submission import submit
from themis.service.engine.arbiter import Arbiter

PROGRAM = Path(__file__).parents[1] / "machines" / "programs" / "epochs.py"
DYNAMIC = schema.Dynamic(mode="gns", sizes=[schema.BatchSize(batch=b, steps_per_epoch=512 / b) for b in (8, 16, 32)])


def submitted(arbiter: Arbiter, dynamic: schema.Dynamic = DYNAMIC) -> int:
    asked = request("a", steps=9.0)
    asked.jobs[0].regimes[0].batch = 8
    asked.jobs[0].dynamic = dynamic
    return int(submit(arbiter, asked).app)


def test_a_change_of_batch_size_reaches_the_forecast_and_outlives_a_restart(tmp_path: Path) -> None:
    with world(tmp_path) as w:
        w.ask(submitted)
        w.say(JobStarted(job=0, attempt=1), BatchChanged(job=0, attempt=1, steps=3.0, batch=16))
        assert [(r.steps, r.batch) for r in w.arbiter.state.regimes[0]] == [(3.0, 8), (6.0, 16)]
        state = w.arbiter.state
        before = forecast_jobs(state, state.app_jobs(0), state.jobs.done[:1]).share.tolist()
        # A third is done; the rest is at batch size 16 and, later, 32.
        assert len(before) == 2
        assert sum(before) == pytest.approx(6 / 9)
    with world(tmp_path) as again:
        state = again.arbiter.state
        assert [(r.steps, r.batch) for r in state.regimes[0]] == [(3.0, 8), (6.0, 16)]
        left = forecast_jobs(state, state.app_jobs(0), state.jobs.done[:1])
        assert left.share.tolist() == before


@pytest.mark.parametrize(
    ("dynamic", "said"),
    [
        (schema.Dynamic(mode="gns"), "expected at least one"),
        (schema.Dynamic(mode="gns", sizes=[schema.BatchSize(batch=16, steps_per_epoch=9.0)]), "begins at batch size 8"),
    ],
)
def test_what_no_dynamic_job_declares_is_refused(tmp_path: Path, dynamic: schema.Dynamic, said: str) -> None:
    with world(tmp_path) as w, pytest.raises(InputError, match=said):
        w.ask(lambda arbiter: submitted(arbiter, dynamic))


@pytest.mark.slow
def test_a_job_file_of_a_dynamic_job_is_run_and_its_changes_are_in_the_journal(tmp_path: Path) -> None:
    (tmp_path / "job.yaml").write_text(
        f"name: grows\ncommand: [{sys.executable}, {PROGRAM}, '5', '0.05']\nwork: 5 epochs\nbatch: 8\nsteps_per_epoch: 8\n"
        "speed: 20\ndynamic: {mode: gns, max_batch: 32}\n"
    )
    with daemon(tmp_path / "home") as service:
        client = service.client()
        (asked,) = read_requests(tmp_path / "job.yaml", user_name(), folder=tmp_path)
        client.submit(asked)
        wait_until(lambda: client.show("grows").app.state == "completed", lambda: f"it ends; {service.said()}")
        records = [record.record for record in client.events() if record.kind == "BatchChanged"]
        assert records[0]["batch"] == 8
        change = next(record for record in records if record["batch"] == 16)
        assert change["steps"] == pytest.approx(3.0, abs=0.5)
        assert service.down() == 0
