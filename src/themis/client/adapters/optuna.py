"""An Optuna study as one app: each trial is a job, the study's sampler and pruner decide, Themis shares the GPUs.

    study = optuna.create_study(storage="sqlite:///study.db", study_name="lr", pruner=optuna.pruners.MedianPruner())
    optimize(study, objective, n_trials=50, gpus=1, hours=0.5)

The objective is an ordinary one. In its job it may use ``themis.train`` to save and continue; a preempted trial stays
running in the study, keeps its parameters, and is called again on other GPUs.
"""

from __future__ import annotations

import base64
import pickle
import sys
import threading
import uuid
from collections.abc import Callable
from contextlib import nullcontext
from typing import TYPE_CHECKING, Any

from themis.client.adapters.apps import MOST_JOBS, request
from themis.client.adapters.object_reference import reference
from themis.client.client import Client
from themis.client.command import name_of
from themis.errors import InputError
from themis.schema import messages as schema

if TYPE_CHECKING:
    import optuna

MARK, STUDY = "themis", "THEMIS_STUDY"
"""Attribute of trials that are an app's; variable that names a job its study."""


def optimize(
    study: optuna.Study, objective: Callable[[Any], Any], n_trials: int, *, client: Client | None = None, **more: Any
) -> schema.App:
    """Run trials as an app, and wait for it; the study then holds them. ``more`` : as for ``submit``.

    Interrupted, the app continues; ``client.cancel`` ends it. Trials that it leaves unfinished are reported as failed.
    """
    with nullcontext(client) if client else Client() as connection:
        made, mark = _submit(connection, study, objective, n_trials, **more)
        found = connection.wait(made.app)
        _close(study, mark)
        return found


def submit(
    study: optuna.Study, objective: Callable[[Any], Any], n_trials: int, *, client: Client | None = None, **more: Any
) -> schema.SubmitReply:
    """Submit an app of this many trials and return immediately. Trials that wait in the study (``enqueue_trial``) come first.

    Parameters
    ----------
    study : with any storage that other processes see.
    objective : a function at the top of a script or module. Where a trial spans machines, those but the first call it
        with None, as ``TorchDistributedTrial`` expects.
    gpus : of a trial; or (fewest, most). ``hours`` : estimated hours of a trial on one GPU; without, unknown work.
    more : fields of ``SubmitRequest`` (name, user, weight, retries, deadline_s) and of ``Program`` (env, cwd, grace_s, launch).

    Raises
    ------
    InputError : the objective cannot be found by jobs, or the storage is in this process's memory.
    """
    in_memory(study, refuse=True)
    with nullcontext(client) if client else Client() as connection:
        return _submit(connection, study, objective, n_trials, **more)[0]


def _submit(
    client: Client,
    study: optuna.Study,
    objective: Callable[[Any], Any],
    n_trials: int,
    *,
    name: str = "",
    env: dict[str, str] | None = None,
    **more: Any,
) -> tuple[schema.SubmitReply, str]:
    if not 1 <= n_trials <= MOST_JOBS:
        raise InputError(f"n_trials is {n_trials}, expected 1 to {MOST_JOBS}.")
    found, mark = reference(objective), uuid.uuid4().hex
    word = (study.study_name, _storage(study), study.sampler, study.pruner, found)
    encoded = base64.b64encode(pickle.dumps(word)).decode()
    command = [sys.executable, "-m", "themis.client.adapters.optuna_trial"]
    try:
        numbers = _enqueue(study, n_trials, mark)
        commands = {f"trial{number}": [*command, str(number)] for number in numbers}
        more = {"gpus": 1, "hours": None} | more
        app = request(
            "n_trials",
            commands,
            key=mark,
            name=name or name_of([study.study_name]),
            env={**(env or {}), STUDY: encoded},
            **more,
        )
        return client.submit(app), mark
    except InputError:
        _close(study, mark)
        raise


def _enqueue(study: optuna.Study, n_trials: int, mark: str) -> list[int]:
    """Numbers of the trials of this app, in the order in which they should run: a job knows its trial from the start."""
    from optuna.trial import TrialState, create_trial

    storage = study._storage
    waiting = [t for t in study.get_trials(deepcopy=False, states=(TrialState.WAITING,)) if MARK not in t.user_attrs]
    for trial in waiting[:n_trials]:
        storage.set_trial_user_attr(trial._trial_id, MARK, mark)
    for _ in range(n_trials - len(waiting)):
        # Not enqueue_trial, which says that parameters are fixed: here the sampler chooses them all, when the trial runs.
        study.add_trial(create_trial(state=TrialState.WAITING, user_attrs={MARK: mark}))
    return [t.number for t in study.get_trials(deepcopy=False) if t.user_attrs.get(MARK) == mark]


def _close(study: optuna.Study, mark: str) -> None:
    """Trials that a finished app left unfinished."""
    from optuna.trial import TrialState

    for trial in study.get_trials(deepcopy=False, states=(TrialState.WAITING, TrialState.RUNNING)):
        if trial.user_attrs.get(MARK) == mark:
            study._storage.set_trial_state_values(trial._trial_id, TrialState.FAIL)


def _storage(study: optuna.Study) -> Any:
    """The study's storage, as other processes can open it: one in memory is served on loopback while this one lives."""
    import optuna

    storage = study._storage
    # Optuna wraps databases in its own cache, which is rebuilt where the study is loaded.
    storage = getattr(storage, "_backend", storage)
    if not in_memory(study):
        return storage
    from themis.machines.agent.system import SYSTEM

    port = SYSTEM.free_port()
    serve = optuna.storages.run_grpc_proxy_server
    threading.Thread(target=serve, args=(storage,), kwargs={"host": "127.0.0.1", "port": port}, daemon=True).start()
    return optuna.storages.GrpcStorageProxy(host="127.0.0.1", port=port)


def in_memory(study: optuna.Study, *, refuse: bool = False) -> bool:
    """True if only this process sees the study; InputError where that will not do."""
    import optuna

    found = isinstance(study._storage, optuna.storages.InMemoryStorage)
    if found and refuse:
        raise InputError(
            "the study is in this process's memory, which jobs outlive; create it with a storage such as "
            "sqlite:///study.db, or call optimize, which stays."
        )
    return found
