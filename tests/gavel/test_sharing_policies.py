"""Policies with space sharing: pairs from the profiles to the rounds, and never a worse objective."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from themis.errors import InputError
from themis.model.events import Allocated, AppFinished, Grant
from themis.model.settings import Settings
from themis.model.workload import Workload
from themis.policies.api import make_policy
from themis.profiles.speed import ANY_TYPE, ProfileBook, linear
from themis.sim.runner import Record, Simulation
from themis.testing.builders import app, job, leased_twice, machines

BOOK = ProfileBook.of(
    replace(
        linear(name, 1.0, slowdown=(1.0, 1.0, 1.0, 1.0)),
        beside={(ANY_TYPE, 0, other, 0): 0.8 for other in ("one", "two")},
    )
    for name in ("one", "two")
)


def run(policy: str) -> tuple[list[tuple[float, Record]], float, float]:
    """The log, the first objective, and the mean JCT of six jobs on two GPUs."""
    apps = [app(f"a{j}", [job(4000.0 + 300 * j, model=("one", "two")[j % 2])]) for j in range(6)]
    simulation = Simulation(
        workload=Workload(name="w", apps=tuple(apps)), cluster=machines(2), book=BOOK, policy_name=policy,
        policy=make_policy(policy), settings=Settings(container_s=0.0, validate=True),
    )  # fmt: skip
    log: list[tuple[float, Record]] = []
    simulation.run(lambda time, record: log.append((time, record)))
    assert not leased_twice(log)
    first = next(r.solved.proof.objective for _, r in log if isinstance(r, Allocated))
    return log, first, float(np.mean([r.jct for _, r in log if isinstance(r, AppFinished)]))


def test_sharing_raises_the_objective_and_lowers_the_mean_jct() -> None:
    _, alone, slow = run("max_min_fairness")
    log, paired, fast = run("max_min_fairness:sharing=true")
    assert alone == pytest.approx(2 / 6)
    assert paired == pytest.approx(1.6 * 2 / 6), "four of six jobs run at a time, each at 0.8 of its speed"
    assert fast < slow
    assert {r.seat for _, r in log if isinstance(r, Grant)} == {0, 1}


def test_sharing_needs_to_know_types() -> None:
    with pytest.raises(InputError, match="aware=true"):
        make_policy("max_min_fairness:sharing=true,aware=false")
