"""Events of the present instant go beside the heap; their order is that of one heap."""

from __future__ import annotations

import heapq

import numpy as np
import pytest

from themis.model.events import AppCancelled, Event, Wake
from themis.sim.kernel import Kernel


@pytest.mark.parametrize("seed", range(5))
def test_delivery_is_that_of_one_heap_however_events_are_scheduled_and_cancelled(seed: int) -> None:
    rng, kernel = np.random.default_rng(seed), Kernel()
    heap: list[tuple[float, int, int, Event]] = []
    dead: set[int] = set()
    handles = {}
    number = 0

    def schedule(time: float, event: Event) -> None:
        nonlocal number
        number += 1
        handles[number] = kernel.schedule(time, event)
        heapq.heappush(heap, (max(time, kernel.now), int(isinstance(event, Wake)), number, event))

    schedule(0.0, AppCancelled(app=0))
    for step in range(6000):
        for _ in range(int(rng.integers(0, 4)) if step < 5000 else 0):
            time = kernel.now + float(rng.choice([-1.0, 0.0, 0.0, 1.0, 2.0, 500.0]))
            schedule(time, Wake() if rng.random() < 0.2 else AppCancelled(app=number))
        if rng.random() < 0.4:
            gone = int(rng.integers(1, number + 1))
            handles[gone].cancel()
            dead.add(gone)
        while heap and heap[0][2] in dead:
            heapq.heappop(heap)
        expected = heapq.heappop(heap) if heap else None
        event = kernel.pop()
        assert event == (expected[3] if expected else None)
        if expected:
            assert kernel.now == expected[0]
            dead.add(expected[2])
