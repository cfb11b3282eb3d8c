"""Class trainables of Tune on a real Ray cluster, with and without Themis, one of their sweeps preempted."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from daemon import QUICK, Daemon, daemon

from processes import wait_until
from raycluster import RayCluster
from themis.adapters.tune import on_themis
from themis.client.client import Client

tune = pytest.importorskip("ray.tune", reason="Ray Tune is not installed; pip install 'themis-scheduler[tune]'")
import ray  # noqa: E402
import trainables  # noqa: E402
from ray import cloudpickle  # noqa: E402
from trainables import Counter  # noqa: E402

pytestmark = [pytest.mark.slow, pytest.mark.xdist_group("ray"), pytest.mark.filterwarnings("ignore")]
SETTINGS = (*QUICK, "node_lease=30", "lease=4")
"""Long enough for a busy machine."""


@pytest.fixture(scope="module")
def service(tmp_path_factory: pytest.TempPathFactory, ray_nodes: RayCluster) -> Iterator[Daemon]:
    """One service of two GPUs, and this process as a driver of the Ray cluster."""
    # Ray's workers do not look for modules where pytest does.
    cloudpickle.register_pickle_by_value(trainables)
    ray.init(address=ray_nodes.address, log_to_driver=False, logging_level="ERROR")
    try:
        with daemon(tmp_path_factory.mktemp("tune") / "home", options=("--gpus", "2"), settings=SETTINGS) as made:
            yield made
    finally:
        cloudpickle.unregister_pickle_by_value(trainables)
        ray.shutdown()


@pytest.fixture
def client(service: Daemon) -> Iterator[Client]:
    with service.client() as made:
        yield made


def fit(trainable: Any, folder: Path, space: dict[str, Any], scheduler: Any, **more: Any) -> Any:
    """A sweep as it would be without Themis, but for the trainable."""
    tuner = tune.Tuner(
        trainable, param_space=space, tune_config=tune.TuneConfig(metric="loss", mode="min", scheduler=scheduler),
        run_config=tune.RunConfig(storage_path=str(folder), verbose=0, **more),
    )  # fmt: skip
    results = tuner.fit()
    assert not results.errors
    return results


def test_a_class_has_the_results_and_checkpoints_that_it_has_without_themis(tmp_path: Path, client: Client) -> None:
    found = []
    for name in ("plain", "shared"):
        space, save = {"x": tune.grid_search([0.0, 1.0]), "pause": 0.2}, tune.CheckpointConfig(checkpoint_frequency=2)
        if name == "plain":
            results = fit(
                tune.with_resources(Counter, {"CPU": 0.5}), tmp_path / name, space, None, checkpoint_config=save
            )
        else:
            with on_themis(Counter, workers=2, cpus=0.5, hours=0.01, name="classes", client=client) as relayed:
                over = preempted(
                    client, "classes", lambda: any(j.steps or j.attempt for j in client.show("classes").jobs)
                )
                results = fit(relayed, tmp_path / name, space, None, checkpoint_config=save)
                over.join()
        rows = [
            (r.config["x"], r.metrics["count"], r.metrics["training_iteration"], r.metrics["before"]) for r in results
        ]
        found.append((sorted(rows), [(Path(r.checkpoint.path) / "count").read_text() for r in results]))
    assert found[0] == found[1]


def preempted(client: Client, app: str, when: Callable[[], bool]) -> threading.Thread:
    """Take the app's GPUs away for a moment, once it runs."""

    def take() -> None:
        wait_until(lambda: any(a.name == app and a.gpus for a in client.queue()) and when(), "it runs")
        client.hold(app)
        wait_until(lambda: not client.show(app).app.gpus, "it gave its GPUs back")
        client.resume(app)

    thread = threading.Thread(target=take)
    thread.start()
    return thread
