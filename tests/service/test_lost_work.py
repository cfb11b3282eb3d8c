"""Attempts that were told to stop and could not save count as failures, and ``themis show`` says what is lost."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from fake import world
from test_arbiter import ended, enter

from themis.cli.table_columns import last_words
from themis.machines.engines.program import Ending
from themis.model.events import JobStarted, JobStopped
from themis.schema.wire import as_dict
from themis.service.api import views

WORDS = "preempted at step 20, it could not save: 10 steps are lost, and the next attempt begins at step 10; its log says why"


def test_who_could_not_save_waits_and_is_given_up_after_its_retries(tmp_path: Path) -> None:
    with world(tmp_path, silent=True, retries=1, backoff_s=10.0) as w:
        enter(w)
        for attempt in (1, 2):
            w.say(JobStarted(job=0, attempt=attempt))
            w.ask(lambda a: a.hold(0))
            end = replace(ended(0, attempt, Ending.FAILED, 1), cause="held", message=WORDS, steps=10.0)
            w.say(end, JobStopped(job=0, attempt=attempt, steps=10.0))
            entry = w.arbiter.journal.apps("app = ?", 0)[0]
            if attempt == 1:
                assert last_words(as_dict(views.show(w.arbiter, "0"))) == [f"Job 0 j0, attempt 1, failed: {WORDS}."]
                w.ask(lambda a: a.resume(0))
                assert w.held() == {}, "it waits as after any failure"
                w.turn(10.1)
                assert set(w.held()) == {0}
        assert (entry.outcome, entry.reason) == ("failed", f"job j0 failed 2 times, at last: {WORDS}")
        assert last_words(as_dict(views.show(w.arbiter, "0"))) == []
