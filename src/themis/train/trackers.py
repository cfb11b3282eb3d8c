"""The ids of a script's runs in MLflow and Weights & Biases, where it records any; neither is imported here."""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Mapping

TRACKERS: Mapping[str, str] = {"mlflow": "MLFLOW_RUN_ID", "wandb": "WANDB_RUN_ID"}
"""Tracker -> variable with the id of its run."""
RUN_ID = re.compile(r"[A-Za-z0-9][A-Za-z0-9._/-]{0,199}")


def run_ids(given: Mapping[str, str]) -> dict[str, str]:
    """The run of each tracker: what was given, else the active run of the tracker's library, else the variable's."""
    found = {
        name: given.get(name) or _active(name) or os.environ.get(variable, "") for name, variable in TRACKERS.items()
    }
    return {name: run for name, run in found.items() if RUN_ID.fullmatch(run)}


def _active(name: str) -> str:
    """The active run of a library that the script imported; empty if there is none."""
    library = sys.modules.get(name)
    try:
        if library is None:
            return ""
        if name == "mlflow":
            run = library.active_run()
            return str(run.info.run_id) if run is not None else ""
        # W&B: entity/project/run, as its own interface addresses a run.
        return str(library.run.path) if library.run is not None else ""
    except Exception:  # a report must not end the training, whatever these libraries do
        return ""
