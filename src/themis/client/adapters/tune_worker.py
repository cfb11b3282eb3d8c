"""``python -m themis.client.adapters.tune_worker``: a job that trains trials of Ray Tune sequentially.

Each trial gets a fresh process, a fork of this one, which has imported Tune and never touched a GPU: nothing of the last one
is left on the GPUs. A function finds ``tune.report`` and ``tune.get_checkpoint`` as in a trial's actor; here they speak to
that actor. Of a class it makes the steps and the checkpoints that the actor asks for.
"""

from __future__ import annotations

import contextlib
import inspect
import os
import shutil
import signal
import socket
import sys
import tempfile
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from multiprocessing.connection import Client as dial
from multiprocessing.connection import Connection, Listener
from pathlib import Path
from typing import Any, NoReturn

from themis.client.adapters.folders import pack, receive_folder, send_packed
from themis.client.adapters.tune import CPUS, DESK, KEY, PATHS
from themis.client.adapters.tune_class import read_saved, write_saved
from themis.train.run import PREEMPTED

IDLE_S = 60
"""Seconds after which a worker that no trial wants gives its GPUs back, for good."""
NO_MORE = 76
"""Exit code of a trial's process that was sent the end of the sweep: the worker's job is done."""
LOOK_S = 0.2
"""Between looks at whether a class that waits for Tune was preempted."""


class TuneTrial:
    """Stand-in for Tune's session inside the worker."""

    def __init__(self, actor: Connection, id: str, checkpoint: Path | None, iteration: int = 0) -> None:
        self.actor, self.id, self.checkpoint, self.iteration = actor, id, checkpoint, iteration
        self.preempted = False

    def report(self, metrics: dict[str, Any], *, checkpoint: Any = None, **_: object) -> None:
        """Pass on metrics and a checkpoint; returns when Tune continues, ends the process if Tune stops the trial."""
        if checkpoint is None:
            self.send("report", dict(metrics))
        else:
            with checkpoint.as_directory() as folder:
                self.send("report", dict(metrics), Path(folder))
        with self.there():
            self.actor.recv()
        if self.preempted:
            self.actor.close()
            leave(PREEMPTED)

    def get_checkpoint(self) -> Any:
        """The checkpoint to resume from, or None."""
        from ray import tune

        return tune.Checkpoint.from_directory(str(self.checkpoint)) if self.checkpoint else None

    def get_context(self) -> TuneTrial:
        """The part of Tune's context that is available here."""
        return self

    def get_trial_id(self) -> str:
        """The id of the trial."""
        return self.id

    get_trial_name = get_trial_id

    def get_trial_resources(self) -> Any:
        """The actor's CPUs and the lease's GPUs."""
        from themis.client.adapters.tune_resources import seen_by_trainable

        return seen_by_trainable(float(os.environ.get(CPUS, "1")), _gpus())

    def send(self, kind: str, value: Any = None, folder: Path | None = None) -> None:
        """Send to the actor, with or without a checkpoint."""
        file = None if folder is None else pack(folder)
        with self.there():
            self.actor.send((kind, value, file is not None))
            if file is not None:
                send_packed(self.actor, file)
        if file is not None or kind in ("done", "failed"):
            keep()

    @contextmanager
    def there(self) -> Iterator[None]:
        """Tune closes the connection of a trial that it stops; the trial's process ends then."""
        try:
            yield
        except (EOFError, OSError):
            if not self.preempted:
                keep()
            leave(PREEMPTED if self.preempted else 0)


def main() -> int:
    """Wait for a trial, train it, begin again."""
    sys.path += [path for path in os.environ.get(PATHS, "").split(os.pathsep) if path and path not in sys.path]
    import ray.tune  # noqa: F401 - once for all trials

    host, _, port = os.environ[DESK].rpartition(":")
    key = os.environ[KEY].encode()
    # No trial, no work: the job is done.
    signal.signal(signal.SIGALRM, lambda *_: os._exit(0))
    while True:
        with Listener((_my_address(host, int(port)), 0), authkey=key) as listener:
            signal.alarm(IDLE_S)
            with dial((host, int(port)), authkey=key) as desk:
                desk.send(("worker", (listener.address, _gpus())))
            actor = listener.accept()
            signal.alarm(0)
        root = Path(tempfile.mkdtemp(prefix="themis-checkpoint-"))
        try:
            code = apart(lambda actor=actor, root=root: serve(actor, root), actor)  # type: ignore[misc]
        finally:
            shutil.rmtree(root, ignore_errors=True)
        if code == NO_MORE:
            return 0
        if code < 0:
            # The cause that ended the trial's process also ends the job, so that it is judged as if it ran alone.
            signal.signal(-code, signal.SIG_DFL)
            os.kill(os.getpid(), -code)
        if code:
            return code


def apart(work: Callable[[], int], actor: Connection) -> int:
    """Do it in another process, which gets the signals that this one gets; its exit code, or minus the signal that ended it."""
    sys.stdout.flush()
    sys.stderr.flush()
    preempted, waiting, child = False, list[int](), 0

    def handle(number: int, _: object) -> None:
        nonlocal preempted
        preempted = True
        waiting.append(number)
        pass_on()

    def pass_on() -> None:
        while waiting and child:
            # It may be gone, or the list emptied by one that came just now.
            with contextlib.suppress(ProcessLookupError, IndexError):
                os.kill(child, waiting.pop())

    # Blocking a signal spares this thread alone, so the handler is there before a signal can come; the child has it
    # blocked until the handler is the one from before again.
    before = signal.signal(signal.SIGTERM, handle)
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM})
    pid = os.fork()
    if pid == 0:
        code = 1
        try:
            signal.signal(signal.SIGTERM, before)
            signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGTERM})
            code = work()
        except BaseException:
            traceback.print_exc()
        finally:
            leave(code)
    child = pid
    signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGTERM})
    pass_on()
    actor.close()
    code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    signal.signal(signal.SIGTERM, before)
    return code or (PREEMPTED if preempted else 0)


def keep() -> None:
    """Report that the work so far survives this process: Tune has its outcome or a checkpoint to resume from.

    Tune's files are elsewhere; of a job that leaves nothing in its own folder the scheduler believes that a preemption costs it
    everything, and that it falls ever further behind.
    """
    with contextlib.suppress(KeyError, OSError):
        mark = Path(os.environ["THEMIS_CHECKPOINT_DIR"]) / "kept-by-tune"
        mark.touch()


def leave(code: int) -> NoReturn:
    """End a trial's process, which is a fork: the parent's exit handlers are not for it."""
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)


def serve(actor: Connection, root: Path) -> int:
    """Run one trial and return the exit code of its process."""
    from ray import cloudpickle

    trial = TuneTrial(actor, "", None)
    signal.signal(signal.SIGTERM, lambda *_: setattr(trial, "preempted", True))
    with trial.there():
        given = actor.recv()
        if given is None:
            return NO_MORE
        pickled, config, trial.id, trial.iteration, saved = given
        trial.checkpoint = receive_folder(actor, root / "from") if saved else None
    _stand_in(trial)
    try:
        trainable = cloudpickle.loads(pickled)
        if isinstance(trainable, type):
            _serve_class(trial, trainable, config, root)
        made = trainable(config)
        rows: Any = made if inspect.isgenerator(made) else [made] if isinstance(made, dict) else []
        for metrics in rows:
            trial.report(metrics)
    except Exception:
        traceback.print_exc()
        trial.send("failed", traceback.format_exc())
    else:
        trial.send("done")
    return PREEMPTED if trial.preempted else 0


def _serve_class(trial: TuneTrial, kind: type[Any], config: dict[str, Any], root: Path) -> None:
    """Serve until the actor disconnects or the job is preempted; raises what the trainable raises."""
    made = _in_trial(trial, kind, root)(config)
    if trial.checkpoint is not None:
        made.load_checkpoint(read_saved(trial.checkpoint))

    def save() -> Path:
        folder = Path(tempfile.mkdtemp(dir=root))
        write_saved(made.save_checkpoint(str(folder)), folder)
        return folder

    while True:
        order = ""
        with trial.there():
            while not trial.preempted and not trial.actor.poll(LOOK_S):
                pass
            order = "" if trial.preempted else trial.actor.recv()
        if order == "step":
            result = made.step()
            trial.iteration += 1
            made.log_result(result)
            trial.send("result", result)
        elif order == "save":
            trial.send("saved", None, save())
        else:
            trial.send("leaving", None, save())
            made.stop()
            with trial.there():
                while trial.actor.recv() != "left":
                    pass  # an order that crossed it
            leave(PREEMPTED)


def _in_trial(trial: TuneTrial, kind: type[Any], root: Path) -> type[Any]:
    """The trainable class; its public properties describe the trial."""
    steps = property(lambda self: trial.iteration)
    facts = {
        "iteration": steps,
        "training_iteration": steps,
        "trial_id": property(lambda self: trial.id),
        "trial_name": property(lambda self: trial.id),
        "trial_resources": property(lambda self: trial.get_trial_resources()),
        "logdir": property(lambda self: str(root)),
    }
    return type(kind.__name__, (kind,), facts)


def _stand_in(trial: TuneTrial) -> None:
    """Redirect Tune's public functions to the trial, under every name they were imported by; no session exists here."""
    from ray import tune

    for name in ("report", "get_checkpoint", "get_context"):
        public = getattr(tune, name)
        setattr(sys.modules[public.__module__], public.__name__, getattr(trial, name))
        setattr(tune, name, getattr(trial, name))


def _gpus() -> int:
    return int(os.environ.get("THEMIS_GPUS", "1"))


def _my_address(host: str, port: int) -> str:
    """This machine's address on the way to the desk."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        probe.connect((host, port))
        return str(probe.getsockname()[0])


if __name__ == "__main__":
    sys.exit(main())
