"""Sia's program: the best of all assignments on small clusters of three GPU types."""

from __future__ import annotations

import itertools

import numpy as np
import pytest

from themis.core import take_snapshot
from themis.core.scheduler import Scheduler
from themis.errors import InputError
from themis.model.answers import GpuGrant
from themis.model.cluster import Machine
from themis.model.events import AppSubmitted, MachineJoined
from themis.model.settings import Settings
from themis.model.speed import Curve, Profile, ProfileBook
from themis.model.workload import App, Job, Regime
from themis.policies.api import Cadence, Workbench, make_policy

TYPES = ("A", "B", "C")
SIZES = (1, 2, 4)


def test_it_is_the_best_of_all_assignments_on_100_small_clusters_of_three_types() -> None:
    rng = np.random.default_rng(4)
    for _ in range(100):
        machines = [int(rng.integers(1, 3)) for _ in TYPES]
        jobs = int(rng.integers(2, 5))
        rates = np.exp(rng.normal(size=(jobs, 3, 1))) * np.array(SIZES) ** rng.uniform(0.2, 1.0, (jobs, 3, 1))
        barred = rng.random((jobs, 3)) < 0.15
        barred[np.arange(jobs), rng.integers(0, 3, jobs)] = False
        book = ProfileBook.of(
            Profile(
                name=f"m{j}",
                curves={
                    (kind, 0): Curve(gpus=SIZES, rate=tuple(rates[j, k].tolist()))
                    for k, kind in enumerate(TYPES)
                    if not barred[j, k]
                },
                slowdown=(1.0,) * 4,
            )
            for j in range(jobs)
        )
        core = Scheduler(book, Settings(lease_s=60.0), Cadence(), frozenset())
        for k, kind in enumerate(TYPES):
            for n in range(machines[k]):
                core.step(MachineJoined(machine=Machine(name=f"{kind}{n}", gpus=2, gpu_type=kind)), 0.0)
        for j in range(jobs):
            job = Job(name="j", model=f"m{j}", regimes=(Regime(steps=1000.0),), gpus_max=4)
            core.step(AppSubmitted(app=App(name=f"a{j}", user="u", arrival=0.0, jobs=(job,))), 0.0)
        solved = make_policy("sia")(take_snapshot.take(core.state, needs=frozenset({"job_seconds"})), Workbench())
        assert isinstance(solved.answer, GpuGrant)
        best = least_cost(rates, barred, [2 * n for n in machines])
        assert -solved.proof.objective == pytest.approx(best, abs=2e-3)
        assert solved.proof.objective <= solved.proof.bound + 1e-9


def least_cost(rates: np.ndarray, barred: np.ndarray, room: list[int]) -> float:
    """By all assignments: each job one of (type, size), or none."""
    jobs = len(rates)
    options = [(-1, 0), *((k, g) for k in range(3) for g in range(len(SIZES)))]
    least = [
        min(rates[j, k, g] for k in range(3) if not barred[j, k] for g in range(3) if SIZES[g] <= room[k])
        for j in range(jobs)
    ]
    best = np.inf
    for chosen in itertools.product(options, repeat=jobs):
        used = [sum(SIZES[g] for k, g in chosen if k == kind) for kind in range(3)]
        if any(u > r for u, r in zip(used, room)) or any(k >= 0 and barred[j, k] for j, (k, _) in enumerate(chosen)):
            continue
        cost = sum(1.1 if k < 0 else (rates[j, k, g] / least[j]) ** -0.5 for j, (k, g) in enumerate(chosen))
        best = min(best, cost)
    return best


def test_its_power_is_below_0() -> None:
    with pytest.raises(InputError, match=r"p is 0\.0, expected a power from -20 to below 0"):
        make_policy("sia:p=0")
