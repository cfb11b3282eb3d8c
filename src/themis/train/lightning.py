"""Integration with Lightning's Trainer, by its own conventions: a callback, and the checkpoint to continue with::

    trainer = Trainer(..., callbacks=[ThemisCallback()])
    trainer.fit(model, ckpt_path=lightning.last_checkpoint())

Submit with ``launch: gpu``: Lightning sees LOCAL_RANK and starts no processes of its own.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

try:
    from lightning.pytorch.callbacks import Callback
except ImportError:  # the older distribution of the same code
    from pytorch_lightning.callbacks import Callback

from themis.train.checkpoints import newest, replace
from themis.train.run import Run

NAME = "themis.ckpt"


def last_checkpoint(folder: str | None = None) -> str | None:
    """The checkpoint that ``ThemisCallback`` left in this folder (by default the job's), or None."""
    where = Path(folder) if folder else Run.folder()
    path = newest(where / NAME) if where else None
    return str(path) if path is not None else None


class ThemisCallback(Callback):
    """Reports steps and loss; saves and stops when preempted.

    Parameters
    ----------
    folder : where to save, by default the job's checkpoint folder.
    """

    def __init__(self, folder: str | None = None, run: Run | None = None) -> None:
        self.run = run or Run()
        self.folder = Path(folder) if folder else Run.folder()

    def on_train_batch_end(self, trainer: Any, module: Any, outputs: Any, batch: Any, batch_idx: int) -> None:
        """After each batch, the same on every rank."""
        loss = outputs.get("loss") if isinstance(outputs, dict) else outputs
        self.run.observe(trainer.global_step, loss)
        if self.run.should_preempt() or self.run.target_reached:
            self._save(trainer)
            trainer.should_stop = True

    def on_train_end(self, trainer: Any, module: Any) -> None:
        """Leave with 143 where training was cut short."""
        if self.run.preempted:
            self.run.exit()
        self._save(trainer)
        self.run.reached()

    def _save(self, trainer: Any) -> None:
        if self.folder is None:
            return
        # All ranks call it, as Lightning asks; a rename makes it whole or not there. Sharded strategies save a folder.
        draft = self.folder / f".{NAME}.draft"
        trainer.save_checkpoint(draft)
        if trainer.is_global_zero:
            replace(draft, self.folder / NAME)
        trainer.strategy.barrier()
        self.run.saved(trainer.global_step)
