"""A job has one number for all who ask: its position in its app, from 0, as ``themis logs --job`` takes it."""

from __future__ import annotations

from pathlib import Path

from fake import request, world
from test_arbiter import enter
from test_budgets import LEASE, run_for
from test_fairness_over_time import api_of

from themis.model.events import MetricsReported
from themis.schema import messages as schema
from themis.service.api import accounts
from themis.service.api.submission import submit


def test_every_answer_numbers_jobs_within_their_app(tmp_path: Path) -> None:
    with world(tmp_path, 8) as w:
        for name in ("first", "second"):
            asked = request(name, steps=2000.0)
            asked.jobs = [asked.jobs[0], asked.jobs[0].model_copy(deep=True)]
            w.ask(lambda a, asked=asked: submit(a, asked))
        w.turn(30.0)
        w.say(MetricsReported(job=3, attempt=1, steps=500.0, total=0.0, values=(("loss", 2.0),)))
        w.ask(lambda a: a.journal.add_run_id(1, 3, 1, "wandb", "r7"))
        api = api_of(w, tmp_path)
        shown = api.Show(schema.AppRef(app="second"))
        assert [job.id for job in shown.jobs] == [0, 1]
        assert [(run.job, run.run) for run in shown.runs] == [(1, "r7")]
        assert shown.jobs[1].metrics == {"loss": 2.0}, "its reports are its own"
        trials = api.Trials(schema.AppRef(app="second")).trials
        assert [(trial.job, trial.last_loss) for trial in trials] == [(0, None), (1, 2.0)]
        records = list(api.Events(schema.EventsRequest(follow=False)))
        (metrics,) = (r for r in records if r.kind == "MetricsReported")
        assert metrics.jobs == [schema.JobOfApp(app=1, job=1)]
        assert metrics.record["job"] == 3, "the record is a line of an event log"
        w.finish(2, 2000.0)
        w.finish(3, 2000.0)
        (past,) = w.ask(lambda a: accounts.history(a, schema.HistoryRequest())).apps
        assert {attempt.job for attempt in past.attempts} == {0, 1}


def test_renewed_leases_are_events_of_their_users(tmp_path: Path) -> None:
    with world(tmp_path, 8, **LEASE) as w:
        for user in ("ann", "bob"):
            enter(w, f"{user}s", user=user, steps=40000.0)
        run_for(w, 300.0)
        api = api_of(w, tmp_path)
        kinds = {}
        for app, user in enumerate(("ann", "bob", "eve")):
            records = list(api.Events(schema.EventsRequest(user=user, follow=False)))
            kinds[user] = {record.kind for record in records}
            assert all(app in {job.app for job in r.jobs} for r in records if r.kind == "Renew")
        assert {user for user in kinds if "Renew" in kinds[user]} == {"ann", "bob"}
