"""Objectives of the tests, which jobs import from here."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

from themis import train

STEPS = 6


def curve(trial: Any) -> float:
    """Falls to its parameter's distance from 1; the pruner sees each step."""
    import optuna

    x = trial.suggest_float("x", -8.0, 8.0)
    for step in range(STEPS):
        trial.report((x - 1.0) ** 2 + STEPS - step, step)
        if trial.should_prune():
            raise optuna.TrialPruned
    return float((x - 1.0) ** 2)


def resumable(trial: Any) -> float:
    """Sixty short steps that survive a preemption; the value tells how many attempts there were."""
    x = trial.suggest_float("x", 0.0, 1.0)
    drawn: list[float] = []
    run = train.Run(
        save=lambda path: Path(path).write_text(repr(x)),
        load=lambda path: drawn.append(float(Path(path).read_text())),
        check_every_s=0.1,
    )
    for _ in run.steps(60):
        time.sleep(0.1)
    trial.set_user_attr("same", drawn == [x] * len(drawn))
    return float(run.world.attempt)


def broken(trial: Any) -> float:
    """Every other trial fails."""
    if trial.number % 2:
        raise ValueError("no good")
    return 0.5
