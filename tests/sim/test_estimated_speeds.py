"""Simulations in which speeds are estimated until they are measured."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from themis.core.app_lifecycle import add_app
from themis.core.state import State
from themis.model.events import SpeedMeasured
from themis.model.log import encode, is_record
from themis.model.settings import Settings
from themis.model.speed import ProfileBook, linear
from themis.model.units import Locality
from themis.policies.api import make_policy
from themis.sim.plan import Plan
from themis.sim.replay import replay_records
from themis.sim.runner import Simulation
from themis.testing.builders import app, job
from themis.traces.profiles.presets import load_cluster

TRUTH = ProfileBook.of(
    [
        replace(linear("good", 1.0), beside={("*", 0, "good", 0): 0.8, ("*", 0, "bad", 0): 0.1}),
        replace(linear("bad", 1.0), beside={("*", 0, "good", 0): 0.1}),
    ]
)
BELIEVED = ProfileBook.of(
    [
        replace(linear("good", 2.0), beside={("*", 0, "good", 0): 0.3, ("*", 0, "bad", 0): 0.9}),
        replace(linear("bad", 1.0), beside={("*", 0, "good", 0): 0.9, ("*", 0, "bad", 0): 0.9}),
    ]
)


def simulation(believed: ProfileBook | None = BELIEVED) -> Simulation:
    from themis.model.workload import Workload

    apps = tuple(app(f"{model}{i}", [job(20_000.0, model=model)]) for model in ("good", "bad") for i in range(2))
    return Simulation(
        workload=Workload(name="w", apps=apps),
        cluster=load_cluster("1x1"),
        book=TRUTH,
        estimated=believed,
        policy_name="max_min_fairness:sharing=true",
        policy=make_policy("max_min_fairness:sharing=true"),
        settings=Settings(container_s=0.0, validate=True),
    )


def test_what_was_believed_is_replaced_by_what_jobs_measure() -> None:
    """A pair that looked good was tried and found bad; one that looked bad was not tried, so its share stays believed."""
    book = simulation().run().state.book
    for model, partner in (("good", "bad"), ("bad", "good")):
        assert book.get(model).share_beside("gpu", 0, (partner, 0)) == pytest.approx(0.1)
    assert book.rate("good", 0, "gpu", 1, Locality.SLOT) == pytest.approx(1.0)
    assert book.get("good").share_beside("gpu", 0, ("good", 0)) == pytest.approx(0.3)


def test_two_that_do_not_fit_get_nowhere_until_it_is_known() -> None:
    core = simulation().run()
    assert core.state.book.get("bad").share_beside("gpu", 0, ("bad", 0)) == 0.0
    assert core.state.now < 90_000, "four jobs of 20,000 s, and little of the time lost"


def test_one_seed_gives_one_log_which_replays_with_what_was_believed_first() -> None:
    logs = []
    for _ in range(2):
        records = []
        simulation().run(lambda t, r, records=records: records.append((t, r)))
        logs.append(records)
    lines = [[encode(t, r) for t, r in records if is_record(r)] for records in logs]
    assert lines[0] == lines[1]
    assert sum(b"SpeedMeasured" in line for line in lines[0]) >= 3
    kept = [(t, r) for t, r in logs[0] if is_record(r)]
    assert replay_records(kept, book=BELIEVED).difference is None


def test_without_estimates_nothing_is_measured() -> None:
    records = []
    simulation(None).run(lambda t, r: records.append(r))
    assert not any(isinstance(r, SpeedMeasured) for r in records)


def test_a_measured_speed_changes_rates_but_not_the_unit_of_work() -> None:
    state = State(ProfileBook.of([linear("m", 2.0)]), Settings())
    for machine in load_cluster("1x4").machines:
        state.add_machine(machine)
    a = add_app(state, app("a", [job(100.0, (1, 4), model="m")]), 1.0)
    config, serial = state.speeds.index["m", 0], state.speeds.serial.copy()
    budget = float(state.apps.budget[a])
    state.learn_speed(SpeedMeasured(model="m", gpu_type="gpu", gpus=1, locality=0, steps_per_s=2.0))
    assert state.speeds.serial == pytest.approx(serial)
    assert state.speeds.rate(np.array([config]), 0, 1, 0) == pytest.approx(2.0)
    assert state.speeds.rate(np.array([config]), 0, 4, 0) == pytest.approx(8.0)
    assert float(state.apps.budget[a]) == budget
    add_app(state, app("b", [job(100.0, (1, 8), model="m")]), 1.0)
    assert state.speeds.serial == pytest.approx(serial), "a larger table is in the same unit"
    assert state.speeds.rate(np.array([config]), 0, 8, 0) == pytest.approx(16.0)
    state.learn_speed(SpeedMeasured(model="absent", gpu_type="gpu", gpus=1, locality=0, steps_per_s=2.0))
    state.learn_speed(SpeedMeasured(model="m", gpu_type="gpu", gpus=1, locality=0, steps_per_s=0.0))
    assert state.speeds.rate(np.array([config]), 0, 1, 0) == pytest.approx(2.0)


def test_a_pair_that_does_not_fit_is_learnt_to_be_none() -> None:
    state = State(BELIEVED, Settings())
    for machine in load_cluster("1x1").machines:
        state.add_machine(machine)
    add_app(state, app("a", [job(100.0, model="bad")]), 1.0)
    m = state.speeds.index["bad", 0]
    assert state.speeds.beside[m, m, 0] == 0.9
    told = SpeedMeasured(model="bad", gpu_type="gpu", gpus=1, locality=0, steps_per_s=0.0, partner="bad")
    state.learn_speed(told)
    assert (m, m, 0) not in state.speeds.beside


@pytest.mark.slow
def test_the_command_line_estimates_and_space_sharing_still_beats_none(tmp_path: Path) -> None:
    """Figure 16 in small: oracle, estimated, without space sharing."""
    mean = {}
    for name, policy, estimate in (
        ("oracle", "max_min_fairness:sharing=true", None),
        ("estimated", "max_min_fairness:sharing=true", {"references": "13", "probes": "0.2"}),
        ("none", "max_min_fairness", None),
    ):
        plan = Plan(
            workload="gavel_single:jobs=25,rate=12", cluster="1x2@V100+1x2@K80", policies=(policy,), estimate=estimate
        )
        jct = []
        plan.runs()[0].simulation.run(lambda t, r, jct=jct: jct.append(r.jct) if hasattr(r, "rho_paper") else None)
        mean[name] = float(np.mean(jct))
    assert mean["oracle"] < mean["estimated"] * 1.02
    assert mean["estimated"] < mean["none"], json.dumps(mean)
