"""``python -m themis.client.adapters.optuna_trial NUMBER``: one trial of a study, in its job; called again after a preemption."""

from __future__ import annotations

import base64
import contextlib
import os
import pickle
import sys
import traceback
from collections.abc import Sequence
from typing import Any

import optuna
from optuna.trial import Trial, TrialState

from themis.client.adapters.optuna import STUDY
from themis.train.run import MOST_METRICS
from themis.train.world import World


class Told(Trial):  # type: ignore[misc]
    """A trial that tells Themis what it reports to the study."""

    def report(self, value: float, step: int) -> None:
        super().report(value, step)
        tell(self, value=value)


def tell(trial: Trial, **metrics: Any) -> None:
    """Report metrics and the trial's numeric parameters, which the study chose in this job; of a minimised study also the loss."""
    numbers = {
        name: float(value)
        for name, value in {**trial.params, **metrics}.items()
        if isinstance(value, int | float) and not isinstance(value, bool)
    }
    minimised = [direction.name for direction in trial.study.directions] == ["MINIMIZE"]
    loss = numbers.get("value") if minimised and "value" in metrics else None
    World.read().report({"metrics": dict(list(numbers.items())[-MOST_METRICS:]), "loss": loss})


def main(number: int) -> int:
    """Run the trial. Whatever the objective raises is the trial's failure, not the job's; a killed process is the job's."""
    name, storage, sampler, pruner, found = pickle.loads(base64.b64decode(os.environ[STUDY]))
    objective = found.load()
    if World.read().rank > 0:
        return _follow(objective)
    study = optuna.load_study(study_name=name, storage=storage, sampler=sampler, pruner=pruner)
    # Each process would draw the same numbers; Optuna does likewise where it runs trials in parallel.
    study.sampler.reseed_rng()
    frozen = study.get_trials(deepcopy=False)[number]
    if frozen.state.is_finished():
        return 0
    if frozen.state is TrialState.WAITING:
        study._storage.set_trial_state_values(frozen._trial_id, TrialState.RUNNING)
    trial = Told(study, frozen._trial_id)
    try:
        values = objective(trial)
    except optuna.TrialPruned:
        tell(trial, PRUNED=1.0)
        study.tell(number, state=TrialState.PRUNED)
    except Exception:
        traceback.print_exc()
        study.tell(number, state=TrialState.FAIL)
    else:
        tell(trial, **({} if isinstance(values, Sequence) else {"value": values}))
        study.tell(number, values)
    return 0


def _follow(objective: Any) -> int:
    """The other processes of a trial that spans machines."""
    with contextlib.suppress(optuna.TrialPruned):
        objective(None)
    return 0


if __name__ == "__main__":
    sys.exit(main(int(sys.argv[1])))
