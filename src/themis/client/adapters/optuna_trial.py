"""``python -m themis.client.adapters.optuna_trial NUMBER``: one trial of a study, in its job; called again after a preemption."""

from __future__ import annotations

import base64
import contextlib
import os
import pickle
import sys
import traceback
from typing import Any

import optuna
from optuna.trial import Trial, TrialState

from themis.client.adapters.optuna import STUDY
from themis.train.world import World


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
    trial = Trial(study, frozen._trial_id)
    try:
        values = objective(trial)
    except optuna.TrialPruned:
        study.tell(number, state=TrialState.PRUNED)
    except Exception:
        traceback.print_exc()
        study.tell(number, state=TrialState.FAIL)
    else:
        study.tell(number, values)
    return 0


def _follow(objective: Any) -> int:
    """The other processes of a trial that spans machines."""
    with contextlib.suppress(optuna.TrialPruned):
        objective(None)
    return 0


if __name__ == "__main__":
    sys.exit(main(int(sys.argv[1])))
