"""Integration with Keras 3, on any of its backends: the model to continue with, and a callback::

    model, epoch = resume(build)  # build() makes and compiles a new model
    model.fit(data, epochs=90, initial_epoch=epoch, callbacks=[ThemisCallback()])

Keras cannot enter an epoch in the middle: an interrupted one begins again with the weights that it had. Where the job
declared its steps, it ends after that many all the same; otherwise an epoch has to be shorter than the time between two
preemptions. Steps count the batches of all attempts and calls of ``fit``.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import keras

from themis.train.checkpoints import Checkpoints
from themis.train.run import Run

NAME = "model.keras"


def resume(build: Callable[[], Any], folder: str | None = None) -> tuple[Any, int]:
    """Model and ``initial_epoch`` of the newest checkpoint in this folder (by default the job's), or a new model and 0."""
    where = Path(folder) if folder else Run.folder()
    latest = Checkpoints(where).latest() if where else None
    return (keras.models.load_model(latest[0] / NAME), int(latest[1]["epoch"])) if latest else (build(), 0)


class ThemisCallback(keras.callbacks.Callback):
    """Reports steps and loss; saves and stops when preempted, and at the end of an epoch where ``Run.save_every_s`` is over.

    Parameters
    ----------
    folder : where to save, by default the job's checkpoint folder.
    """

    def __init__(self, folder: str | None = None, run: Run | None = None) -> None:
        super().__init__()
        self.run = run or Run()
        where = Path(folder) if folder else Run.folder()
        self.checkpoints = Checkpoints(where) if where else None
        self._epoch = self._before = self._step = 0
        self._cut = False
        self._saved_at = time.monotonic()

    def on_train_begin(self, logs: Any = None) -> None:
        """Count on from the newest checkpoint: an optimizer may be a new one, or count several batches as one."""
        latest = self.checkpoints.latest() if self.checkpoints else None
        self._step = max(self._step, int(latest[1]["step"]) if latest else 0)
        self._cut = False

    def on_epoch_begin(self, epoch: int, logs: Any = None) -> None:
        """Note where the epoch begins."""
        self._epoch, self._before = epoch, self._step

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        """After each execution of one step or more, the same on every rank."""
        self._step = self._before + batch + 1
        self.run.observe(self._step, (logs or {}).get("loss"))
        if self.run.should_preempt() or self.run.target_reached:
            self._cut = self.model.stop_training = True

    def on_test_batch_end(self, batch: int, logs: Any = None) -> None:
        """Leave a validation, which begins even where training was cut short; ranks may validate unequal numbers of batches."""
        if self._cut or (self.run.world.world_size == 1 and self.run.should_preempt()):
            self.model.stop_training = self.model.stop_evaluating = True

    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        """The next epoch is the one to begin with, unless this one was cut short."""
        if not self._cut:
            self._epoch = epoch + 1
            if not self.run.preempted and time.monotonic() >= self._saved_at + self.run.save_every_s:
                self._save()

    def on_train_end(self, logs: Any = None) -> None:
        """Save; leave with 143 where training was cut short."""
        self._save()
        if self.run.preempted:
            self.run.exit()
        self.run.reached()

    def _save(self) -> None:
        self._saved_at = time.monotonic()
        if self.checkpoints is None:
            return

        def save(path: Path) -> None:
            path.mkdir()
            self.model.save(path / NAME)

        if self.run.world.rank == 0:
            self.checkpoints.write(self._step, save, {"step": self._step, "epoch": self._epoch})
        self.run.saved(self._step)
