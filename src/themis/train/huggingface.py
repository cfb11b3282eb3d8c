"""Integration with the Trainer of Hugging Face transformers: a callback, and the newest checkpoint folder::

    trainer = Trainer(..., args=TrainingArguments(output_dir=huggingface.output_dir("out"), ...), callbacks=[ThemisCallback()])
    trainer.train(resume_from_checkpoint=huggingface.last_checkpoint(trainer.args.output_dir))

The Trainer saves its own checkpoints; the callback has it save and stop when the job must go or has done its target.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from transformers import TrainerCallback

from themis.train.run import Run


def output_dir(otherwise: str) -> str:
    """The job's THEMIS_CHECKPOINT_DIR, or this folder without Themis."""
    folder = Run.folder()
    return str(folder) if folder else otherwise


def last_checkpoint(folder: str) -> str | None:
    """The newest whole checkpoint: the Trainer writes ``trainer_state.json`` after model and optimizer."""
    found = [
        p for p in Path(folder).glob("checkpoint-*") if p.name[11:].isdigit() and (p / "trainer_state.json").exists()
    ]
    return str(max(found, key=lambda p: int(p.name[11:]))) if found else None


LOGGED = ("loss", "eval_loss", "grad_norm", "learning_rate")
"""Values of the Trainer's log that are reported."""


class ThemisCallback(TrainerCallback):
    """Reports steps and loss; saves and stops when preempted."""

    def __init__(self, run: Run | None = None) -> None:
        self.run = run or Run()

    def on_step_end(self, args: Any, state: Any, control: Any, **_: Any) -> Any:
        """After each optimizer step, the same on every rank."""
        self.run.observe(state.global_step, total=max(state.max_steps, 0))
        if self.run.should_preempt() or self.run.target_reached:
            control.should_save = control.should_training_stop = True
        return control

    def on_log(self, args: Any, state: Any, control: Any, logs: Any = None, **_: Any) -> None:
        """The Trainer's own losses and rates."""
        if logs:
            self.run.report(**{name: float(value) for name, value in logs.items() if name in LOGGED})

    def on_save(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        """Its checkpoint is on disk."""
        self.run.saved(state.global_step)

    def on_train_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        """Leave with 143 where training was cut short."""
        if self.run.preempted:
            self.run.exit()
        self.run.reached()
