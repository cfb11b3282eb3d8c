"""When a sweep under Ray Tune is over, its workers hear so and end as jobs that are done, at the desk or later."""

from __future__ import annotations

import os
import subprocess
import sys
from multiprocessing.connection import Client as dial
from multiprocessing.connection import Listener
from pathlib import Path
from types import SimpleNamespace

import pytest

from processes import PATIENCE_S, wait_until
from themis.client.adapters import tune
from themis.client.adapters.tune import CPUS, DESK, KEY, PATHS, TrialBroker


def test_workers_that_wait_and_that_come_later_are_told_that_there_are_no_more_trials() -> None:
    with TrialBroker.open("127.0.0.1", "key") as desk:
        for ends_first in (False, True):
            with Listener(("127.0.0.1", 0), authkey=b"key") as worker:
                if ends_first:
                    desk.end()
                with dial(desk.address, authkey=b"key") as clerk:
                    clerk.send(("worker", (worker.address, 1)))
                if not ends_first:
                    wait_until(lambda: len(desk.workers) == 1, "it waits")
                    desk.end()
                with worker.accept() as told:
                    assert told.recv() is None
            desk.ending = False
        assert not desk.workers


@pytest.mark.slow
def test_a_worker_that_is_told_so_ends_with_0_right_away(tmp_path: Path) -> None:
    """The worker's own program; of Ray it needs nothing but that it can be imported."""
    (tmp_path / "ray").mkdir()
    (tmp_path / "ray" / "__init__.py").write_text("cloudpickle = None\n")
    (tmp_path / "ray" / "tune.py").write_text("")
    with TrialBroker.open("127.0.0.1", "key") as desk:
        desk.end()
        env = {
            **os.environ,
            DESK: f"{desk.address[0]}:{desk.address[1]}",
            KEY: "key",
            CPUS: "1",
            PATHS: "",
            "PYTHONPATH": f"{tmp_path}{os.pathsep}{os.environ.get('PYTHONPATH', '')}",
        }
        done = subprocess.run(
            [sys.executable, "-m", "themis.client.adapters.tune_worker"],
            env=env,
            capture_output=True,
            timeout=PATIENCE_S,
            check=False,
        )
    assert (done.returncode, done.stderr) == (0, b"")


def test_apps_are_waited_for_until_they_are_over_and_no_longer_than_that(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tune, "ENDING_S", 0.3)
    monkeypatch.setattr(tune, "END_LOOK_S", 0.01)
    states = {1: ["running", "running", "completed"], 2: ["waiting"]}

    def show(app: int) -> SimpleNamespace:
        left = states[app]
        return SimpleNamespace(app=SimpleNamespace(state=left.pop(0) if len(left) > 1 else left[0]))

    tune.await_over(SimpleNamespace(show=show), [1, 2])  # type: ignore[arg-type]
    assert states == {1: ["completed"], 2: ["waiting"]}
