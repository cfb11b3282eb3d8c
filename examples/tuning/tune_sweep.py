"""A Ray Tune sweep on Themis' GPUs: ``themis up`` (here or on Ray), then ``python tune_sweep.py`` on a node of a Ray cluster."""

import json
import sys
import tempfile
import time
from pathlib import Path

from ray import tune
from ray.tune.schedulers import ASHAScheduler

from themis.client.adapters.tune import on_themis

STEPS = 6


def train(config):
    """An ordinary function of Tune: it reports, saves, and goes on from what was saved."""
    step = 0
    if checkpoint := tune.get_checkpoint():
        with checkpoint.as_directory() as folder:
            step = json.loads((Path(folder) / "step.json").read_text())
    while step < STEPS:
        time.sleep(config["pause"])
        step += 1
        with tempfile.TemporaryDirectory() as folder:
            (Path(folder) / "step.json").write_text(json.dumps(step))
            loss = (config["x"] - 2.0) ** 2 + STEPS - step
            tune.report({"loss": loss, "step": step}, checkpoint=tune.Checkpoint.from_directory(folder))


def tuner(trainable, pause, folder):
    """As it would be without Themis, but for the trainable."""
    return tune.Tuner(
        trainable,
        param_space={"x": tune.grid_search([0.0, 2.0, 5.0]), "pause": pause},
        tune_config=tune.TuneConfig(metric="loss", mode="min", scheduler=ASHAScheduler(max_t=STEPS, grace_period=4)),
        run_config=tune.RunConfig(storage_path=folder, verbose=0),
    )


if __name__ == "__main__":
    pause = float(sys.argv[1]) if len(sys.argv) > 1 else 0.1
    with tempfile.TemporaryDirectory() as folder:
        with on_themis(train, workers=2, gpus=1, hours=0.01, name="sweep") as trainable:
            results = tuner(trainable, pause, folder).fit()
        for result in results:
            m = result.metrics
            print(f"x {result.config['x']}: step {m['step']}, iteration {m['training_iteration']}, loss {m['loss']}")
        print("best x", results.get_best_result().config["x"])
