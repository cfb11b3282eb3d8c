"""Exact test of whether rows fit together, for gangs within machines and within racks.

Per GPU type: gangs within a machine need that many free GPUs there; gangs within a rack, and rows anchored to a rack,
need the rack's free GPUs in sum, since their GPUs may be split over its machines; wide rows need only the total.
Leaves out which GPUs a bidder held before: see `assignment`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise

import numpy as np

from themis.optimize.programs import Ints
from themis.optimize.winners.auction_problem import IN_RACK, ON_MACHINE, RACKED, WinnerProblem
from themis.optimize.winners.racks import Counts, Rack, Racks, Shares

Anchors = tuple[tuple[int, int, int], ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class PackingGang:
    """One gang to be placed: its row of the problem, its size, and whether it may spread within a rack."""

    row: int
    size: int
    racked: bool


@dataclass(slots=True, kw_only=True)
class Floor:
    """Free GPUs of one type while gangs are placed.

    Attributes
    ----------
    machines
        Machines of the type with free GPUs.
    free
        Free GPUs, by machine of the offer.
    rack
        Rack, by machine of the offer.
    room
        GPUs of each rack not yet promised, by rack.
    """

    machines: list[int]
    free: list[int]
    rack: list[int]
    room: list[int]


class Packer:
    """Packing questions about one problem; answers are cached, because searches repeat equal questions.

    `chain` tells that every gang size divides the next larger one; then answers are quick.
    """

    def __init__(self, problem: WinnerProblem, steps: int) -> None:
        self.steps = steps
        self._certain = problem.certain
        self.kind, self.place = problem.kind.tolist(), problem.place.tolist()
        self.gpus, self.type = problem.gpus.tolist(), problem.type.tolist()
        self._free, self._rack = problem.offer.free.tolist(), problem.offer.machine_rack.tolist()
        self._room: list[list[int]] = problem.rack_room.T.tolist()
        kinds = problem.offer.machine_type.tolist()
        self._machines = [[n for n, k in enumerate(kinds) if k == t and self._free[n]] for t in range(len(self._room))]
        sizes = problem.sizes.tolist()[::-1]
        self.chain = not any(a % b for a, b in pairwise(sizes))
        self._sizes = tuple(sizes)
        some = np.flatnonzero(problem.gangs.any(1))
        self._wants: dict[int, list[int]] = dict(zip(some.tolist(), problem.gangs[some, ::-1].tolist()))
        racked = (problem.kind == RACKED)[:, None]
        falling = problem.gangs[:, ::-1]
        self._gangs = np.concatenate([np.where(racked, 0, falling), np.where(racked, falling, 0)], 1)
        self.anchored = bool((problem.place >= 0).any())
        """True if some row must lie on one given machine or in one given rack."""
        self._racks: dict[tuple[int, Anchors], Racks] = {}
        self._known: dict[tuple[object, ...], bool | None] = {}

    def floor(self, rows: Sequence[int], kind: int) -> Floor | None:
        """Free GPUs of type `kind` once anchored rows have theirs; None when those overlap."""
        free, rack, room = list(self._free), self._rack, list(self._room[kind])
        for r in rows:
            if self.kind[r] == ON_MACHINE:
                n = self.place[r]
                free[n] -= self.gpus[r]
                room[rack[n]] -= self.gpus[r]
                if free[n] < 0:
                    return None
            elif self.kind[r] == IN_RACK:
                room[self.place[r]] -= self.gpus[r]
        if min(room) < 0:
            return None
        return Floor(machines=self._machines[kind], free=free, rack=rack, room=room)

    def gangs(self, rows: Sequence[int]) -> list[PackingGang]:
        """Gangs of kinds LOCAL and RACKED among `rows`, largest first, machine gangs before rack gangs."""
        found: list[PackingGang] = []
        for r in rows:
            racked = self.kind[r] == RACKED
            for size, count in zip(self._sizes, self._wants.get(r, ())):
                if count:
                    found += [PackingGang(row=r, size=size, racked=racked)] * count
        return largest_first(found)

    def packs(self, rows: Sequence[int]) -> bool:
        """True if `rows`, which keep `WinnerProblem.have`, are known to fit together."""
        return self._certain or not rows or self.fits(rows) is True

    @cached_property
    def counts(self) -> Ints:
        """Terms of each row in the sums of ``packs_counted``, [M, types * (1 + 2 sizes)]: itself and its gangs, by type."""
        types = np.array(self.type)
        per_row = np.concatenate([np.ones((len(types), 1), dtype=np.int64), self._gangs], axis=1)
        return np.concatenate([np.where((types == k)[:, None], per_row, 0) for k in range(len(self._room))], axis=1)

    def packs_counted(self, sums: tuple[int, ...]) -> bool:
        """``packs`` of rows without anchors, by the sums of their ``counts``: who wins the gangs does not matter."""
        if self._certain:
            return True
        if sums not in self._known:
            zs, width = len(self._sizes), 1 + 2 * len(self._sizes)
            parts = [(k, sums[k * width : (k + 1) * width]) for k in range(len(self._room))]
            self._known[sums] = all(
                self._known_fits([], k, (), (part[1 : 1 + zs], part[1 + zs :])) for k, part in parts if part[0]
            )
        return self._known[sums] is True

    def fits(self, rows: Sequence[int]) -> bool | None:
        """True if `rows` can be packed; None when the search ran out of steps.

        Rows must keep `WinnerProblem.have` in sum; then only places remain to be found.
        """
        for kind in {self.type[r] for r in rows}:
            mine = [r for r in rows if self.type[r] == kind]
            fits = self._known_fits(mine, kind, self._anchors(mine), self._counts(mine))
            if not fits:
                return fits
        return True

    def _known_fits(
        self, rows: Sequence[int], kind: int, anchors: Anchors, counts: tuple[Counts, Counts]
    ) -> bool | None:
        """``_fits``, asked once: of rows without anchors only the counts matter."""
        key = (kind, anchors, *counts)
        if key not in self._known:
            self._known[key] = self._fits(rows, kind, anchors, counts)
        return self._known[key]

    def _fits(self, rows: Sequence[int], kind: int, anchors: Anchors, counts: tuple[Counts, Counts]) -> bool | None:
        floor = None
        if not self.chain or (kind, anchors) not in self._racks:
            floor = self.floor(rows, kind)
            if floor is None:
                return False
        if self.chain:
            found = self._shares(floor, kind, anchors, counts)
            if found is not None:
                return found is not False
        floor = floor or self.floor(rows, kind)
        places = self._places(floor, self._of(counts), kind, anchors, counts) if floor else False
        return True if isinstance(places, list) else places

    def _of(self, counts: tuple[Counts, Counts]) -> list[PackingGang]:
        """Gangs by their counts, of all apps together, in the order of ``gangs``."""
        found: list[PackingGang] = []
        for racked, of_size in zip((False, True), counts):
            for size, count in zip(self._sizes, of_size):
                found += [PackingGang(row=-1, size=size, racked=racked)] * count
        return largest_first(found)

    def _shares(
        self, floor: Floor | None, kind: int, anchors: Anchors, counts: tuple[Counts, Counts]
    ) -> Shares | bool | None:
        """Split of these gang counts among the racks; `floor` may be missing if it was passed before."""
        racks = self._racks.get((kind, anchors))
        if racks is None:
            assert floor is not None
            racks = self._racks[kind, anchors] = racks_of(floor, self._sizes)
        return racks.share(*counts, self.steps)

    def places(self, floor: Floor, rows: Sequence[int], kind: int) -> list[int] | bool | None:
        """Machine (or rack, for rack gangs) of each of the `gangs` of `rows`, all of type `kind`.

        False proves that there are none, None means out of steps.
        """
        return self._places(floor, self.gangs(rows), kind, self._anchors(rows), self._counts(rows))

    def _places(
        self, floor: Floor, gangs: list[PackingGang], kind: int, anchors: Anchors, counts: tuple[Counts, Counts]
    ) -> list[int] | bool | None:
        found = first_fit(floor, gangs)
        if found is not None:
            return found
        if not self.chain:
            return place(floor, gangs, self.steps)
        shares = self._shares(floor, kind, anchors, counts)
        return spots(floor, gangs, self._sizes, shares) if isinstance(shares, list) else shares

    def _anchors(self, rows: Sequence[int]) -> Anchors:
        if not self.anchored:
            return ()
        return tuple(sorted((self.kind[r], self.place[r], self.gpus[r]) for r in rows if self.place[r] >= 0))

    def _counts(self, rows: Sequence[int]) -> tuple[Counts, Counts]:
        """Machine gangs and rack gangs of `rows`, counted by falling size."""
        sums = self._gangs[rows].sum(0).tolist()
        return tuple(sums[: len(self._sizes)]), tuple(sums[len(self._sizes) :])


def largest_first(gangs: Sequence[PackingGang]) -> list[PackingGang]:
    """The order in which gangs are placed: machine gangs before rack gangs of their size."""
    return sorted(gangs, key=lambda g: (-g.size, g.racked))


def racks_of(floor: Floor, sizes: tuple[int, ...]) -> Racks:
    """The racks of `floor` as `Racks` asks for them."""
    slots = {x: [0] * len(sizes) for x in range(len(floor.room))}
    for n in floor.machines:
        mine = slots[floor.rack[n]]
        for j, s in enumerate(sizes):
            mine[j] += floor.free[n] // s
    racks = [Rack(name=x, slots=tuple(k), room=floor.room[x]) for x, k in slots.items() if floor.room[x] > 0]
    return Racks(racks, sizes)


def spots(floor: Floor, gangs: Sequence[PackingGang], sizes: tuple[int, ...], shares: Shares) -> list[int]:
    """Place of each gang, given the machine gangs of each rack: any fit will do when largest gangs choose first."""
    free, room = list(floor.free), list(floor.room)
    left = {(x, s): k for x, share in shares for s, k in zip(sizes, share)}
    found = [-1] * len(gangs)
    for i, g in enumerate(gangs):
        if not g.racked:
            fitting = (n for n in floor.machines if free[n] >= g.size and left.get((floor.rack[n], g.size)))
            n = found[i] = min(fitting, key=free.__getitem__)
            free[n] -= g.size
            room[floor.rack[n]] -= g.size
            left[floor.rack[n], g.size] -= 1
    for i, g in enumerate(gangs):
        if g.racked:
            x = found[i] = min((x for x in range(len(room)) if room[x] >= g.size), key=room.__getitem__)
            room[x] -= g.size
    return found


def first_fit(floor: Floor, gangs: Sequence[PackingGang]) -> list[int] | None:
    """Machine (or rack, for rack gangs) of each gang by best fit, or None when one finds no place."""
    free, room, rack = list(floor.free), list(floor.room), floor.rack
    places = []
    for g in gangs:
        if g.racked:
            spot = min((x for x in range(len(room)) if room[x] >= g.size), key=room.__getitem__, default=-1)
        else:
            spot = min(
                (n for n in floor.machines if free[n] >= g.size and room[rack[n]] >= g.size),
                key=lambda n: (free[n], room[rack[n]]),
                default=-1,
            )
        if spot < 0:
            return None
        places.append(spot)
        if not g.racked:
            free[spot] -= g.size
        room[spot if g.racked else rack[spot]] -= g.size
    return places


def place(floor: Floor, gangs: Sequence[PackingGang], steps: int) -> list[int] | bool | None:
    """Places as of `first_fit`, by complete search: False proves there are none, None means out of `steps`.

    Machines with the same free GPUs in racks that look the same are tried once; failed states are remembered.
    """
    free, room, rack = list(floor.free), list(floor.room), floor.rack
    racks = sorted({rack[n] for n in floor.machines})
    members = {x: [n for n in floor.machines if rack[n] == x] for x in racks}
    failed: set[tuple[object, ...]] = set()
    left = steps

    def look(x: int) -> tuple[object, ...]:
        return (room[x], tuple(sorted(free[n] for n in members[x])))

    def descend(i: int) -> list[int] | bool | None:
        nonlocal left
        if i == len(gangs):
            return []
        looks = {x: look(x) for x in racks}
        state = (i, tuple(sorted(looks.values())))
        if state in failed:
            return False
        left -= 1
        if left < 0:
            return None
        g, tried = gangs[i], set()
        for spot in racks if g.racked else floor.machines:
            x = spot if g.racked else rack[spot]
            alike = looks[x] if g.racked else (looks[x], free[spot])
            if room[x] < g.size or (not g.racked and free[spot] < g.size) or alike in tried:
                continue
            tried.add(alike)
            room[x] -= g.size
            if not g.racked:
                free[spot] -= g.size
            rest = descend(i + 1)
            room[x] += g.size
            if not g.racked:
                free[spot] += g.size
            if isinstance(rest, list):
                return [spot, *rest]
            if rest is None:
                return None
        failed.add(state)
        return False

    return descend(0)
