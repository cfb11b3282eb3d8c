"""Class trainables in workers: the same steps and checkpoints as without Themis, whoever of the workers makes them."""

from __future__ import annotations

import multiprocessing
import os
import pickle
import signal
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from multiprocessing.connection import Client as dial
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("ray.tune", reason="Ray Tune is not installed; pip install 'themis-scheduler[tune]'")
from ray import cloudpickle, tune
from trainables import AsDictionary, Counter

from processes import wait_until
from themis.client.adapters.tune import TrialBroker, leased
from themis.client.adapters.tune_class import Part
from themis.client.adapters.tune_resources import LeasedGpus
from themis.client.adapters.tune_worker import TuneTrial, apart, serve
from themis.machines.agent.keeper import newest
from themis.train.run import PREEMPTED


@pytest.fixture(autouse=True)
def default_sigterm() -> Iterator[None]:
    """SIGTERM as in a job's own process: a Ray cluster that other tests started here has a handler of its own for it."""
    before = signal.signal(signal.SIGTERM, signal.SIG_DFL)
    yield
    signal.signal(signal.SIGTERM, before or signal.SIG_DFL)


@dataclass
class Workers:
    """Real processes of ``tune_worker.serve``, one for each conversation."""

    root: Path
    made: list[Any] = field(default_factory=list)

    @contextmanager
    def hire(self) -> Iterator[Connection]:
        ours, theirs = multiprocessing.Pipe()
        folder = self.root / f"worker{len(self.made)}"
        folder.mkdir()
        process = multiprocessing.get_context("fork").Process(target=self._run, args=(ours, theirs, folder))
        process.start()
        theirs.close()
        self.made.append(process)
        with ours:
            yield ours

    @staticmethod
    def _run(ours: Connection, theirs: Connection, folder: Path) -> None:
        ours.close()
        os._exit(serve(theirs, folder))

    def end(self, number: signal.Signals) -> None:
        """Of the present one."""
        os.kill(self.made[-1].pid, number)


def part(tmp_path: Path, kind: type[Any] = Counter, **config: Any) -> tuple[Part, Workers]:
    tmp_path.mkdir(exist_ok=True)
    workers = Workers(tmp_path)
    word = (cloudpickle.dumps(kind), {"x": 1.0, **config}, "trial7")
    return Part(workers.hire, word, tmp_path / "actor"), workers


def test_steps_are_made_by_one_worker_and_say_what_the_class_says(tmp_path: Path) -> None:
    trial, workers = part(tmp_path)
    found = [trial.step(i) for i in range(4)]
    assert [(r["count"], r["before"], r["done"]) for r in found] == [
        (1, 0, False),
        (2, 1, False),
        (3, 2, False),
        (4, 3, True),
    ]
    assert {r["process"] for r in found} == {workers.made[0].pid}
    trial.hang_up()
    workers.made[0].join(10)
    assert workers.made[0].exitcode == 0


@pytest.mark.parametrize("kind", [Counter, AsDictionary])
def test_a_checkpoint_is_what_the_class_gave_and_another_trial_goes_on_from_it(tmp_path: Path, kind: type[Any]) -> None:
    trial, _ = part(tmp_path / "a", kind)
    (tmp_path / "saved").mkdir()
    for i in range(2):
        trial.step(i)
    saved = trial.save(tmp_path / "saved", 2)
    if kind is Counter:
        assert saved is None
        assert (tmp_path / "saved" / "count").read_text() == "2"
    else:
        assert saved == {"count": 2}
        assert not list((tmp_path / "saved").iterdir())
    other, _ = part(tmp_path / "b", kind)
    other.load(saved or tmp_path / "saved")
    found = other.step(2)
    assert (found["count"], found["before"]) == (3, 2)
    trial.hang_up()
    other.hang_up()


def test_a_worker_that_is_told_to_end_saves_and_the_next_one_goes_on(tmp_path: Path) -> None:
    trial, workers = part(tmp_path)
    assert trial.step(0)["count"] == 1
    workers.end(signal.SIGTERM)
    found = trial.step(1)
    assert (found["count"], found["before"]) == (2, 1)
    workers.made[0].join(10)
    assert workers.made[0].exitcode == PREEMPTED
    assert len(workers.made) == 2
    # Nothing was made twice: the checkpoint of the first worker was made after its step.
    assert trial.made == 1
    trial.hang_up()


def test_steps_since_the_last_checkpoint_of_a_killed_worker_are_made_again_unheard(tmp_path: Path) -> None:
    trial, workers = part(tmp_path)
    for i in range(2):
        trial.step(i)
    trial.save(tmp_path / "saved", 2)
    trial.step(2)
    workers.end(signal.SIGKILL)
    wait_until(lambda: not workers.made[0].is_alive(), "it is gone")
    found = trial.step(3)
    assert (found["count"], found["before"]) == (4, 3)
    assert len(workers.made) == 2
    trial.hang_up()


def test_what_a_class_raises_is_the_trials_error_with_its_traceback(tmp_path: Path) -> None:
    trial, workers = part(tmp_path, raises=1)
    trial.step(0)
    with pytest.raises(RuntimeError, match="ValueError: no good"):
        trial.step(1)
    trial.hang_up()
    workers.made[0].join(10)
    assert workers.made[0].exitcode == 0, "it is the trial's failure, not the job's"


def test_a_job_that_is_told_to_stop_in_the_moment_that_a_trial_starts_passes_it_on(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Also where the process has other threads, which a signal may take as well."""
    ours, _theirs = multiprocessing.Pipe()
    fork, told = os.fork, threading.Event()

    def slow_fork() -> int:
        child = fork()
        if child:
            os.kill(os.getpid(), signal.SIGTERM)  # before the parent goes on
        return child

    monkeypatch.setattr("themis.client.adapters.tune_worker.os.fork", slow_fork)
    other = threading.Thread(target=told.wait)
    other.start()
    try:
        assert apart(lambda: int(time.sleep(60) or 0), ours) == -signal.SIGTERM
    finally:
        told.set()
        other.join()
    assert signal.getsignal(signal.SIGTERM) is signal.SIG_DFL


@pytest.mark.parametrize("how", ["term", "kill", "exit"])
def test_a_trials_process_ends_as_it_did_and_hears_what_the_job_is_told(tmp_path: Path, how: str) -> None:
    ours, _theirs = multiprocessing.Pipe()

    def work() -> int:
        if how == "kill":
            os.kill(os.getpid(), signal.SIGKILL)
        if how == "exit":
            return 3
        told: list[int] = []
        signal.signal(signal.SIGTERM, lambda number, _: told.append(number))
        os.kill(os.getppid(), signal.SIGTERM)
        wait_until(lambda: told, "the job passed it on")
        return 0

    assert apart(work, ours) == {"term": PREEMPTED, "kill": -signal.SIGKILL, "exit": 3}[how]
    assert ours.closed
    assert signal.getsignal(signal.SIGTERM) is signal.SIG_DFL


@pytest.mark.parametrize(
    ("said", "with_folder", "kept"),
    [("report", False, False), ("report", True, True), ("done", False, True), ("failed", False, True)],
)
def test_the_scheduler_sees_work_as_kept_once_tune_has_its_outcome_or_a_checkpoint(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, said: str, with_folder: bool, kept: bool
) -> None:
    monkeypatch.setenv("THEMIS_CHECKPOINT_DIR", str(tmp_path))
    before = newest(str(tmp_path))
    folder = tmp_path.parent / "checkpoint"
    folder.mkdir(exist_ok=True)
    ours, theirs = multiprocessing.Pipe()
    with ours, theirs:
        TuneTrial(theirs, "t", None).send(said, {}, folder if with_folder else None)
        assert ours.recv() == (said, {}, with_folder)
    assert (newest(str(tmp_path)) != before) == kept


def test_tune_is_told_of_gpus_only_when_the_lease_has_another_number_of_them(monkeypatch: pytest.MonkeyPatch) -> None:
    @dataclass
    class Trial:
        trial_id: str
        placement_group_factory: Any

    with TrialBroker.open("127.0.0.1", "key") as desk:
        monkeypatch.setattr("themis.client.adapters.tune.OPEN", [desk])
        trial = Trial("t", LeasedGpus(0.5, 1))
        assert leased(None, trial, {}, None) is None, "nobody knows yet"
        desk.gpus["t"] = 1
        assert leased(None, trial, {}, None) is None
        desk.gpus["t"] = 4
        assert leased(None, trial, {}, None) == LeasedGpus(0.5, 4) != trial.placement_group_factory
        # Ray is asked for the CPUs alone: all GPUs are Themis'.
        assert leased(None, trial, {}, None).required_resources == {"CPU": 0.5}
        assert pickle.loads(pickle.dumps(LeasedGpus(0.5, 4))) == LeasedGpus(0.5, 4)
        assert leased(None, Trial("t", tune.PlacementGroupFactory([{"CPU": 1}])), {}, None) is None


def test_a_trial_gets_a_worker_with_as_many_gpus_as_it_had() -> None:
    with TrialBroker.open("127.0.0.1", "key") as desk:
        desk.gpus["b"] = 2
        for port, gpus in ((1001, 1), (1002, 2)):
            with dial(desk.address, authkey=b"key") as worker:
                worker.send(("worker", (("127.0.0.1", port), gpus)))
        wait_until(lambda: len(desk.workers) == 2, "both wait")
        found = []
        for trial in ("b", "a"):
            with dial(desk.address, authkey=b"key") as actor:
                actor.send(("trial", trial))
                found.append(actor.recv())
        assert found == [("127.0.0.1", 1002), ("127.0.0.1", 1001)]
        assert desk.gpus == {"a": 1, "b": 2}
