"""Two users on one cluster: Ann's Optuna study and Ben's Ray Tune sweep, at the same time, on the same GPUs.

    themis up --engine ray --address auto     # or one machine: themis up
    python two_users.py [TRIALS]              # on a node of a Ray cluster, for Tune's own actors

Each wants all GPUs. Prints what each held while both did, and what each found; an ordinary study and an ordinary ``Tuner``,
but for the two names that come from ``themis.client.adapters``.
"""

import json
import os
import sys
import tempfile
import threading
import time
from contextlib import contextmanager
from pathlib import Path

from themis import Client, train

STEPS = 10
PAUSE = "SWEEP_PAUSE_S"
"""Variable with the seconds that a step takes."""
WORKERS = 4
"""Of Ben's trials, so many may train at once."""


def points(trials):
    """Parameters to try; 2.0 is the best there is."""
    return [2.0 + i - trials // 3 for i in range(trials)]


def loss_at(x, step):
    """A curve that falls to the parameter's distance from 2."""
    return (x - 2.0) ** 2 + STEPS - step


def objective(trial):
    """Ann's, in Optuna's words; it saves, so that a preemption costs little."""
    import optuna

    x = trial.suggest_float("x", -100.0, 100.0)
    run = train.Run(save=lambda path: path.write_text(repr(x)), load=lambda path: None, check_every_s=0.2)
    for step in run.steps(STEPS):
        time.sleep(float(os.environ.get(PAUSE, "0.5")))
        trial.report(loss_at(x, step + 1), step + 1)
        if trial.should_prune():
            raise optuna.TrialPruned
    return loss_at(x, STEPS)


def curve(config):
    """Ben's, in Tune's."""
    from ray import tune

    step = 0
    if checkpoint := tune.get_checkpoint():
        with checkpoint.as_directory() as folder:
            step = json.loads((Path(folder) / "step").read_text())
    while step < STEPS:
        time.sleep(float(os.environ.get(PAUSE, "0.5")))
        step += 1
        with tempfile.TemporaryDirectory() as folder:
            (Path(folder) / "step").write_text(json.dumps(step))
            tune.report({"loss": loss_at(config["x"], step)}, checkpoint=tune.Checkpoint.from_directory(folder))


def study_of(folder, trials):
    """What Ann would have without Themis too."""
    import optuna

    optuna.logging.set_verbosity(optuna.logging.ERROR)
    pruner = optuna.pruners.MedianPruner(n_startup_trials=4, n_warmup_steps=STEPS // 2)
    study = optuna.create_study(storage=f"sqlite:///{folder}/ann.db", study_name="ann", pruner=pruner)
    for x in points(trials):
        study.enqueue_trial({"x": x})
    return study


def tuner_of(trainable, folder, trials):
    """What Ben would have without Themis too."""
    from ray import tune
    from ray.tune.schedulers import ASHAScheduler

    return tune.Tuner(
        trainable,
        param_space={"x": tune.grid_search(points(trials))},
        tune_config=tune.TuneConfig(
            metric="loss",
            mode="min",
            scheduler=ASHAScheduler(max_t=STEPS, grace_period=STEPS // 2),
            max_concurrent_trials=WORKERS,
        ),
        run_config=tune.RunConfig(storage_path=f"{folder}/ben", verbose=0),
    )


def ann(folder, trials, trial_s, client, pause_s=0.5):
    """Her best x; a step takes ``pause_s``, a whole trial is believed to need ``trial_s``."""
    from themis.client.adapters.optuna import optimize

    study = study_of(folder, trials)
    env = {PAUSE: str(pause_s)}
    optimize(study, objective, trials, hours=trial_s / 3600, user="ann", name="study", env=env, client=client)
    return study.best_params["x"]


def ben(folder, trials, trial_s, client, pause_s=0.5):
    """His best x."""
    from themis.client.adapters.tune import on_themis

    more = {"hours": trial_s * trials / WORKERS / 3600, "env": {PAUSE: str(pause_s)}}
    with on_themis(curve, workers=WORKERS, user="ben", name="sweep", client=client, **more) as trainable:
        return tuner_of(trainable, folder, trials).fit().get_best_result().config["x"]


@contextmanager
def watching(home):
    """GPU seconds of each user while each could have used all GPUs; fills as long as the context lasts."""
    held, ended = {"ann": 0.0, "ben": 0.0}, threading.Event()

    def watch():
        with Client(home) as client:
            all_gpus, last = sum(node.gpus for node in client.nodes()), time.monotonic()
            while not ended.wait(0.2):
                apps, now = {app.user: app for app in client.queue()}, time.monotonic()
                if all(user in apps and apps[user].demand >= all_gpus for user in held):
                    for user in held:
                        held[user] += apps[user].gpus * (now - last)
                last = now

    thread = threading.Thread(target=watch)
    thread.start()
    try:
        yield held
    finally:
        ended.set()
        thread.join()


def share(folder, trials, trial_s, home=None, pause_s=0.5):
    """Both at once: (best x, GPU seconds held while both wanted all) of each user."""
    found = {}

    def study():
        with Client(home) as client:
            found["ann"] = ann(folder, trials, trial_s, client, pause_s)

    with watching(home) as held, Client(home) as client:
        beside = threading.Thread(target=study)
        beside.start()
        found["ben"] = ben(folder, trials, trial_s, client, pause_s)
        beside.join()
    return {user: (found[user], held[user]) for user in held}


if __name__ == "__main__":
    trials = int(sys.argv[1]) if len(sys.argv) > 1 else 12
    with tempfile.TemporaryDirectory() as folder:
        for user, (best, held) in share(folder, trials, trial_s=10.0).items():
            print(f"{user}: best x {best}, held {held:.1f} GPU seconds while both wanted all")
