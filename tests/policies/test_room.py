"""Free machines in order while GPUs are taken give the places that a look at all machines gives."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from themis.policies.placement.packing import narrowest, narrowest_of_types
from themis.policies.placement.room import Room

MACHINES = 9


@given(
    st.lists(st.integers(0, 8), min_size=MACHINES, max_size=MACHINES),
    st.lists(st.integers(0, 2), min_size=MACHINES, max_size=MACHINES),
    st.lists(st.integers(0, 1), min_size=MACHINES, max_size=MACHINES),
    st.lists(st.tuples(st.integers(1, 12), st.integers(0, 1)), max_size=12),
)
def test_places_are_those_of_a_look_at_all_machines(
    free: list[int], rack: list[int], gpu_type: list[int], gangs: list[tuple[int, int]]
) -> None:
    left, racks, types = np.array(free), np.array(rack), np.array(gpu_type)
    room = Room(left, racks, types, 2)
    for gpus, k in gangs:
        here = np.where(types == k, left, 0)
        found = room.narrowest(k, gpus)
        assert found == narrowest(left, racks, gpus, types == k)
        assert room.narrowest_of_types(gpus, [1, 0]) == narrowest_of_types(left, racks, types, gpus, [1, 0])
        assert room.largest(k) == here.max()
        assert room.by_rack[k].max() == np.bincount(racks, weights=here).max()
        assert room.total[k] == here.sum()
        for n, c in found[0] if found else ():
            left[n] -= c
            room.take(n, c)


def test_no_machine_has_no_room() -> None:
    none = np.zeros(0, dtype=np.int64)
    assert Room(none, none, none, 1).narrowest(0, 1) is None
