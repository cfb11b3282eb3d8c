"""Do machine gangs and rack gangs fit together? An exact answer when every size divides the next larger one.

Gangs of such sizes fit into bins exactly when, for each size s, the bins hold as many slots ``floor(free / s)`` as all
gangs of size >= s take. So it does not matter where a gang lies within its rack, but how many machine
gangs of each size a rack takes, and how many slots for rack gangs its remaining GPUs still make. Only slots larger
than the smallest machine gang depend on that; smaller ones are lost one for one wherever a machine gang goes.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

Counts = tuple[int, ...]
Shares = list[tuple[int, Counts]]
"""Machine gangs of each size, by rack."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Rack:
    """Free GPUs of one type in a rack.

    Attributes
    ----------
    name
        Its number in the offer.
    slots
        Machine slots of each gang size, ``sum(floor(free / size))`` over its machines.
    room
        Free GPUs; at most those of the machines in sum.
    """

    name: int
    slots: Counts
    room: int


class Racks:
    """Racks of which gangs of `sizes` (falling, each divided by the next) are queried repeatedly."""

    def __init__(self, racks: Sequence[Rack], sizes: Counts) -> None:
        self.sizes = sizes
        self.racks = sorted(racks, key=lambda x: (x.room, x.slots))  # small ones are best filled with machine gangs
        self.slots, self.floors, self.room = [(0,) * len(sizes)], [(0,) * len(sizes)], [0]  # of racks i, i + 1, ...
        for x in reversed(self.racks):
            self.slots.insert(0, tuple(a + b for a, b in zip(self.slots[0], x.slots)))
            self.floors.insert(0, tuple(a + x.room // s for a, s in zip(self.floors[0], sizes)))
            self.room.insert(0, self.room[0] + x.room)

    def share(self, local: Counts, racked: Counts, steps: int) -> Shares | bool | None:
        """Racks of `local` machine gangs that leave room for `racked` rack gangs, both counted by size.

        False proves that there are none, None means out of `steps`.
        """
        taken = sum(s * k for s, k in zip(self.sizes, local))
        least = min((s for s, k in zip(self.sizes, local) if k), default=0)
        gpus, levels, need = 0, [], []
        for j, (s, k) in enumerate(zip(self.sizes, racked)):
            gpus += s * k
            if k and s > least > 0:
                levels.append(j)
                need.append(gpus // s)
            elif k and gpus // s + taken // s > self.floors[0][j]:
                return False
        if gpus + taken > self.room[0]:
            return False
        return _Query(racks=self, levels=levels, left=steps).descend(0, local, tuple(need))


@dataclass(slots=True, kw_only=True)
class _Query:
    """One question: `levels` are the sizes of which slots must be left, `left` are steps."""

    racks: Racks
    levels: list[int]
    left: int
    failed: set[tuple[int, Counts, Counts]] = field(default_factory=set)

    def descend(self, i: int, local: Counts, need: Counts) -> Shares | bool | None:
        """Share `local` among racks i, i + 1, ... so that they keep `need` slots of each level."""
        if self._short(i, local, need):
            return False
        if not any(local):
            return []
        state = (i, local, need)
        if state in self.failed:
            return False
        self.left -= 1
        if self.left < 0:
            return None
        rack, sizes = self.racks.racks[i], self.racks.sizes
        for share, rest in self._shares(rack, local):
            short = tuple(max(0, n - rest // sizes[j]) for n, j in zip(need, self.levels))
            found = self.descend(i + 1, tuple(a - b for a, b in zip(local, share)), short)
            if isinstance(found, list):
                return [(rack.name, share), *found]
            if found is None:
                return None
        self.failed.add(state)
        return False

    def _short(self, i: int, local: Counts, need: Counts) -> bool:
        """True if sums over the racks from i on prove that no way exists."""
        sizes, gpus, upto = self.racks.sizes, 0, []
        for s, k, slots in zip(sizes, local, self.racks.slots[i]):
            gpus += s * k
            if gpus > slots * s:
                return True
            upto.append(gpus)
        floors, room = self.racks.floors[i], self.racks.room[i]
        return gpus > room or any(
            n * sizes[j] + upto[j] > floors[j] * sizes[j] or n * sizes[j] + gpus > room
            for n, j in zip(need, self.levels)
        )

    def _shares(self, rack: Rack, local: Counts) -> Iterator[tuple[Counts, int]]:
        """Gangs that the rack may take of `local`, most first, and its GPUs left, without choices that waste GPUs."""
        sizes = self.racks.sizes
        last = max(j for j, k in enumerate(local) if k)
        large = [sizes[j] for j in self.levels]

        def choose(j: int, taken: Counts, used: int) -> Iterator[tuple[Counts, int]]:
            s = sizes[j]
            most = min(local[j], rack.slots[j] - used // s, (rack.room - used) // s)
            if j < last:
                for k in range(most, -1, -1):
                    yield from choose(j + 1, (*taken, k), used + k * s)
                return
            before = None
            for k in range(most, -1, -1):
                rest = rack.room - used - k * s
                now = [rest // z for z in large]
                if now != before:
                    yield (*taken, k) + (0,) * (len(sizes) - j - 1), rest
                before = now

        return choose(0, (), 0)
