"""The event kernel: a heap of (time, priority, sequence). Equal times go by priority, then in order of scheduling."""

from __future__ import annotations

import heapq
from collections import deque
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
        self._present: deque[Scheduled] = deque()
        """Scheduled for the instant that it was then; what the heap holds for that instant was scheduled before."""
        self._sequence = 0
        self._most = 1000
        """Entries at which those that were cancelled are cleared away."""

    def schedule(self, time: Seconds, event: Event) -> Scheduled:
        """Deliver the event at ``time``, or now if that is past."""
        entry, last = Scheduled(event), type(event) is Wake
        if time <= self.now:
            if not last:
                self._present.append(entry)
                return entry
            time = self.now
        self._sequence += 1
        heapq.heappush(self._heap, (time, int(last), self._sequence, entry))
        if len(self._heap) > self._most:
            self._heap = [there for there in self._heap if there[3].event is not None]
            heapq.heapify(self._heap)
            self._most = 2 * len(self._heap) + 1000
        return entry

    def pop(self) -> Event | None:
        """Move to the next event and return it; None when there is none."""
        while self._heap or self._present:
            if self._present and not (self._heap and self._heap[0][0] <= self.now and not self._heap[0][1]):
                entry = self._present.popleft()
                if entry.event is not None:
                    return entry.event
                continue
            time, _, _, entry = heapq.heappop(self._heap)
            if entry.event is not None:
                self.now = time
                return entry.event
        return None
