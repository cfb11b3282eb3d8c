"""Free machines in order while GPUs are taken: ``packing.narrowest`` of each GPU type, without a look at all machines each time.

A machine is listed under its number of free GPUs. GPUs are only ever taken, so it is listed under each number at most once; a place
in a list that its machine has left is passed over.
"""

from __future__ import annotations

from heapq import heappop, heappush

import numpy as np

from themis.model.units import Int, Locality
from themis.policies.placement.packing import Counts


class Room:
    """Free GPUs of machines N of types K in racks R."""

    def __init__(self, free: Int, machine_rack: Int, machine_type: Int, types: int) -> None:
        self.free: list[int] = free.tolist()
        self.rack: list[int] = machine_rack.tolist()
        self.type: list[int] = machine_type.tolist()
        top, racks = max(self.free, default=0), max(self.rack, default=0) + 1
        self.listed: list[list[list[int]]] = [[[] for _ in range(top + 1)] for _ in range(types)]
        """A heap of machines by type and free GPUs; numbers that rise are one."""
        self.in_rack: list[list[list[int]]] = [[[] for _ in range(racks)] for _ in range(types)]
        """Machines that had free GPUs at first, ascending, by type and rack."""
        self.by_rack: Int = np.zeros((types, racks), dtype=np.int64)
        self.total = [0] * types
        for n in free.nonzero()[0].tolist():
            gpus, k, r = self.free[n], self.type[n], self.rack[n]
            self.listed[k][gpus].append(n)
            self.in_rack[k][r].append(n)
            self.by_rack[k, r] += gpus
            self.total[k] += gpus

    def take(self, n: int, gpus: int) -> None:
        """GPUs of machine ``n`` are no longer free."""
        self.free[n] -= gpus
        k = self.type[n]
        self.by_rack[k, self.rack[n]] -= gpus
        self.total[k] -= gpus
        if self.free[n]:
            heappush(self.listed[k][self.free[n]], n)

    def largest(self, k: int) -> int:
        """Most GPUs that are free on one machine of type ``k``."""
        return next((gpus for gpus in range(len(self.listed[k]) - 1, 0, -1) if self._first(k, gpus) is not None), 0)

    def narrowest(self, k: int, gpus: int) -> tuple[Counts, Locality] | None:
        """``packing.narrowest`` on machines of type ``k``; ``gpus`` : at least 1."""
        for room in range(gpus, len(self.listed[k])):
            n = self._first(k, room)
            if n is not None:
                return ((n, gpus),), Locality.MACHINE
        if self.total[k] < gpus:
            return None
        racks = (self.by_rack[k] >= gpus).nonzero()[0]
        if len(racks):
            at = self.in_rack[k][int(racks[self.by_rack[k, racks].argmin()])]
            return self._largest_first(at, gpus), Locality.RACK
        return self._largest_first([n for machines in self.in_rack[k] for n in machines], gpus), Locality.CROSS_RACK

    def narrowest_of_types(self, gpus: int, types: list[int]) -> tuple[Counts, Locality] | None:
        """``packing.narrowest_of_types``: the types in order of preference."""
        best: tuple[Counts, Locality] | None = None
        for k in types:
            found = self.narrowest(k, gpus)
            if found is not None and (best is None or found[1] < best[1]):
                best = found
                if found[1] is Locality.MACHINE:
                    break
        return best

    def _first(self, k: int, gpus: int) -> int | None:
        """The first machine of type ``k`` with this many free GPUs."""
        machines = self.listed[k][gpus]
        while machines and self.free[machines[0]] != gpus:
            heappop(machines)
        return machines[0] if machines else None

    def _largest_first(self, machines: list[int], gpus: int) -> Counts:
        counts, free = [], self.free
        for n in sorted((n for n in machines if free[n]), key=lambda n: (-free[n], n)):
            counts.append((n, min(gpus, free[n])))
            gpus -= counts[-1][1]
            if not gpus:
                break
        return tuple(counts)
