"""Where gangs go: the narrowest place, by best fit, and exact GPUs by slot."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from themis.model.cluster import Cluster, Machine
from themis.model.units import Locality
from themis.policies.placement.grants import Allocator, demand_of
from themis.policies.placement.packing import narrowest, pick_gpus
from themis.testing.builders import app, job, machines, snapshot_of

RACKS = np.array([0, 0, 1, 1])
ALL = np.ones(4, dtype=bool)


@pytest.mark.parametrize(
    ("free", "gpus", "counts", "locality"),
    [
        ((8, 4, 4, 2), 4, ((1, 4),), Locality.MACHINE),
        ((3, 3, 2, 2), 4, ((2, 2), (3, 2)), Locality.RACK),
        ((3, 1, 2, 1), 5, ((0, 3), (2, 2)), Locality.CROSS_RACK),
    ],
)
def test_gang_goes_to_the_fullest_narrowest_place_that_holds_it(
    free: tuple[int, ...], gpus: int, counts: tuple[tuple[int, int], ...], locality: Locality
) -> None:
    assert narrowest(np.array(free), RACKS, gpus, ALL) == (counts, locality)


def test_gang_without_room_is_not_placed() -> None:
    assert narrowest(np.array([3, 3, 3, 3]), RACKS, 13, ALL) is None
    assert narrowest(np.array([8, 8, 8, 8]), RACKS, 8, ~ALL) is None


@given(st.lists(st.integers(0, 8), min_size=1, max_size=12), st.integers(1, 20))
def test_counts_add_up_and_stay_within_what_is_free(free: list[int], gpus: int) -> None:
    room = np.array(free)
    found = narrowest(room, np.arange(len(free)) // 3, gpus, np.ones(len(free), dtype=bool))
    if found is None:
        assert room.sum() < gpus
    else:
        assert sum(c for _, c in found[0]) == gpus
        assert all(0 < c <= room[n] for n, c in found[0])


def test_exact_gpus_come_from_the_smallest_slot_that_holds_them() -> None:
    slot_of = np.array([0, 0, 0, 0, 1, 1, 2, 2])
    assert pick_gpus([0, 1, 2, 4, 5, 6, 7], slot_of, 2) == [4, 5]
    assert pick_gpus([0, 1, 2, 4, 5], slot_of, 4) == [0, 1, 2, 4]


def test_elastic_gang_that_no_gpu_type_has_room_for_takes_what_one_type_has() -> None:
    kinds = ("slow", "fast", "fast")
    cluster = Cluster(
        name="two", machines=tuple(Machine(name=t + str(i), gpus=2, gpu_type=t) for i, t in enumerate(kinds))
    )
    s = snapshot_of(cluster, [app("a", [job(100.0, (2, 6))]), app("b", [job(100.0, 6)])])
    assert Allocator(s).best_place(0, 6) == (((1, 2), (2, 2)), Locality.RACK)
    assert Allocator(s).best_place(1, 6) is None


def test_gang_shrinks_only_to_a_size_that_one_of_its_apps_jobs_can_use() -> None:
    s = snapshot_of(
        machines(3, 1, per_rack=1), [app("a", [job(90.0, 1, model="chatty"), job(90.0, (4, 4), model="chatty")])]
    )
    # Three GPUs on one machine are worth more than four apart, but no job runs on three.
    assert Allocator(s).best_place(0, 4) == (((0, 3), (1, 1)), Locality.CROSS_RACK)


def test_elastic_gang_declines_gpus_that_would_slow_it_down() -> None:
    s = snapshot_of(machines(4, 1, per_rack=1), [app("a", [job(100.0, (1, 5), model="chatty")])])
    # Five GPUs across racks are worth 5 / 1.6 = 3.1 reference GPUs, four on one machine 4.
    assert Allocator(s).best_place(0, 5) == (((0, 4),), Locality.MACHINE)


def test_rigid_gang_takes_what_it_needs_wherever_it_is() -> None:
    s = snapshot_of(machines(4, 1, per_rack=1), [app("a", [job(100.0, 5, model="chatty")])])
    assert Allocator(s).best_place(0, 5) == (((0, 4), (1, 1)), Locality.CROSS_RACK)


def test_expiring_gang_stays_where_it_stands() -> None:
    s = snapshot_of(machines(4, 4), [app("a", [job(900.0, 2)])], held=[(0, (5, 6), 600.0)], now=600.0)
    allocator = Allocator(s)
    allocator.allocate([(0, [2])], 1200.0)
    assert allocator.grant().machine.tolist() == [1]


def test_spread_gang_moves_together_when_that_pays_for_the_restart() -> None:
    s = snapshot_of(
        machines(4, 4), [app("a", [job(9000.0, 4, model="chatty")])], held=[(0, (2, 3, 4, 5), 600.0)], now=600.0
    )
    allocator = Allocator(s)
    allocator.allocate([(0, [4])], 1200.0)
    assert allocator.grant().machine.tolist() == [0]


def test_demand_grows_by_whole_gangs_and_then_gpu_by_gpu_in_turn() -> None:
    demand = demand_of(snapshot_of(machines(8), [app("a", [job(50.0, (2, 3)), job(70.0, (2, 4))])]), 0)
    steps = []
    while step := demand.next_step():
        steps.append(step)
        demand.take()
    assert (steps, demand.gangs) == ([2, 2, 1, 1, 1], [4, 3])
