"""One data directory through other machines, policies and leases, with real jobs, and an arbiter that is killed."""

from __future__ import annotations

import os
import signal
import sys
from collections import Counter
from pathlib import Path

import pytest
from daemon import PROGRAMS, QUICK, Daemon, daemon

from audit import audit
from processes import PATIENCE_S, wait_until
from themis.cli.report import replay_home
from themis.client.client import Client
from themis.errors import InputError
from themis.model.events import Header, SettingsChanged
from themis.service.engine.journal import Journal
from witness import check_leases

pytestmark = pytest.mark.slow
APPS = 12


def gpus(client: Client) -> int:
    return sum(node.gpus for node in client.nodes() if node.state == "up")


def progress(client: Client) -> Counter[str]:
    return Counter(row.state for row in client.queue())


def again(service: Daemon, *options: str) -> Client:
    """kill -9 of the arbiter, and the next one with these options."""
    service.kill()
    service.options = options
    service.up()
    return service.client()


@pytest.mark.timeout(600)
def test_one_home_lives_through_8_4_and_12_gpus_four_policies_and_two_leases(tmp_path: Path) -> None:
    home, witness = tmp_path / "home", tmp_path / "witness"
    home.mkdir()
    settings = [s for s in QUICK if not s.startswith(("retries", "lease"))] + ["retries=3"]
    first = ("--gpus", "8", "--policy", "themis", "--set", "lease=2")
    with daemon(home, options=first, settings=settings) as service:
        client = service.client()
        beats = [sys.executable, str(PROGRAMS / "beats.py"), str(witness), "40", "0.2"]
        apps = [
            client.run(beats, gpus=(1, 2), hours=8 / 3600, weight=0.37 * (1 + n % 3), name=f"a{n}").app
            for n in range(APPS)
        ]
        wait_until(lambda: progress(client)["running"] >= 3, "jobs run")

        # 8 -> 4, another policy: while it runs.
        assert [line for line in client.set(gpus=4, policy="drf") if "->" in line][:2] == [
            "gpus: 8 -> 4",
            "policy: themis -> drf",
        ]
        assert gpus(client) == 4
        with pytest.raises(InputError, match="gpus is 0"):
            client.set(gpus=0, policy="fifo")
        wait_until(lambda: sum(row.gpus for row in client.queue()) in (3, 4), "the four that are left are in use")

        # Killed, and started as before: what was set holds.
        client = again(service, *first)
        assert (gpus(client), client.info().policy) == (4, "drf")
        wait_until(lambda: "policy stays drf" in service.said(), "it says what it left")
        before = len(client.queue())

        # Killed, and started with more GPUs, a third policy and another lease.
        client = again(service, "--gpus", "12", "--policy", "max_min_fairness", "--set", "lease=3")
        assert (gpus(client), client.info().policy, client.info().lease_s) == (12, "max_min_fairness", 3.0)
        wait_until(lambda: "gpus: 4 -> 12" in service.said(), "it says what it changed")
        if before > 6:
            wait_until(lambda: sum(row.gpus for row in client.queue()) > 4 or not client.queue(), "new GPUs are in use")

        # A settings file that appears, read on SIGHUP: a fourth policy. An option would override it, so there is none.
        client = again(service, "--gpus", "12", "--set", "lease=3")
        (home / "config.yaml").write_text("policy: tiresias\n")
        assert service.process is not None
        os.kill(service.process.pid, signal.SIGHUP)
        wait_until(lambda: client.info().policy == "tiresias", lambda: service.said()[-2000:])
        client.set(lease="2s")

        for app in apps:
            assert client.wait(app, timeout_s=PATIENCE_S).state == "completed"
        rows = {row.name: row for row in client.settings()}
        assert (rows["gpus"].value, rows["lease"].value, rows["policy"].value) == ("12", "2s", "tiresias")
        assert rows["policy"].user
        assert rows["policy"].since > 0
        assert rows["port"].restart
        assert service.down() == 0, service.said()

    journal = Journal(home / "journal.db")
    records = [record for _, record in journal.records()]
    journal.close()
    assert isinstance(records[0], Header)
    changes = [record for record in records if isinstance(record, SettingsChanged)]
    assert [c.policy for c in changes if c.policy][:3] == ["drf", "max_min_fairness", "fair_finish"]
    assert changes[-1].settings["lease_s"] == 2.0
    check_leases(records, apps=APPS, jobs=APPS)
    lines = witness.read_text().splitlines()
    assert len({line.split()[0].partition("-")[0] for line in lines}) == APPS, "every job ran"
    audit(home / "journal.db")
    assert replay_home(home, None).difference is None
