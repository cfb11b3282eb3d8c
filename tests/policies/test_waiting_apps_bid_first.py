"""Apps that wait without GPUs bid before those whose leases end now, as long as they are behind their share: decision 0041."""

from __future__ import annotations

import contextlib
import sys
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

from themis.fairness.filtering import service_rank
from themis.model.events import AppSubmitted, Grant
from themis.model.workload import App

sys.path.append(str(Path(__file__).parents[2] / "reproduction"))
import delivered_weights as delivered

LEASE = 600.0


def first_gpus(apps: list[App], machines: tuple[int, ...], policy: str, until: float) -> dict[str, float]:
    """Seconds from each app's arrival to its first GPU, infinite where it got none by ``until``."""
    names: list[str] = []
    came: dict[int, float] = {}
    got: dict[int, float] = {}

    def sink(time: float, record: object) -> None:
        if time > until:
            raise delivered._Over
        if isinstance(record, AppSubmitted):
            came[len(names)] = time
            names.append(record.app.name)
        elif isinstance(record, Grant):
            got.setdefault(record.app, time)

    with contextlib.suppress(delivered._Over):
        delivered.world(apps, machines, policy).run(sink)
    return {name: got.get(a, np.inf) - came[a] for a, name in enumerate(names)}


@pytest.mark.parametrize("f", [0.4, 0.8])
def test_a_newcomer_has_its_first_gpu_when_the_leases_that_it_met_end(f: float) -> None:
    """All leases end together. Compared by rho alone, the app that held everything until now could win everything again."""
    residents = [delivered.app_of(f"r{i}", 8, 20_000.0) for i in range(2)]
    newcomers = [delivered.app_of(f"n{i}", 1, 300.0, arrival=1_900.0 + 1_830.0 * i) for i in range(12)]
    waited = first_gpus([*residents, *newcomers], (8,), f"themis:f={f}", 30_000.0)
    assert max(waited[app.name] for app in newcomers) <= LEASE + 60.0


def test_rank_of_apps() -> None:
    held, expiring = np.array([2, 0, 0, 0, 0]), np.array([0, 2, 0, 0, 1])
    behind = np.array([True, True, True, False, False])
    view = SimpleNamespace(
        apps=5,
        app_held=held,
        job_app=np.arange(5),
        job_expiring=expiring,
        app_attained=np.where(behind, 1.0, 3.0),
        app_elapsed=np.ones(5),
        app_capacity=np.full(5, 4.0),
        app_contention=np.full(5, 2.0),
    )
    assert service_rank(view).tolist() == [2, 1, 0, 1, 1]
