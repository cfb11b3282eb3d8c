"""Where there are fewer GPUs than apps, DRF and Optimus give turns by GPU time received per unit of weight."""

from __future__ import annotations

import pytest

from themis.model.settings import Settings
from themis.model.workload import Workload
from themis.policies.api import make_policy
from themis.report.metrics import Fold
from themis.sim.runner import Simulation
from themis.testing.builders import BOOK, app, job, machines

POLICIES = ("drf", "optimus")
WORK = 30000.0


class _Enough(Exception):
    """The simulation is stopped here."""


def received(policy: str, weights: list[float], until: float) -> list[float]:
    """GPU-seconds of each app, all there from the start on one GPU, after so many seconds."""
    fold = Fold()

    def sink(time: float, record: object) -> None:
        if time > until:
            raise _Enough
        fold.add(time, record)  # type: ignore[arg-type]

    apps = tuple(app(f"a{i}", [job(WORK)], weight=w) for i, w in enumerate(weights))
    simulation = Simulation(
        workload=Workload(name="w", apps=apps),
        cluster=machines(1),
        book=BOOK,
        policy_name=policy,
        policy=make_policy(policy),
        settings=Settings(container_s=0.0, validate=True),
    )
    with pytest.raises(_Enough):
        simulation.run(sink)
    return [a.gpu_seconds for a in fold.result().apps]


@pytest.mark.parametrize("policy", POLICIES)
def test_apps_at_share_0_take_turns_lease_by_lease(policy: str) -> None:
    had = received(policy, [1.0, 1.0, 1.0], 18000.0)
    assert max(had) - min(had) <= 600.0


@pytest.mark.parametrize("policy", POLICIES)
def test_turns_go_by_weight(policy: str) -> None:
    had = received(policy, [3.0, 1.0, 0.5], 27000.0)
    assert had[0] / 3.0 == pytest.approx(had[1], abs=900.0)
    assert had[2] / 0.5 == pytest.approx(had[1], abs=1200.0)
