"""The example of two users, an Optuna study and a Ray Tune sweep, at once on one Ray cluster whose GPUs Themis leases."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from daemon import QUICK, daemon

from raycluster import RayCluster

SCRIPT = Path(__file__).parents[2] / "examples" / "tuning" / "two_users.py"
pytestmark = [pytest.mark.slow, pytest.mark.xdist_group("ray")]
SETTINGS = (*QUICK, "policy=drf", "node_lease=30", "lease=10", "grace=10", "single_trust=true")
"""Leases longer than a trial takes to start on a busy machine; under ``fair_finish`` one user may have all GPUs first."""


def test_two_users_share_a_ray_cluster_and_each_finds_what_there_is_to_find(
    tmp_path: Path, ray_nodes: RayCluster
) -> None:
    pytest.importorskip("optuna", reason="Optuna is not installed; pip install 'themis-scheduler[optuna]'")
    pytest.importorskip("ray.tune", reason="Ray Tune is not installed; pip install 'themis-scheduler[tune]'")
    options = ray_nodes.options(tmp_path / "home" / "run" / "on-nodes")
    with daemon(tmp_path / "home", options=options, settings=SETTINGS) as service:
        env = {**os.environ, "THEMIS_HOME": str(service.home), "RAY_ADDRESS": ray_nodes.address}
        done = subprocess.run([sys.executable, str(SCRIPT), "6"], env=env, capture_output=True, text=True, timeout=400)
        assert done.returncode == 0, done.stderr
        with service.client() as client:
            jobs = [job for app in client.history() for job in client.show(app.id).jobs]
    rows = re.findall(r"^(\w+): best x ([-\d.]+), held ([\d.]+) GPU seconds", done.stdout, re.MULTILINE)
    assert [(user, best) for user, best, _ in rows] == [("ann", "2.0"), ("ben", "2.0")]
    assert all(float(held) > 0 for *_, held in rows), "each had GPUs while both wanted all"
    endings = {attempt.ending for job in jobs for attempt in job.attempts}
    assert endings <= {"finished", "stopped", "requeued"}, "no attempt failed"
