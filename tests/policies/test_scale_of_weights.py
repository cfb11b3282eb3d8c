"""Weights are ratios: eight times all weights gives the same leases under every policy."""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
import pytest

from themis.model.events import Grant, Revoke
from themis.model.workload import App, Job, Regime
from themis.policies.api import policy_names

sys.path.append(str(Path(__file__).parents[2] / "reproduction"))
import delivered_weights as delivered


def _apps(scale: float) -> list[App]:
    """Eight apps of three users with weights of 0.5 to 3, and jobs of one or two GPUs."""
    rng = np.random.default_rng(0)
    out, arrival = [], 0.0
    for i in range(8):
        jobs = tuple(
            Job(name=f"j{j}", model="generic", regimes=(Regime(steps=float(rng.uniform(1500, 9000))),), gpus_min=g,
                gpus_max=g)
            for j, g in enumerate(rng.choice([1, 1, 2], 3).tolist())
        )  # fmt: skip
        weight = scale * float(rng.choice([0.5, 1, 1, 3]))
        out.append(App(name=f"a{i}", user=f"u{i % 3}", arrival=arrival, jobs=jobs, weight=weight))
        arrival += float(rng.exponential(700))
    return out


def _leases(policy: str, scale: float) -> list[tuple[float, type, int, tuple[int, ...]]]:
    """Every grant and revocation of one simulation on machines of four and two GPUs."""
    out: list[tuple[float, type, int, tuple[int, ...]]] = []

    def sink(time: float, record: object) -> None:
        if isinstance(record, Grant | Revoke):
            out.append((time, type(record), record.job, tuple(record.gpus) if isinstance(record, Grant) else ()))

    delivered.world(_apps(scale), (4, 2), policy).run(sink)
    return out


@pytest.mark.parametrize("policy", policy_names())
def test_eight_times_all_weights_give_the_same_leases(policy: str) -> None:
    """A power of two, so that no rounding differs either."""
    leases = _leases(policy, 1.0)
    assert len(leases) > 48
    assert _leases(policy, 8.0) == leases
