"""Two users on one Ray cluster: an Optuna study and a Ray Tune sweep, alone and sharing; what each held, what each found.

    python reproduction/tuning.py

Starts a Ray cluster of two raylets with two logical GPUs on this machine, and the service on it; prints a table. The share
is GPU time held while both sweeps could have used all four GPUs, from what the service says of its users. Each sweep's best
trial is compared with that of the same sweep without Themis. Needs the extras optuna and tune.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from themis import Client

POINTS = [-4.0 + i for i in range(12)]
"""Parameters of either sweep's trials; the best is 2."""
PAUSE_S, STEPS = 0.5, 6


def loss_at(x: float, step: int) -> float:
    """A curve that falls to the parameter's distance from 2."""
    return (x - 2.0) ** 2 + (STEPS - step)


def objective(trial: Any) -> float:
    """Ann's, in Optuna's words."""
    import optuna

    x = trial.suggest_float("x", -10.0, 10.0)
    for step in range(1, STEPS + 1):
        time.sleep(PAUSE_S)
        trial.report(loss_at(x, step), step)
        if trial.should_prune():
            raise optuna.TrialPruned
    return loss_at(x, STEPS)


def train(config: dict[str, Any]) -> None:
    """Ben's, in Tune's."""
    from ray import tune

    step = 0
    if checkpoint := tune.get_checkpoint():
        with checkpoint.as_directory() as folder:
            step = json.loads((Path(folder) / "step").read_text())
    while step < STEPS:
        time.sleep(PAUSE_S)
        step += 1
        with tempfile.TemporaryDirectory() as folder:
            (Path(folder) / "step").write_text(json.dumps(step))
            tune.report({"loss": loss_at(config["x"], step)}, checkpoint=tune.Checkpoint.from_directory(folder))


def ann(folder: Path, home: Path | None, name: str) -> float:
    """Her study's best x; without Themis where there is no home."""
    import optuna

    from themis.adapters.optuna import optimize

    optuna.logging.set_verbosity(optuna.logging.ERROR)
    pruner = optuna.pruners.MedianPruner(n_startup_trials=4, n_warmup_steps=3)
    study = optuna.create_study(storage=f"sqlite:///{folder}/{name}.db", study_name=name, pruner=pruner)
    for x in POINTS:
        study.enqueue_trial({"x": x})
    if home is None:
        study.optimize(objective, n_trials=len(POINTS))
    else:
        with Client(home) as client:
            optimize(study, objective, len(POINTS), hours=0.005, user="ann", client=client)
    return float(study.best_params["x"])


def ben(folder: Path, home: Path | None, name: str) -> float:
    """His sweep's best x."""
    from ray import tune
    from ray.tune.schedulers import ASHAScheduler

    from themis.adapters.tune import on_themis

    def fit(trainable: Any) -> float:
        tuner = tune.Tuner(
            trainable, param_space={"x": tune.grid_search(POINTS)},
            tune_config=tune.TuneConfig(
                metric="loss", mode="min", scheduler=ASHAScheduler(max_t=STEPS, grace_period=3), max_concurrent_trials=4
            ),
            run_config=tune.RunConfig(storage_path=str(folder / name), verbose=0),
        )  # fmt: skip
        return float(tuner.fit().get_best_result().config["x"])

    if home is None:
        return fit(tune.with_resources(train, {"CPU": 1}))
    with Client(home) as client, on_themis(train, workers=4, hours=0.03, user="ben", client=client) as trainable:
        return fit(trainable)


@contextmanager
def cluster() -> Iterator[str]:
    """Two raylets with two GPUs each, and CPUs for trials; their address."""
    import ray
    from ray.cluster_utils import Cluster

    store = {"object_store_memory": 80 << 20}
    made = Cluster(
        initialize_head=True, head_node_args={"num_cpus": 6, "num_gpus": 0, "include_dashboard": False, **store}
    )
    try:
        for n in range(2):
            made.add_node(num_cpus=1, num_gpus=2, labels={"themis-node": f"m{n}"}, **store)
        yield str(made.address)
    finally:
        ray.shutdown()
        made.shutdown()


@contextmanager
def service(home: Path, address: str) -> Iterator[None]:
    """``themis up`` on it, with short leases."""
    home.mkdir()
    words = ["lease=6", "tick=3", "container=1", "single_trust=true", f"node_root={home}/nodes"]
    command = [
        sys.executable,
        "-m",
        "themis.cli",
        "up",
        "--home",
        str(home),
        "--engine",
        "ray",
        "--address",
        address,
        "--port",
        "0",
    ]
    command += ["--allow-root", "--http-port", "-1", *(word for setting in words for word in ("--set", setting))]
    with open(home / "log", "wb") as log, subprocess.Popen(command, stdout=log, stderr=log) as up:
        try:
            while not (home / "endpoint.json").exists():
                assert up.poll() is None, (home / "log").read_text()
                time.sleep(0.2)
            with Client(home) as client:
                while sum(n.gpus for n in client.nodes()) < 4:
                    time.sleep(0.2)
            yield
        finally:
            up.terminate()


def watch(home: Path, ended: threading.Event, held: dict[str, float]) -> None:
    """GPU seconds of each user while both wanted more than all GPUs."""
    with Client(home) as client:
        last = time.monotonic()
        while not ended.wait(0.25):
            apps = {app.user: app for app in client.queue()}
            now = time.monotonic()
            if set(apps) == {"ann", "ben"} and min(app.demand for app in apps.values()) >= 4:
                for user, app in apps.items():
                    held[user] = held.get(user, 0.0) + app.gpus * (now - last)
            last = now


def main() -> None:
    """The table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.parse_args()
    import ray

    with tempfile.TemporaryDirectory() as name, cluster() as address:
        folder, home = Path(name), Path(name) / "home"
        ray.init(address=address, log_to_driver=False, logging_level="ERROR")
        found = {("ann", "plain"): ann(folder, None, "plain"), ("ben", "plain"): ben(folder, None, "plain")}
        with service(home, address):
            found["ann", "alone"], found["ben", "alone"] = ann(folder, home, "alone"), ben(folder, home, "alone")
            ended, held = threading.Event(), dict[str, float]()
            threading.Thread(target=watch, args=(home, ended, held), daemon=True).start()

            def of_ann() -> None:
                found["ann", "sharing"] = ann(folder, home, "sharing")

            study = threading.Thread(target=of_ann)
            study.start()
            found["ben", "sharing"] = ben(folder, home, "sharing")
            study.join()
            ended.set()
        total = sum(held.values())
        print("| user | sweep | best x without Themis | alone on it | sharing | GPU s while both wanted all | share |")
        print("|---|---|---|---|---|---|---|")
        for user, what in (("ann", "Optuna, MedianPruner"), ("ben", "Ray Tune, ASHA")):
            best = " | ".join(f"{found[user, how]:.1f}" for how in ("plain", "alone", "sharing"))
            mine = held.get(user, 0.0)
            print(
                f"| {user} | {what}, {len(POINTS)} trials | {best} | {mine:.0f} | {mine / total if total else 0.0:.0%} |"
            )


if __name__ == "__main__":
    main()
