"""A restart on a machine that other processes keep busy stops no job.

How long a start takes depends on the machine, so the lease is measured: a service that starts next to the same busy processes,
without jobs, says how long a whole start takes, and leases are no longer than that.
"""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from daemon import daemon

from processes import wait_until
from themis.client.client import Client
from tiers import seeds

pytestmark = pytest.mark.slow

BUSY = 10
SETTINGS = ("lease=1h", "tick=1", "container=0.2", "grace=1", "retries=0", "node_margin=1")


@contextmanager
def busy() -> Iterator[None]:
    """Processes that compute; they end with this one, too."""
    loop = "import os, sys\nparent = os.getppid()\nwhile os.getppid() == parent:\n    sum(range(100_000))"
    processes = [subprocess.Popen([sys.executable, "-S", "-c", loop]) for _ in range(BUSY)]
    try:
        yield
    finally:
        for process in processes:
            process.kill()
            process.wait()


@pytest.mark.parametrize("ends", [("killed", "told to leave its jobs")[i] for i in seeds(1, 2)])
def test_a_restart_next_to_ten_busy_processes_stops_no_job(tmp_path: Path, ends: str) -> None:
    leave = ("--machines", "1x2", "--leave-jobs")
    with busy(), daemon(tmp_path / "empty", options=leave, settings=SETTINGS) as empty:
        empty.down()
        began = time.monotonic()
        empty.up()
        took_s = time.monotonic() - began
    lease_s = max(took_s, 3.0)
    leases = (f"node_lease={lease_s:.1f}", f"node_renew={lease_s / 5:.2f}")
    with daemon(tmp_path / "home", options=leave, settings=(*SETTINGS, *leases)) as service:
        with service.client() as client:
            app = client.run(
                [sys.executable, "-c", "import time; time.sleep(100_000)"], name="long", cwd=str(tmp_path)
            ).app
            wait_until(lambda: client.show(app).app.state == "running", "the job runs")
        with busy():
            service.kill() if ends == "killed" else service.down()
            service.up()
            with service.client() as client:
                wait_until(lambda: settled(client, app), "its machine renewed its lease")
                found = client.show(app)
                assert [(job.state, job.attempt, len(job.attempts)) for job in found.jobs] == [("running", 1, 0)]


def settled(client: Client, app: int) -> bool:
    """Whether the machine's agent has reported to the service that started: from then on it decides what runs."""
    node = client.nodes()[0]
    return bool(node.state == "up" and node.trust) or client.show(app).app.state != "running"
