"""Ray Tune's trials in workers of one app: what is repeated is not reported, Tune's own results are unchanged."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from multiprocessing import Pipe
from multiprocessing.connection import Client as dial
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import pytest
from daemon import daemon

from processes import running, wait_until
from raycluster import RayCluster
from themis.client.adapters.folders import pack, receive_folder, send_packed
from themis.client.adapters.tune import Conversation, TrialBroker, on_themis, worker_of
from themis.errors import InputError

SCRIPT = Path(__file__).parents[2] / "examples" / "tuning" / "tune_sweep.py"


def act(worker: Connection, steps: range, folder: Path, *, saves: int, end: str) -> None:
    """A worker's side: reports, a checkpoint at each multiple of ``saves``, then the end or none at all."""
    *_, saved = worker.recv()
    if saved:
        begin = receive_folder(worker, folder / f"from{steps.start}")
        assert int((begin / "step").read_text()) == steps.start
    for step in steps:
        keep = (step + 1) % saves == 0
        worker.send(("report", {"step": step + 1}, keep))
        if keep:
            (folder / f"at{step + 1}").mkdir(exist_ok=True)
            (folder / f"at{step + 1}" / "step").write_text(str(step + 1))
            send_packed(worker, pack(folder / f"at{step + 1}"))
        worker.recv()
    if end:
        worker.send((end, "ValueError: no", False))
    worker.close()


def told(tmp_path: Path, *parts: tuple[range, str], saves: int) -> list[tuple[int, bool]]:
    """What Tune hears (step, with a checkpoint) of a trial that one worker after another does a part of."""
    heard: list[tuple[int, bool]] = []
    trial = Conversation(tmp_path / "trial", None)

    def report(metrics: dict[str, Any], checkpoint: Path | None) -> None:
        heard.append((metrics["step"], checkpoint is not None))

    for steps, end in parts:
        ours, theirs = Pipe()
        worker = threading.Thread(target=act, args=(theirs, steps, tmp_path), kwargs={"saves": saves, "end": end})
        worker.start()
        with ours:
            if end:
                trial.hold(ours, ("f", {}, "id"), report)
            else:
                with pytest.raises((EOFError, OSError)):
                    trial.hold(ours, ("f", {}, "id"), report)
        worker.join()
    assert trial.over
    return heard


def test_a_preempted_trial_goes_on_from_its_checkpoint_and_tune_hears_each_step_once(tmp_path: Path) -> None:
    heard = told(tmp_path, (range(5), ""), (range(4, 7), ""), (range(6, 8), "done"), saves=2)
    assert heard == [(1, False), (2, True), (3, False), (4, True), (5, False), (6, True), (7, False), (8, True)]


def test_a_trial_without_checkpoints_begins_anew_and_tune_hears_only_what_is_new(tmp_path: Path) -> None:
    heard = told(tmp_path, (range(3), ""), (range(2), ""), (range(4), "done"), saves=99)
    assert heard == [(1, False), (2, False), (3, False), (4, False)]


def test_what_the_function_raises_is_the_trials_error(tmp_path: Path) -> None:
    with pytest.raises(RuntimeError, match="ValueError: no"):
        told(tmp_path, (range(1), "failed"), saves=9)


def test_the_desk_pairs_those_that_wait_passes_over_the_dead_and_refuses_in_words() -> None:
    with TrialBroker.open("127.0.0.1", "key") as desk:
        with dial(desk.address, authkey=b"key") as stopped:
            stopped.send(("trial", None))
            wait_until(lambda: len(desk.trials) == 1, "it waits")
        found: list[str] = []

        def trial() -> None:
            try:
                with worker_of(desk.address, "key"):
                    found.append("worker")
            except RuntimeError as error:
                found.append(str(error))

        one = threading.Thread(target=trial)
        one.start()
        wait_until(lambda: len(desk.trials) == 2, "another waits")
        desk.refuse("the app failed")
        one.join()
    assert found == ["the app failed"]


def test_what_is_no_function_is_refused() -> None:
    class Trainable:
        pass

    with pytest.raises(InputError, match="expected a function"), on_themis(Trainable):  # type: ignore[arg-type]
        pass


@pytest.mark.slow
@pytest.mark.xdist_group("ray")
def test_a_sweep_under_asha_is_preempted_and_has_the_results_that_tune_has_alone(
    tmp_path: Path, ray_nodes: RayCluster
) -> None:
    with daemon(tmp_path / "home", options=("--gpus", "2")) as service, service.client() as client:
        env = {**os.environ, "THEMIS_HOME": str(service.home), "RAY_ADDRESS": ray_nodes.address}
        with running([sys.executable, str(SCRIPT), "0.5"], env=env, stdout=subprocess.PIPE, text=True) as sweep:
            wait_until(lambda: any(a.name == "sweep" and a.gpus for a in client.queue()), "workers run")
            logs = service.home / "run" / "nodes"
            assert logs.is_dir()
            client.hold("sweep")
            wait_until(lambda: not client.show("sweep").app.gpus, "they gave their GPUs back")
            client.resume("sweep")
            out, _ = sweep.communicate(timeout=240)
        shown = client.show("sweep")
    assert sweep.returncode == 0
    assert "x 2.0: step 6, iteration 6, loss 0.0" in out
    assert "best x 2.0" in out
    rows = [line for line in out.splitlines() if line.startswith("x ")]
    assert len(rows) == 3
    assert all(row.split(": step ")[1][0] == row.split("iteration ")[1][0] for row in rows), "no step was heard twice"
    assert {a.ending for job in shown.jobs for a in job.attempts} == {"stopped", "finished"}
    assert shown.app.state == "completed", "a sweep that ended well is no cancelled app"
    assert any(job.attempts[-1].steps > 0 for job in shown.jobs), "what Tune has heard of is not lost work"
