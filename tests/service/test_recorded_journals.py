"""Journals that an older version wrote with policies that deal rounds, killed while gangs ran: they fold, and the service goes on.

Two machines of 4 GPUs, six apps of eleven jobs, one job finished; in the middle a snapshot of the state, which lacks what gangs
are owed on one machine.
"""

from __future__ import annotations

import sqlite3
from pathlib import Path

import pytest
from fake import request, world

from audit import audit
from themis.cli.report import explain_home, replay_home
from themis.service.api.submission import submit

DATA = Path(__file__).parent / "data"
RUNNING = {
    "max_min_fairness": {4: (0, 1, 2, 4), 0: (3, 5, 6, 7)},
    "shockwave": {8: (4, 5), 2: (6,), 3: (7,), 6: (0, 1), 7: (2, 3)},
}
"""The gangs that held GPUs at the end of each journal."""


@pytest.fixture(params=sorted(RUNNING))
def policy(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    name: str = request.param
    db = sqlite3.connect(tmp_path / "journal.db")
    db.executescript((DATA / f"rounds-{name}.sql").read_text())
    db.close()
    return name


def last_time(home: Path) -> float:
    db = sqlite3.connect(home / "journal.db")
    ((t,),) = db.execute("SELECT max(t) FROM records").fetchall()
    db.close()
    return float(t)


def test_all_records_give_the_state_of_the_snapshot_and_of_the_end(policy: str, tmp_path: Path) -> None:
    found = audit(tmp_path / "journal.db")
    assert found.records > 100
    assert (found.pictures, found.near) == (1, 0)


def test_the_next_arbiter_takes_over_the_gangs_and_completes_every_app(policy: str, tmp_path: Path) -> None:
    now = 1000.0 + last_time(tmp_path)
    with world(tmp_path, 4, 4, policy=policy, clock=[now + 1.0]) as w:
        assert w.held() == RUNNING[policy]
        assert {grant.job: grant.gpus for grant, _, _ in w.executor.restored} == RUNNING[policy]
        assert all(started for _, _, started in w.executor.restored)
        w.ask(lambda a: submit(a, request("after", gpus=(2, 2), user="u2", key="ka", steps=400.0)))
        for _ in range(200):
            w.turn(30.0)
            for job in sorted(w.held()):
                w.finish(job, 400.0)
            if not w.arbiter.state.apps.active[: w.arbiter.state.apps.size].any():
                break
        entries = list(w.arbiter.journal.apps())
        assert [entry.name for entry in entries] == [*(f"app{i}" for i in range(5)), "later", "after"]
        assert {entry.outcome for entry in entries} == {"completed"}


def test_its_decisions_are_explained_and_repeated(policy: str, tmp_path: Path) -> None:
    assert replay_home(tmp_path, None).difference is None
    assert explain_home(tmp_path, "app0").app == "app0"
