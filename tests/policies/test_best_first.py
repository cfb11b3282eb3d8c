"""Placement in the order, gangs that have just started, and apps that use no more than their own share."""

from __future__ import annotations

import numpy as np
import pytest

from themis.core import take_snapshot as snapshots
from themis.model.settings import Settings
from themis.model.snapshot import Snapshot
from themis.model.workload import App
from themis.policies.placement import best_first as placed_best
from themis.policies.placement import ordered
from themis.policies.placement.best_first import best_first
from themis.policies.placement.grants import Allocator, Demand, demand_of
from themis.testing.builders import NO_OVERHEAD, app, job, machines, state_at


def _given(s: Snapshot, rank: list[float], young_s: float = 0.0) -> dict[int, list[tuple[int, int]]]:
    """(machine, GPUs) of each app that gets some."""
    allocator = Allocator(s)
    best_first(allocator, np.arange(s.apps), np.array(rank), s.now + 60.0, young_s=young_s)
    grant = allocator.grant()
    out: dict[int, list[tuple[int, int]]] = {}
    for a, n, gpus in zip(grant.app.tolist(), grant.machine.tolist(), grant.gpus.tolist()):
        out.setdefault(a, []).append((n, gpus))
    return out


def _snapshot(apps: list[App], held: tuple[tuple[int, tuple[int, ...], float], ...] = (), now: float = 0.0) -> Snapshot:
    """Two machines of four GPUs; leases that end now are on offer."""
    settings = Settings(container_s=35.0, validate=True)
    return snapshots.take(state_at(machines(4, 4), apps, held=held, now=now, settings=settings))


def test_the_gang_that_is_placed_best_goes_before_one_with_less_work() -> None:
    """Gangs of 6 span machines, those of 4 do not."""
    s = _snapshot(
        [app("wide", [job(60.0, 6, model="chatty")]), *(app(f"a{i}", [job(9e4, 4, model="chatty")]) for i in range(2))]
    )
    assert _given(s, [1.0, 2.0, 3.0]) == {1: [(0, 4)], 2: [(1, 4)]}


def test_of_gangs_placed_alike_the_one_with_the_least_rank_goes_first() -> None:
    s = _snapshot([app(f"a{i}", [job(9e3, 4)]) for i in range(3)])
    assert sorted(_given(s, [3.0, 1.0, 2.0])) == [1, 2]


def test_a_gang_that_has_just_started_keeps_its_gpus_before_apps_that_come_first() -> None:
    apps = [app(f"a{i}", [job(9e3, 4)]) for i in range(3)]
    held = ((0, (0, 1, 2, 3), 60.0),)
    s = _snapshot(apps, held, now=60.0)
    assert _given(s, [9.0, 1.0, 2.0], young_s=175.0)[0] == [(0, 4)]
    assert 0 not in _given(s, [9.0, 1.0, 2.0], young_s=30.0)


def test_bags_get_gangs_one_by_one_and_elastic_gangs_leave_room_for_those_of_their_app() -> None:
    s = snapshots.take(
        state_at(machines(4), [app("bag", [job(9e3, (1, 4), name=f"j{i}") for i in range(3)])], settings=NO_OVERHEAD)
    )
    assert [gpus for _, gpus in _given(s, [0.0])[0]] == [2, 1, 1]


def test_what_is_given_is_never_more_than_there_is() -> None:
    for seed in range(20):
        rng = np.random.default_rng(seed)
        apps = [
            app(
                f"a{i}",
                [
                    job(float(rng.uniform(1e3, 1e5)), int(rng.choice([1, 2, 3, 4, 6])), name=f"j{k}", model="chatty")
                    for k in range(2)
                ],
            )
            for i in range(5)
        ]
        s = _snapshot(apps)
        used = np.zeros(2, dtype=np.int64)
        for gangs in _given(s, rng.uniform(size=5).tolist()).values():
            for n, gpus in gangs:
                used[n] += gpus
        assert (used <= 4).all()
        assert used.sum() >= 3, "a gang of at most 6 fits 8 GPUs"


def test_gangs_wider_than_all_that_is_on_offer_are_not_looked_at(monkeypatch: pytest.MonkeyPatch) -> None:
    looked = list[int]()

    def counted(s: Snapshot, a: int) -> Demand:
        looked.append(a)
        return demand_of(s, a)

    apps = [*(app(f"wide{i}", [job(9e3, 3)]) for i in range(50)), app("last", [job(9e3, 2)])]
    s = snapshots.take(state_at(machines(2), apps, settings=NO_OVERHEAD))
    for module in (ordered, placed_best):
        monkeypatch.setattr(module, "demand_of", counted)
    assert _given(s, [0.0] * 50 + [1.0]) == {50: [(0, 2)]}
    allocator = Allocator(s)
    ordered.fill(allocator, np.arange(s.apps))
    assert allocator.grant().app.tolist() == [50]
    assert looked == [50, 50]
