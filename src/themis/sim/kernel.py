"""The event kernel: a heap of (time, priority, sequence). Equal times go by priority, then in order of scheduling."""

from __future__ import annotations

import heapq
from dataclasses import dataclass

from themis.model.events import Event, Wake
from themis.model.units import Seconds


@dataclass(slots=True)
class Scheduled:
    """An event in the heap."""

    event: Event | None

    def cancel(self) -> None:
        """Never deliver it."""
        self.event = None


class Kernel:
    """Simulated time. ``Wake`` comes after every other event of its instant."""

    def __init__(self) -> None:
        self.now: Seconds = 0.0
        self._heap: list[tuple[Seconds, int, int, Scheduled]] = []
        self._sequence = 0

    def schedule(self, time: Seconds, event: Event) -> Scheduled:
        """Deliver the event at ``time``, or now if that is past."""
        entry = Scheduled(event)
        self._sequence += 1
        heapq.heappush(self._heap, (max(time, self.now), int(isinstance(event, Wake)), self._sequence, entry))
        return entry

    def pop(self) -> Event | None:
        """Move to the next event and return it; None when there is none."""
        while self._heap:
            time, _, _, entry = heapq.heappop(self._heap)
            if entry.event is not None:
                self.now = time
                return entry.event
        return None
