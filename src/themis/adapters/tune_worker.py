"""``python -m themis.adapters.tune_worker``: a job that trains one trial of Ray Tune after another, on the GPUs of its lease.

Each trial gets a fresh process (the worker executes itself anew), so nothing of the last one is left on the GPUs. The function
finds ``tune.report`` and ``tune.get_checkpoint`` as in a trial's actor; here they speak to that actor.
"""

from __future__ import annotations

import inspect
import os
import shutil
import signal
import socket
import sys
import tempfile
import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from multiprocessing.connection import Client as dial
from multiprocessing.connection import Connection, Listener
from pathlib import Path
from typing import Any, NoReturn

from themis.adapters.folders import pack, receive_folder, send_packed
from themis.adapters.tune import DESK, KEY
from themis.train.run import PREEMPTED

IDLE_S = 60
"""A worker that no trial wants for so long gives its GPUs back, for good."""


class Trial:
    """What the function talks to, in place of Tune's session."""

    def __init__(self, actor: Connection, id: str, checkpoint: Path | None) -> None:
        self.actor, self.id, self.checkpoint = actor, id, checkpoint
        self.told = False

    def report(self, metrics: dict[str, Any], *, checkpoint: Any = None, **_: object) -> None:
        """Hand metrics and checkpoint on; returns when Tune goes on, and ends the process when it should stop."""
        file = None
        if checkpoint is not None:
            with checkpoint.as_directory() as folder:
                file = pack(Path(folder))
        with gone():
            self.actor.send(("report", dict(metrics), file is not None))
            if file is not None:
                send_packed(self.actor, file)
            self.actor.recv()
        if self.told:
            self.actor.close()
            os._exit(PREEMPTED)

    def get_checkpoint(self) -> Any:
        """Where to go on from, or None."""
        from ray import tune

        return tune.Checkpoint.from_directory(str(self.checkpoint)) if self.checkpoint else None

    def get_context(self) -> Trial:
        """As much of Tune's context as there is here."""
        return self

    def get_trial_id(self) -> str:
        """Of the trial."""
        return self.id

    get_trial_name = get_trial_id


def main() -> None:
    """Wait for a trial, train it, begin anew."""
    host, _, port = os.environ[DESK].rpartition(":")
    key = os.environ[KEY].encode()
    # No trial, no work: the job is done.
    signal.signal(signal.SIGALRM, lambda *_: os._exit(0))
    with Listener((_my_address(host, int(port)), 0), authkey=key) as listener:
        signal.alarm(IDLE_S)
        with dial((host, int(port)), authkey=key) as desk:
            desk.send(("worker", listener.address))
        actor = listener.accept()
        signal.alarm(0)
    serve(actor)
    _anew()


def serve(actor: Connection) -> None:
    """One trial."""
    from ray import cloudpickle

    folder = Path(tempfile.mkdtemp(prefix="themis-checkpoint-")) / "from"
    with gone():
        function, config, id, saved = actor.recv()
        trial = Trial(actor, id, receive_folder(actor, folder) if saved else None)
    signal.signal(signal.SIGTERM, lambda *_: setattr(trial, "told", True))
    _stand_in(trial)
    word: tuple[str, Any, bool] = ("done", None, False)
    try:
        made = cloudpickle.loads(function)(config)
        rows: Any = made if inspect.isgenerator(made) else [made] if isinstance(made, dict) else []
        for metrics in rows:
            trial.report(metrics)
    except Exception:
        traceback.print_exc()
        word = ("failed", traceback.format_exc(), False)
    shutil.rmtree(folder.parent, ignore_errors=True)
    with gone():
        actor.send(word)
    if trial.told:
        os._exit(PREEMPTED)


@contextmanager
def gone() -> Iterator[None]:
    """A trial that Tune has stopped hangs up; the job begins anew with another."""
    try:
        yield
    except (EOFError, OSError):
        _anew()


def _stand_in(trial: Trial) -> None:
    """Tune's public functions lead to the trial, by whatever name they were imported; there is no session here."""
    from ray import tune

    for name in ("report", "get_checkpoint", "get_context"):
        public = getattr(tune, name)
        setattr(sys.modules[public.__module__], public.__name__, getattr(trial, name))
        setattr(tune, name, getattr(trial, name))


def _my_address(host: str, port: int) -> str:
    """This machine's address on the way to the desk."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        probe.connect((host, port))
        return str(probe.getsockname()[0])


def _anew() -> NoReturn:
    sys.stdout.flush()
    sys.stderr.flush()
    os.execv(sys.executable, [sys.executable, "-m", "themis.adapters.tune_worker"])


if __name__ == "__main__":
    main()
