"""A service that runs while Themis is upgraded goes on starting its helper processes by the names that it knows."""

from __future__ import annotations

import pickle
import subprocess
import sys
from pathlib import Path

import pytest
from fake import world
from test_arbiter import enter

from themis.policies.api import make_policy
from themis.service.engine import solving
from themis.testing.builders import app, job, machines, snapshot_of

pytestmark = pytest.mark.slow  # a process starts in a second


def test_the_policy_worker_answers_messages_that_name_classes_by_their_old_module(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setitem(sys.modules, "themis.service.solving", solving)
    for kind in (solving.Task, solving.Reply):
        monkeypatch.setattr(kind, "__module__", "themis.service.solving")
    view = snapshot_of(machines(4), [app("a", [job(100.0, 2)])])
    sent = pickle.dumps((make_policy("fifo"), 10.0)) + pickle.dumps(solving.Task(version=7, snapshot=view))
    assert b"themis.service.solving" in sent
    done = subprocess.run(
        [sys.executable, "-P", "-m", "themis.service.worker"], input=sent, capture_output=True, timeout=60, check=True
    )
    assert b"themis.service.solving" in done.stdout
    assert b"themis.service.engine" not in done.stdout
    reply = pickle.loads(done.stdout)
    assert isinstance(reply, solving.Reply)
    assert (reply.version, reply.problem, len(reply.solved.answer.gpus)) == (7, "", 1)  # type: ignore[union-attr]


def test_a_story_is_written_under_its_old_name_too(tmp_path: Path) -> None:
    with world(tmp_path) as w:
        enter(w, "mine")
        w.arbiter.close()
    said = [
        subprocess.run(
            [sys.executable, "-P", "-m", name, str(tmp_path / "journal.db"), "mine"],
            capture_output=True,
            text=True,
            timeout=60,
            check=True,
        ).stdout
        for name in ("themis.service.story", "themis.service.api.story")
    ]
    assert said[0] == said[1]
    assert '"mine"' in said[0]
