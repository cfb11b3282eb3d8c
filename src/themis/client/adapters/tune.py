"""Ray Tune's trials on Themis' GPUs: a ``Tuner`` as it is, with its searcher and its scheduler, trains in jobs of one app.

    with on_themis(train, workers=4, gpus=1, hours=0.5) as trainable:
        results = tune.Tuner(trainable, param_space=..., tune_config=tune.TuneConfig(scheduler=ASHAScheduler(), ...)).fit()

    Tuner -> trial (an actor without GPUs) --desk--> worker (a job: a process on leased GPUs), which calls ``train``

The app has as many jobs as may train at the same time. A job is a worker: it takes a trial that waits, calls its function with its
config and checkpoint, and hands every report to the trial, which hands it to Tune and answers when Tune goes on. A worker
that is preempted leaves its trial to the next one, which begins at the last checkpoint; reports that Tune has received are not
repeated. Only Tune's public names are used.
"""

from __future__ import annotations

import contextlib
import os
import secrets
import shutil
import sys
import tempfile
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field
from multiprocessing import AuthenticationError
from multiprocessing.connection import Client as dial
from multiprocessing.connection import Connection, Listener
from pathlib import Path
from typing import Any

from themis.client.adapters.apps import request
from themis.client.adapters.folders import pack, receive_folder, send_packed
from themis.client.client import OVER, Client
from themis.errors import InputError

DESK, KEY, PATHS, CPUS = "THEMIS_TUNE_DESK", "THEMIS_TUNE_KEY", "THEMIS_TUNE_PATHS", "THEMIS_TUNE_CPUS"
LOOK_S = 5.0
"""Seconds between checks for trials that wait for a finished app."""
ENDING_S, END_LOOK_S = 30.0, 0.2
"""Seconds that workers get to end after a sweep, and seconds between two checks."""
Address = tuple[str, int]


@contextmanager
def on_themis(
    train: Callable[[dict[str, Any]], Any] | type[Any],
    *,
    workers: int = 1,
    cpus: float = 1.0,
    name: str = "tune",
    client: Client | None = None,
    env: dict[str, str] | None = None,
    **more: Any,
) -> Iterator[Any]:
    """A trainable for ``tune.Tuner``, and an app for its trials as long as the context lasts.

    Parameters
    ----------
    train : a function of the config that calls ``tune.report``, or a subclass of ``tune.Trainable``.
    workers : trials that may train at the same time. ``gpus`` : of each; or (fewest, most), then the number changes with the lease
        and ``THEMIS_GPUS`` has it. ``hours`` : estimated hours of a worker's part of the sweep on one GPU.
    cpus : of the actor of each trial, which only waits and hands on.
    more : fields of ``SubmitRequest`` (user, weight, retries) and of ``Program`` (cwd, grace_s, checkpoint_dir).

    Raises
    ------
    InputError : a trainable that is neither, or a submission that is refused.
    """
    import ray
    from ray import cloudpickle, tune

    if not callable(train) or (isinstance(train, type) and not issubclass(train, tune.Trainable)):
        raise InputError(
            f"the trainable is {train!r}, expected a function of the config or a subclass of ray.tune.Trainable."
        )
    from themis.client.adapters.tune_class import relay_class
    from themis.client.adapters.tune_resources import LeasedGpus

    if not ray.is_initialized():
        ray.init()
    key, host = secrets.token_hex(16), ray.util.get_node_ip_address()
    with nullcontext(client) if client else Client() as connection, TrialBroker.open(host, key) as desk:
        environment = {**(env or {}), DESK: f"{desk.address[0]}:{desk.address[1]}", KEY: key}
        # Modules next to the script are found as in Ray's own workers.
        environment[CPUS] = str(cpus)
        environment[PATHS] = os.pathsep.join(str(Path(folder).resolve()) for folder in sys.path)
        commands = {f"worker{n}": [sys.executable, "-m", "themis.client.adapters.tune_worker"] for n in range(workers)}

        def enter() -> int:
            fields = {"gpus": 1, "hours": None} | more
            made = request("workers", commands, key=secrets.token_hex(16), name=name, env=environment, **fields)
            return connection.submit(made).app

        apps = [enter()]
        ended = threading.Event()

        def look() -> None:
            # Workers that had nothing to do have ended; trials that came later want new ones.
            while not ended.wait(LOOK_S):
                if desk.trials and (app := connection.show(apps[-1]).app).state in OVER:
                    if app.state == "completed":
                        apps.append(enter())
                    else:
                        desk.refuse(f"app {app.name} was {app.state}: {app.reason or 'see its history'}")

        watch = threading.Thread(target=look, name="themis-tune", daemon=True)
        watch.start()
        OPEN.append(desk)
        try:
            # What the caller does within the context may raise: then the apps are withdrawn, and count as cancelled.
            relayed: Any
            pickled, there, called = cloudpickle.dumps(train), desk.address, getattr(train, "__name__", "train")
            if isinstance(train, type):
                relayed = relay_class(called, pickled, lambda trial: worker_of(there, key, trial))
            else:
                relayed = _relay(pickled, there, key)
                relayed.__name__ = called
            gpus = more.get("gpus", 1)
            yield tune.with_resources(relayed, LeasedGpus(cpus, gpus if isinstance(gpus, int) else gpus[0]))
            ended.set()
            desk.end()
            await_over(connection, apps)
        finally:
            OPEN.remove(desk)
            ended.set()
            watch.join()
            for app in apps:
                # It may be over.
                with contextlib.suppress(InputError):
                    connection.cancel(app)


def await_over(connection: Client, apps: Sequence[int]) -> None:
    """Wait until the workers, which know that no trials are left, have ended, so that their apps count as completed.

    Workers that never got GPUs in ``ENDING_S`` are not waited for.
    """
    end = time.monotonic() + ENDING_S
    for app in apps:
        while connection.show(app).app.state not in OVER and time.monotonic() < end:
            time.sleep(END_LOOK_S)


def leased(controller: Any, trial: Any, result: dict[str, Any], scheduler: Any) -> Any:
    """Resource allocation function for ``ResourceChangingScheduler``: a trial gets the GPUs leased to its worker.

    Tune then pauses a trial whose number of GPUs changed, and starts it again from its checkpoint with what it has now.
    """
    from themis.client.adapters.tune_resources import LeasedGpus

    known, gpus = (
        trial.placement_group_factory,
        next((d.gpus[trial.trial_id] for d in OPEN if trial.trial_id in d.gpus), 0),
    )
    if not gpus or not isinstance(known, LeasedGpus) or known.gpus == gpus:
        return None
    return LeasedGpus(known.cpus, gpus)


@dataclass(slots=True, eq=False)
class TrialBroker:
    """Matches trials with workers; first come, first served."""

    listener: Listener
    trials: deque[tuple[Connection, str]] = field(default_factory=deque)
    """Connections of trials, with their ids."""
    workers: deque[tuple[Address, int]] = field(default_factory=deque)
    """Addresses of workers, with their GPUs."""
    gpus: dict[str, int] = field(default_factory=dict)
    """GPUs of the last worker of each trial, by trial id."""
    listener_key: bytes = b""
    ending: bool = False

    @classmethod
    @contextmanager
    def open(cls, host: str, key: str) -> Iterator[TrialBroker]:
        """Serve until the context ends."""
        desk = cls(Listener((host, 0), authkey=key.encode()), listener_key=key.encode())
        thread = threading.Thread(target=desk._serve, name="themis-desk", daemon=True)
        thread.start()
        try:
            yield desk
        finally:
            # The thread waits in accept.
            with contextlib.suppress(OSError, EOFError), dial(desk.address, authkey=key.encode()) as last:
                last.send(("close", None))
            thread.join()
            desk.listener.close()
            for trial, _ in desk.trials:
                trial.close()

    @property
    def address(self) -> Address:
        """Address of the listener."""
        host, port = self.listener.address
        return str(host), int(port)

    def _serve(self) -> None:
        while True:
            try:
                guest = self.listener.accept()
                kind, value = guest.recv()
            except (OSError, EOFError, AuthenticationError):
                continue
            if kind == "trial":
                self.trials.append((guest, value))
            else:
                guest.close()
            if kind == "worker":
                self.workers.append(value)
            elif kind == "close":
                return
            self._match()

    def end(self) -> None:
        """Notify that no trials are left: workers that wait, or come later, end as completed jobs."""
        self.ending = True
        # The pairing thread sends it, because it alone knows the pairs.
        with contextlib.suppress(OSError, EOFError), dial(self.address, authkey=self.listener_key) as caller:
            caller.send(("ending", None))

    def _dismiss(self) -> None:
        while self.workers:
            address, _ = self.workers.popleft()
            with (
                contextlib.suppress(OSError, EOFError, AuthenticationError),
                dial(address, authkey=self.listener_key) as worker,
            ):
                worker.send(None)

    def refuse(self, why: str) -> None:
        """Refuse all waiting trials: no worker will come."""
        while self.trials:
            with contextlib.suppress(OSError, IndexError), self.trials.popleft()[0] as trial:
                trial.send(why)

    def _match(self) -> None:
        if self.ending:
            self._dismiss()
        while self.trials and self.workers:
            trial, id = self.trials.popleft()
            # One with as many GPUs as the trial had, if there is one: a change costs it a restart.
            worker = next((w for w in self.workers if w[1] == self.gpus.get(id)), self.workers[0])
            with contextlib.suppress(OSError):
                # Tune stopped this trial and closed its connection: the end can still be read, but no further trial
                # can.
                if not trial.poll():
                    # Before the trial can ask for them.
                    self.gpus[id] = worker[1]
                    trial.send(worker[0])
                    self.workers.remove(worker)
            trial.close()


OPEN: list[TrialBroker] = []
"""Trial brokers of the sweeps that run in this process, for ``leased``."""


def _relay(function: bytes, desk: Address, key: str) -> Callable[[dict[str, Any]], None]:
    """The function trainable that runs in a trial's actor for Tune; a worker of the job does the trial's work."""

    def trial(config: dict[str, Any]) -> None:
        from ray import tune

        start = tune.get_checkpoint()
        root = Path(tempfile.mkdtemp(prefix="themis-trial-"))
        try:
            latest = None
            if start is not None:
                latest = Path(start.to_directory(str(root / "start")))
            conversation = Conversation(root, latest)
            id = tune.get_context().get_trial_id()
            while not conversation.over:
                with contextlib.suppress(OSError, EOFError), worker_of(desk, key, id) as worker:
                    conversation.hold(worker, (function, config, id, 0), _report)
        finally:
            shutil.rmtree(root, ignore_errors=True)

    return trial


def _report(metrics: dict[str, Any], checkpoint: Path | None) -> None:
    from ray import tune

    tune.report(metrics, checkpoint=tune.Checkpoint.from_directory(str(checkpoint)) if checkpoint else None)


@dataclass(slots=True)
class Conversation:
    """A trial's side of its work, which one worker after another may do."""

    root: Path
    latest: Path | None
    """The newest checkpoint."""
    made: int = 0
    """Reports that Tune received after it."""
    count: int = 0
    over: bool = False

    def hold(
        self, worker: Connection, word: tuple[Any, ...], report: Callable[[dict[str, Any], Path | None], None]
    ) -> None:
        """Serve one worker until it ends or disconnects (EOFError, OSError), then the next one.

        Raises
        ------
        RuntimeError : the function raised; with its traceback.
        """
        repeated = self.made
        worker.send((*word, self.latest is not None))
        if self.latest is not None:
            send_packed(worker, pack(self.latest))
        while True:
            kind, value, saved = worker.recv()
            if kind == "failed":
                self.over = True
                raise RuntimeError(value)
            if kind == "done":
                self.over = True
                return
            self.count += 1
            folder = receive_folder(worker, self.root / f"checkpoint{self.count}") if saved else None
            if repeated:
                repeated -= 1
            else:
                report(value, folder)
                self.made += 1
            if folder is not None:
                if self.latest is not None:
                    shutil.rmtree(self.latest, ignore_errors=True)
                # What is repeated still was reported after this checkpoint.
                self.latest, self.made = folder, repeated
            worker.send("go on")


@contextmanager
def worker_of(desk: Address, key: str, id: str = "") -> Iterator[Connection]:
    """A worker for a trial, waited for; one that died meanwhile is passed over. RuntimeError when there will be none."""
    while True:
        with dial(desk, authkey=key.encode()) as clerk:
            clerk.send(("trial", id))
            address = clerk.recv()
        if isinstance(address, str):
            raise RuntimeError(address)
        try:
            worker = dial(address, authkey=key.encode())
        except (OSError, EOFError):
            time.sleep(0.1)
            continue
        with worker:
            yield worker
        return
