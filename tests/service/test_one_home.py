"""One home, many kills: every submission that was acknowledged is there afterwards, and the journal opens each time.

Odd weights, a policy that asks for bids in a process of its own, leases of seconds. ``THEMIS_HOME_KILLS`` and ``THEMIS_HOME_APPS``
make it longer; ``make soak`` runs 300 kills of one home with 2,000 apps.
"""

from __future__ import annotations

import os
import sqlite3
import subprocess
import sys
import threading
import time
from contextlib import closing, suppress
from pathlib import Path

import numpy as np
import pytest
from daemon import QUICK, Daemon, daemon

from audit import audit
from processes import wait_until
from themis.errors import ThemisError

pytestmark = pytest.mark.slow
KILLS = int(os.environ.get("THEMIS_HOME_KILLS", "2"))
APPS = int(os.environ.get("THEMIS_HOME_APPS", "16"))
LONG = KILLS > 2
WEIGHTS = (0.37, 1 / 3, 0.1, 0.7)


class Submitter(threading.Thread):
    """Submits apps of ``true``, one after the other, whatever happens to the service; keeps what was acknowledged."""

    def __init__(self, service: Daemon) -> None:
        super().__init__(daemon=True)
        self.service, self.acknowledged = service, dict[str, int]()
        self.enough = threading.Event()

    def run(self) -> None:
        rng = np.random.default_rng(0)
        while len(self.acknowledged) < APPS and not self.enough.is_set():
            # An answer that got lost is asked for again, by the same key.
            key = f"key-{len(self.acknowledged)}"
            with suppress(ThemisError, OSError), self.service.client() as client:
                while len(self.acknowledged) < APPS and not self.enough.is_set():
                    key = f"key-{len(self.acknowledged)}"
                    weight = WEIGHTS[len(self.acknowledged) % len(WEIGHTS)]
                    self.acknowledged[key] = client.run(["true"], weight=weight, key=key, hours=0.001, retries=3).app
                    time.sleep(float(rng.exponential(0.05)))
            time.sleep(0.05)


@pytest.mark.timeout(450 if not LONG else 60 * KILLS + 10 * APPS)
def test_every_acknowledged_submission_outlives_kills_of_the_arbiter(tmp_path: Path) -> None:
    rng = np.random.default_rng(KILLS)
    settings = (*QUICK, "policy=themis", "max_apps_per_user=100000", "max_submissions=100000", "max_apps=100000")
    with daemon(tmp_path / "home", options=("--gpus", "4"), settings=settings) as service:
        submitter = Submitter(service)
        submitter.start()
        for _ in range(KILLS):
            time.sleep(float(rng.uniform(0.3, 4.0)))
            service.kill()
            service.up()
        submitter.join(300 + APPS)
        assert not submitter.is_alive(), f"{len(submitter.acknowledged)} of {APPS} were submitted"
        with service.client() as client:
            # The last ones may wait for the first, whose shares are larger.
            for app in submitter.acknowledged.values():
                assert client.wait(app, timeout_s=300 + APPS).state == "completed"
        assert service.down() == 0, service.said()
    with closing(sqlite3.connect(tmp_path / "home" / "journal.db")) as db:
        there = {key.partition("/")[2]: app for key, app in db.execute("SELECT key, app FROM apps")}
        outcomes = [outcome for (outcome,) in db.execute("SELECT outcome FROM apps")]
    assert there == submitter.acknowledged
    assert set(outcomes) == {"completed"}
    found = audit(tmp_path / "home" / "journal.db")
    print(f"{KILLS} kills, {APPS} apps: {found}")
    assert found.near == 0
    assert "damaged" not in service.said()


def test_a_client_finds_the_arbiter_that_comes_after_a_crash_on_another_port(tmp_path: Path) -> None:
    with daemon(tmp_path / "home", options=("--gpus", "2")) as service, service.client() as client:
        before = client.address
        service.kill()
        service.up()
        assert client.info().pid > 0
        assert client.address != before


@pytest.mark.unfoldable
@pytest.mark.timeout(450)
def test_the_command_refuses_a_damaged_home_and_repairs_it_when_it_is_told_to(tmp_path: Path) -> None:
    with daemon(tmp_path / "home", options=("--gpus", "2")) as service:
        with service.client() as client:
            apps = [client.run(["sleep", "300"], name=f"s{n}", weight=0.37).app for n in range(3)]
            wait_until(lambda: any(row.gpus for row in client.queue()), "a job has a GPU")
            client.run(["true"], weight=0.37, hours=0.001, name="later")
        service.kill()
        journal = tmp_path / "home" / "journal.db"
        with closing(sqlite3.connect(journal)) as db:
            (number,) = db.execute("SELECT min(number) FROM records WHERE kind = 'Grant'").fetchone()
            db.execute("UPDATE records SET t = t + 0.5 WHERE number = ?", (number,))
            db.commit()
        up = [sys.executable, "-m", "themis.cli", "up", "--home", str(tmp_path / "home")]
        refused = subprocess.run(
            [*up, *("--gpus", "2", "--port", "0", "--allow-root"), *(word for s in QUICK for word in ("--set", s))],
            capture_output=True,
            text=True,
            timeout=200,
            check=False,
        )
        assert refused.returncode == 2, refused.stderr
        assert f"is damaged: record {number}" in refused.stderr.replace("\n", " ")
        assert "Traceback" not in refused.stderr
        service.options = ("--gpus", "2", "--repair")
        service.up()
        said = service.said()
        # A decision without its commands is none, so the state ends before it.
        assert f"The last good record is {number - 1}." in said
        assert "The state continues from record" in said
        assert "'later' of " in said
        assert "Lost; submit them again" not in said
        with service.client() as client:
            queue = {row.id: row.state for row in client.queue()}
            assert queue.keys() >= set(apps), said
            for app in apps:
                client.cancel(app)
        assert service.down() == 0, service.said()
    assert audit(journal).records > 0
