"""Training under the whole service: another user's job takes the GPUs, the arbiter decides, processes are real."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from daemon import PROGRAMS, QUICK, Daemon, daemon

from processes import PATIENCE_S, wait_until
from themis.client.client import Client
from themis.schema import messages as schema

pytestmark = [pytest.mark.slow, pytest.mark.long]
SCRIPTS = Path(__file__).parents[1] / "machines" / "programs"
SETTINGS = (*QUICK, "single_trust=true", "node_lease=30", "lease=4")
"""Users who are none of this system; leases that a busy machine can bear."""
STEPS = 60


def submit(client: Client, folder: Path, text: str, user: str) -> int:
    """The one app of a job file."""
    file = folder / f"{user}.yaml"
    file.write_text(text)
    (made,) = client.submit_file(file, user, folder=folder)
    return made.app


def until_told(flag: Path, name: str, gpus: int) -> str:
    """A job that ends once a file is there, and handles nothing."""
    return f"""
        name: {name}
        command: [sh, -c, 'while [ ! -e {flag} ]; do sleep 0.05; done']
        gpus: {gpus}
        launch: machine
        grace: 1s
        work: 4 gpu-seconds
    """


def checkpoints(service: Daemon, app: int) -> Path:
    (job,) = (service.home / "run" / "checkpoints" / f"app{app}").iterdir()
    return job


def told(client: Client, kind: str) -> list[dict[str, Any]]:
    """The journal's records of a kind."""
    return [record.record for record in client.events() if record.kind == kind]


def preempted(job: schema.JobInfo) -> list[str]:
    """Endings of all attempts but the last."""
    return [attempt.ending for attempt in job.attempts[:-1]]


def test_a_torchrun_job_shrinks_from_four_ranks_to_two_for_another_user_and_learns_the_same(tmp_path: Path) -> None:
    """No retry is left (``retries=0``): a preemption that counted as a failure would end the app.

    It promises a hundred times the steps that it does, so that the other job is worse off however long PyTorch takes to load.
    """
    pytest.importorskip("torch", reason="PyTorch is not installed; pip install 'themis-scheduler[torch]'")
    torchrun = [sys.executable, "-m", "torch.distributed.run"]
    fit = [str(SCRIPTS / "torch_fit.py"), str(STEPS)]
    flag = tmp_path / "enough"
    with (
        daemon(tmp_path / "home", options=("--machines", "1x4"), settings=SETTINGS) as service,
        service.client() as client,
    ):
        ada = submit(
            client,
            tmp_path,
            f"""
            name: fit
            command: {json.dumps([*torchrun, *fit, "0.2"])}
            launch: machine
            gpus: 2..4
            grace: 20s
            work: 6000 steps
            speed: 0.05
        """,
            "ada",
        )
        wait_until(
            lambda: any(r["gpus"] == 4 for r in told(client, "SpeedMeasured")), "its speed on four GPUs is known"
        )
        assert client.show(ada).app.gpus == 4
        ben = submit(client, tmp_path, until_told(flag, "other", 2), "ben")

        def beside_each_other() -> bool:
            held = [client.show(app).app.gpus for app in (ada, ben)]
            return held == [2, 2]

        wait_until(beside_each_other, "the arbiter takes two GPUs for the other job")
        assert client.wait(ada, timeout_s=PATIENCE_S).state == "completed", b"".join(client.logs(ada))
        job = client.show(ada).jobs[0]
        assert len(job.attempts) >= 2
        assert set(preempted(job)) == {"stopped"}
        assert not any(attempt.killed for attempt in job.attempts), "it saved within its grace"
        assert 0 < job.attempts[0].steps < STEPS
        _, weights, _ = (checkpoints(service, ada) / "result").read_text().split()
        # What it measured is believed, for each number of GPUs; it had promised a twentieth of a step a second.
        assert {(r["model"], r["gpus"]) for r in told(client, "SpeedMeasured")} >= {("ada/fit", 4), ("ada/fit", 2)}
        flag.touch()
        assert client.wait(ben, timeout_s=PATIENCE_S).state == "completed"
    # The global batch is the same for every number of ranks: one process shows what is learnt.
    (tmp_path / "straight").mkdir()
    alone = {"RANK": "0", "WORLD_SIZE": "1", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "0"}
    subprocess.run(
        [sys.executable, *fit, "0"],
        check=True,
        capture_output=True,
        timeout=PATIENCE_S,
        env={**os.environ, **alone, "THEMIS_CHECKPOINT_DIR": str(tmp_path / "straight")},
    )
    _, whole, ranks = (tmp_path / "straight" / "result").read_text().split()
    assert ranks == "1"
    assert float(weights) == pytest.approx(float(whole), rel=1e-4), "sums over ranks and of one round differently"


def test_an_unmodified_script_is_preempted_for_another_user_and_goes_on_where_it_was(tmp_path: Path) -> None:
    flag = tmp_path / "enough"
    with (
        daemon(tmp_path / "home", options=("--machines", "1x1"), settings=SETTINGS) as service,
        service.client() as client,
    ):
        ada = submit(
            client,
            tmp_path,
            f"""
            name: plain
            command: {json.dumps([sys.executable, str(SCRIPTS / "sigterm_only.py"), "200", "0.05"])}
            grace: 5s
            walltime: 10m
        """,
            "ada",
        )
        wait_until(lambda: b"begins at 0" in b"".join(client.logs(ada)), "the script runs")
        ben = submit(client, tmp_path, until_told(flag, "other", 1), "ben")
        wait_until(lambda: client.show(ben).app.gpus == 1, "the arbiter takes the GPU for the other job")
        own = checkpoints(service, ada) / "my-own-checkpoint"
        # The other job holds the GPU from the decision on; the script has its grace to save and let go.
        wait_until(lambda: own.exists() and own.read_text() != "", "it saved")
        step = int(own.read_text())
        flag.touch()
        assert client.wait(ben, timeout_s=PATIENCE_S).state == "completed"
        assert client.wait(ada, timeout_s=PATIENCE_S).state == "completed"
        said = b"".join(client.logs(ada)).decode()
        assert f"begins at {step}\n" in said
        assert said.endswith("done\n")
        assert set(preempted(client.show(ada).jobs[0])) == {"stopped"}


def test_gpus_of_trials_that_halving_stops_serve_another_user_at_once(tmp_path: Path) -> None:
    """Leases are an hour: whatever the other job gets, the sweep gave back by itself."""
    flag = tmp_path / "enough"
    settings = (
        *(s for s in SETTINGS if not s.startswith("lease=")),
        "lease=1h",
        "step=1h",
        "policy=srsf",
    )
    with (
        daemon(tmp_path / "home", options=("--machines", "1x4"), settings=settings) as service,
        service.client() as client,
    ):
        ada = submit(
            client,
            tmp_path,
            f"""
            name: search
            command: [{sys.executable}, {PROGRAMS / "curve.py"}, "{{floor}}", "100000"]
            speed: 100
            grace: 5s
            sweep:
              parameters: {{floor: [2.0, 0.1, 1.0, 0.5]}}
              sampler: grid
              budget: 100000 steps
              tuner: {{kind: halving, rungs: [{{trials: 4, work: 300}}, {{trials: 2, work: 300}}, {{trials: 1, work: 99400}}]}}
        """,
            "ada",
        )
        wait_until(lambda: client.show(ada).app.gpus == 4, "all trials run")
        ben = submit(client, tmp_path, until_told(flag, "other", 2), "ben")
        assert client.show(ben).app.gpus == 0
        wait_until(lambda: client.show(ben).app.gpus == 2, "two trials have given their GPUs back")
        trials = client.show(ada).jobs
        assert [job.outcome for job in trials] == ["stopped", "", "stopped", ""], "the two best by their losses go on"
        assert trials[1].until - trials[1].attempts[0].ended > 3000.0, "no lease has ended"
        flag.touch()
        assert client.wait(ben, timeout_s=PATIENCE_S).state == "completed"
        wait_until(lambda: client.show(ada).jobs[3].outcome == "stopped", "the second rung is over")
        (left,) = (job for job in client.show(ada).jobs if not job.outcome)
        assert left.id == trials[1].id
        client.cancel(ada)


def test_torch_jobs_whose_start_is_longer_than_a_lease_make_progress(tmp_path: Path) -> None:
    """Two users' jobs take turns on one GPU; a lease of 4 s ends before the first step of either."""
    pytest.importorskip("torch", reason="PyTorch is not installed")
    settings = (*SETTINGS, "policy=tiresias", "least_steps=20")
    with (
        daemon(tmp_path / "home", options=("--machines", "1x1"), settings=settings) as service,
        service.client() as client,
    ):
        text = f"""
            command: {json.dumps([sys.executable, str(SCRIPTS / "slow_start.py"), "5", "30"])}
            work: 30 steps
            speed: 10
            grace: 10s
        """
        apps = [submit(client, tmp_path, f"            name: {user}{text}", user) for user in ("ada", "ben")]
        for app in apps:
            assert client.wait(app, timeout_s=2 * PATIENCE_S).state == "completed"
            assert (checkpoints(service, app) / "result").read_text() == "120.0", "no step is lost or done twice"
        assert told(client, "LeastLease")
        assert any(preempted(job) for app in apps for job in client.show(app).jobs), "the first leases were too short"
