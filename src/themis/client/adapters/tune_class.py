"""A class trainable's actor: Tune's own ``Trainable``, whose steps, checkpoints and restores run on a worker.

Tune asks for a step, a worker makes it; without a worker, the actor waits. A worker that is preempted makes a
checkpoint after its step, with which the next one goes on; after one that was killed, steps since the last checkpoint
are made again, unheard.
"""

from __future__ import annotations

import contextlib
import pickle
import shutil
import tempfile
from collections.abc import Callable
from contextlib import AbstractContextManager, ExitStack
from dataclasses import dataclass, field
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

from themis.client.adapters.folders import pack, receive_folder, send_packed

AS_DICT = ".themis-dict"
"""File of a checkpoint that the trainable gave as a dictionary."""


@dataclass(slots=True)
class Part:
    """An actor's side of a trial that one worker after another works on.

    Parameters
    ----------
    hire : a worker, waited for. ``word`` : what each is sent first (trainable, config, trial).
    """

    hire: Callable[[], AbstractContextManager[Connection]]
    word: tuple[Any, ...]
    root: Path
    latest: Path | None = None
    """The newest checkpoint."""
    made: int = 0
    """Steps that Tune received after it."""
    behind: int = 0
    """Number of these steps that the present worker has not repeated yet."""
    count: int = 0
    worker: Connection | None = None
    held: ExitStack = field(default_factory=ExitStack)

    def step(self, iteration: int) -> dict[str, Any]:
        """The result of the next step; ``iteration`` : steps done before it."""
        result: dict[str, Any] = self._ask("step", iteration)
        self.made += 1
        return result

    def save(self, folder: Path, iteration: int) -> dict[str, Any] | None:
        """A checkpoint into this folder, or as a dictionary."""
        saved: Path = self._ask("save", iteration)
        self._keep(saved)
        found: dict[str, Any] | None = read_saved(saved, folder)
        return found

    def load(self, saved: Any) -> None:
        """Restore from a checkpoint of Tune: a folder or a dictionary."""
        self.hang_up()
        self.count += 1
        folder = self.root / f"checkpoint{self.count}"
        if isinstance(saved, dict):
            write_saved(saved, folder)
        else:
            shutil.copytree(saved, folder)
        self.behind = 0
        self._keep(folder)

    def hang_up(self) -> None:
        """Let the worker go."""
        self.held.close()
        self.held, self.worker = ExitStack(), None

    def _ask(self, what: str, iteration: int) -> Any:
        """Send an order to the worker and return its answer; if the worker is lost, ask the next one."""
        while True:
            with contextlib.suppress(OSError, EOFError):
                answer = None
                if self.worker is not None or self._engage(iteration):
                    answer = self._order(what)
                if answer is not None:
                    return answer
            self.hang_up()

    def _engage(self, iteration: int) -> bool:
        """Bring a worker to where the last one was; False if it had to go meanwhile."""
        worker = self.worker = self.held.enter_context(self.hire())
        worker.send((*self.word, iteration - self.made, self.latest is not None))
        if self.latest is not None:
            send_packed(worker, pack(self.latest))
        self.behind = self.made
        while self.behind:
            if self._order("step") is None:
                return False
            self.behind -= 1
        return True

    def _order(self, what: str) -> Any:
        """One order carried out: a result, a folder, or None for a worker that leaves. RuntimeError: the trainable raised."""
        assert self.worker is not None
        self.worker.send(what)
        kind, value, saved = self.worker.recv()
        folder = None
        if saved:
            self.count += 1
            folder = receive_folder(self.worker, self.root / f"checkpoint{self.count}")
        if kind == "failed":
            raise RuntimeError(value)
        if kind == "leaving":
            assert folder is not None
            self._keep(folder)
            self.worker.send("left")
            return None
        return value if folder is None else folder

    def _keep(self, folder: Path) -> None:
        if self.latest is not None:
            shutil.rmtree(self.latest, ignore_errors=True)
        self.latest, self.made = folder, self.behind


def relay_class(name: str, trainable: bytes, hire: Callable[[str], AbstractContextManager[Connection]]) -> type[Any]:
    """A class for ``tune.Tuner`` in place of a pickled one; ``hire`` : a worker for the trial of this id."""
    from ray import tune

    class Relayed(tune.Trainable):  # type: ignore[misc]
        def setup(self, config: dict[str, Any]) -> None:
            root = Path(tempfile.mkdtemp(prefix="themis-trial-"))
            self.part = Part(lambda: hire(self.trial_id), (trainable, config, self.trial_id), root)

        def step(self) -> dict[str, Any]:
            return self.part.step(self.iteration)

        def save_checkpoint(self, checkpoint_dir: str) -> dict[str, Any] | None:
            return self.part.save(Path(checkpoint_dir), self.iteration)

        def load_checkpoint(self, checkpoint: Any) -> None:
            self.part.load(checkpoint)

        def reset_config(self, new_config: dict[str, Any]) -> bool:
            self.cleanup()
            self.setup(new_config)
            return True

        def cleanup(self) -> None:
            self.part.hang_up()
            shutil.rmtree(self.part.root, ignore_errors=True)

    Relayed.__name__ = Relayed.__qualname__ = name
    return Relayed


def write_saved(saved: dict[str, Any] | None, folder: Path) -> None:
    """Write what ``save_checkpoint`` returned next to the files that it wrote."""
    folder.mkdir(parents=True, exist_ok=True)
    if isinstance(saved, dict):
        (folder / AS_DICT).write_bytes(pickle.dumps(saved))


def read_saved(folder: Path, into: Path | None = None) -> Any:
    """A checkpoint as ``load_checkpoint`` takes it; or, copied ``into`` another folder, as ``save_checkpoint`` gives it."""
    if (folder / AS_DICT).exists():
        return pickle.loads((folder / AS_DICT).read_bytes())
    if into is None:
        return str(folder)
    shutil.copytree(folder, into, dirs_exist_ok=True)
    return None
