"""Ray Tune on a real Ray cluster, as without Themis: classes, preempted; HyperBand, PB2; trials that change their resources."""

from __future__ import annotations

import os
import sys
import threading
import time
from collections.abc import Callable, Iterator
from itertools import groupby
from pathlib import Path
from typing import Any

import pytest
from daemon import QUICK, Daemon, daemon

from processes import wait_until
from raycluster import RayCluster
from themis.client.adapters.tune import leased, on_themis
from themis.client.client import Client
from themis.schema import messages as schema

tune = pytest.importorskip("ray.tune", reason="Ray Tune is not installed; pip install 'themis-scheduler[tune]'")
import ray  # noqa: E402
import trainables  # noqa: E402
from ray import cloudpickle  # noqa: E402
from trainables import STEPS, AsDictionary, Counter, counted  # noqa: E402

pytestmark = [
    pytest.mark.slow,
    pytest.mark.xdist_group("ray"),
    pytest.mark.filterwarnings("ignore"),
    pytest.mark.timeout(900),
]
SETTINGS = (*QUICK, "node_lease=30", "lease=4")
"""Long enough for a busy machine."""
ALL = os.environ.get("THEMIS_RAY_FORMS") == "all"
"""Each test of a scheduler with functions and with classes, as in `make soak`, instead of one with either."""
SWEEP_S = 200.0
"""A sweep takes 15 s on a quiet machine; Ray Tune's own HyperBand, without Themis, once never ended."""


@pytest.fixture(scope="module")
def service(tmp_path_factory: pytest.TempPathFactory, ray_session: RayCluster) -> Iterator[Daemon]:
    """One service of two GPUs, and this process as a driver of the Ray cluster."""
    ray_session.settle()
    # Ray's workers do not look for modules where pytest does.
    modules = (trainables, sys.modules[__name__])
    for module in modules:
        cloudpickle.register_pickle_by_value(module)
    ray.init(address=ray_session.address, log_to_driver=False, logging_level="ERROR")
    try:
        with daemon(tmp_path_factory.mktemp("tune") / "home", options=("--gpus", "2"), settings=SETTINGS) as made:
            yield made
    finally:
        for module in modules:
            cloudpickle.unregister_pickle_by_value(module)
        ray.shutdown()


@pytest.fixture
def client(service: Daemon) -> Iterator[Client]:
    with service.client() as made:
        yield made


def fit(trainable: Any, folder: Path, space: dict[str, Any], scheduler: Any, **more: Any) -> Any:
    """A sweep as it would be without Themis, but for the trainable; fails if it has not ended after ``SWEEP_S``."""
    tuner = tune.Tuner(
        trainable,
        param_space=space,
        tune_config=tune.TuneConfig(metric="loss", mode="min", scheduler=scheduler, time_budget_s=SWEEP_S),
        run_config=tune.RunConfig(storage_path=str(folder), verbose=0, **more),
    )
    began = time.monotonic()
    results = tuner.fit()
    assert not results.errors
    if time.monotonic() - began >= SWEEP_S:
        steps = [(r.metrics or {}).get("training_iteration", 0) for r in results]
        raise Hung(
            f"Ray Tune had not ended its sweep of {len(results)} trials after {SWEEP_S:g} s; their steps: {steps}"
        )
    return results


class Hung(AssertionError):
    """A sweep that Ray Tune did not end."""


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


def test_hyperband_pauses_and_stops_the_trials_that_it_would_without_themis(tmp_path: Path, client: Client) -> None:
    """Ray Tune's own HyperBand stalls now and then, with Themis or without: then the sweep runs once more.

    With Themis that is sure only where both workers had GPUs until they returned them, because no trial asked for one.
    """

    def bands(folder: str, trainable: Any) -> Any:
        # Three in Tune's first bracket, which halves nobody, three in the second.
        space = {"x": tune.grid_search([float(x) for x in range(6)])}
        scheduler = tune.schedulers.HyperBandScheduler(max_t=STEPS, reduction_factor=2)
        return fit(trainable, tmp_path / folder, space, scheduler)

    def shared(name: str) -> Any:
        with on_themis(counted, workers=2, cpus=0.5, hours=0.01, name=name, client=client) as relayed:
            return bands(name, relayed)

    alone = tune.with_resources(unleased, {"CPU": 0.5})
    found = []
    for first, again in (
        (lambda: bands("plain", alone), lambda: bands("plain-again", alone)),
        (lambda: shared("bands"), lambda: shared("bands-again")),
    ):
        try:
            results = first()
        except Hung as hung:
            if found and not returned_by_both_workers(client.show("bands")):
                raise
            print(f"{hung}. Nobody waited for GPUs, so it runs once more.")
            results = again()
        assert all(r.metrics["step"] == r.metrics["training_iteration"] for r in results), "no step was heard twice"
        found.append({r.config["x"]: r.metrics["step"] for r in results})
    assert found[0] == found[1]
    assert found[1][0.0] == STEPS
    assert min(found[1].values()) < STEPS


def returned_by_both_workers(shown: schema.ShowReply) -> bool:
    """Whether each worker of a sweep ran once, and ended by itself."""
    return shown.app.state == "completed" and [job.attempt for job in shown.jobs] == [1, 1]


def unleased(config: dict[str, Any]) -> None:
    """The same function, where nobody leases GPUs."""
    os.environ["THEMIS_GPUS"] = "0"
    counted(config)


@pytest.mark.parametrize("trainable", [counted, AsDictionary] if ALL else [AsDictionary], ids=lambda t: t.__name__)
def test_pb2_copies_the_better_trial_into_the_worse_one(tmp_path: Path, client: Client, trainable: Any) -> None:
    pytest.importorskip("sklearn", reason="PB2 needs scikit-learn: pip install scikit-learn")
    from ray.tune.schedulers.pb2 import PB2

    scheduler = PB2(
        time_attr="training_iteration",
        perturbation_interval=2,
        synch=True,
        quantile_fraction=0.5,
        hyperparam_bounds={"x": [0.0, 5.0]},
    )
    name = f"pb2-{trainable.__name__}"
    with on_themis(trainable, workers=2, cpus=0.5, hours=0.01, name=name, client=client) as relayed:
        results = fit(relayed, tmp_path, {"x": tune.grid_search([0.0, 5.0])}, scheduler)
    assert [r.metrics["training_iteration"] for r in results] == [STEPS, STEPS]
    assert {r.config["x"] for r in results} != {0.0, 5.0}, "the worse one got other parameters"


@pytest.mark.parametrize("trainable", [counted, AsDictionary] if ALL else [counted], ids=lambda t: t.__name__)
def test_a_trial_grows_and_shrinks_with_its_lease_and_tune_knows(
    tmp_path: Path, client: Client, trainable: Any
) -> None:
    """By Tune's own scheduler for this: somebody else holds a GPU at first, then nobody does, then somebody again."""
    name = f"grows-{trainable.__name__}"
    started, heard, over = list[int](), list[tuple[int, int, int]](), list[bool]()

    class Listens(tune.Callback):  # type: ignore[misc]
        def on_trial_start(self, trial: Any, **_: Any) -> None:
            started.append(trial.placement_group_factory.gpus)

        def on_trial_result(self, result: dict[str, Any], **_: Any) -> None:
            heard.append((result["step"], result["gpus"], result["told"]))

    def has(gpus: int) -> bool:
        return bool(heard) and heard[-1][2] == gpus

    def other() -> int:
        return client.run(["sleep", "1000"], hours=0.1, weight=100.0, name=f"other{len(heard)}").app

    def come_and_go(first: int) -> None:
        try:
            wait_until(lambda: has(1), "the trial has what is left")
            client.cancel(first)
            wait_until(lambda: has(2), "it has all")
            second = other()
            wait_until(lambda: has(1), "it has its share")
            client.cancel(second)
        finally:
            over.append(True)

    beside = threading.Thread(target=come_and_go, args=(other(),))
    beside.start()
    space, scheduler = {"x": 0.0, "pause": 0.2, "steps": 1000}, tune.schedulers.ResourceChangingScheduler
    with on_themis(trainable, workers=1, gpus=(1, 2), cpus=0.5, hours=0.05, name=name, client=client) as relayed:
        fit(
            relayed,
            tmp_path,
            space,
            scheduler(resources_allocation_function=leased),
            callbacks=[Listens()],
            stop=lambda trial, result: bool(over),
        )
    beside.join()
    assert [step for step, *_ in heard] == list(range(1, len(heard) + 1)), "no step was lost, none was heard twice"
    assert [gpus for gpus, _ in groupby(told for *_, told in heard)][:3] == [1, 2, 1]
    assert all(gpus == told for _, gpus, told in heard), "the trainable finds its GPUs where Tune says that they are"
    assert [gpus for gpus, _ in groupby(started)][:3] == [1, 2, 1], "Tune started the trial again with what it had"


def preempted(client: Client, app: str, when: Callable[[], bool]) -> threading.Thread:
    """Take the app's GPUs away for a moment, once it runs."""

    def take() -> None:
        wait_until(lambda: any(a.name == app and a.gpus for a in client.queue()) and when(), "it runs")
        client.hold(app)
        try:
            wait_until(lambda: not client.show(app).app.gpus, "it gave its GPUs back")
        finally:
            # The sweep waits as long as it is held.
            client.resume(app)

    thread = threading.Thread(target=take)
    thread.start()
    return thread
