"""Trainables of the tests, which workers import from here."""

from __future__ import annotations

import json
import os
import tempfile
import time
from pathlib import Path
from typing import Any

from ray import tune

STEPS = 4


def counted(config: dict[str, Any]) -> None:
    """A function that saves each step; its loss falls to x, and it says how many GPUs it had."""
    step = 0
    if checkpoint := tune.get_checkpoint():
        with checkpoint.as_directory() as folder:
            step = json.loads((Path(folder) / "step").read_text())
    while step < config.get("steps", STEPS):
        time.sleep(config.get("pause", 0.0))
        step += 1
        gpus = gpus_of(tune.get_context().get_trial_resources())
        with tempfile.TemporaryDirectory() as folder:
            (Path(folder) / "step").write_text(json.dumps(step))
            tune.report(
                {
                    "loss": config["x"] + STEPS - step,
                    "step": step,
                    "gpus": gpus,
                    "told": int(os.environ["THEMIS_GPUS"]),
                },
                checkpoint=tune.Checkpoint.from_directory(folder),
            )


def gpus_of(resources: Any) -> int:
    """Of a trial, as Tune tells it."""
    return int(resources.required_resources.get("GPU", 0))


class Counter(tune.Trainable):  # type: ignore[misc]
    """A class that saves to a folder."""

    def setup(self, config: dict[str, Any]) -> None:
        self.count = 0

    def step(self) -> dict[str, Any]:
        if self.config.get("raises") == self.count:
            raise ValueError("no good")
        time.sleep(self.config.get("pause", 0.0))
        self.count += 1
        return {
            "loss": self.config["x"] + STEPS - self.count,
            "count": self.count,
            "before": self.iteration,
            "step": self.count,
            "done": self.count >= self.config.get("steps", STEPS),
            "process": os.getpid(),
            "gpus": gpus_of(self.trial_resources),
            "told": int(os.environ.get("THEMIS_GPUS", "0")),
        }

    def save_checkpoint(self, checkpoint_dir: str) -> dict[str, Any] | None:
        (Path(checkpoint_dir) / "count").write_text(str(self.count))
        return None

    def load_checkpoint(self, checkpoint: Any) -> None:
        self.count = int((Path(checkpoint) / "count").read_text())


class AsDictionary(Counter):
    """A class that saves to a dictionary."""

    def save_checkpoint(self, checkpoint_dir: str) -> dict[str, Any]:
        return {"count": self.count}

    def load_checkpoint(self, checkpoint: Any) -> None:
        self.count = checkpoint["count"]
