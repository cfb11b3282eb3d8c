"""Can these rows sit together? An exact answer by search, for gangs within machines and within racks.

Per GPU type: gangs within a machine need that many free GPUs there; gangs within a rack, and rows anchored to a rack,
need the rack's free GPUs in sum, since their GPUs may be split over its machines; wide rows need only the total.
Leaves out which GPUs a bidder held before: see `seating`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from themis.auction.market import IN_RACK, LOCAL, ON_MACHINE, RACKED, Market


@dataclass(frozen=True, slots=True, kw_only=True)
class Gang:
    """One gang to be placed: its row of the market, its size, and whether it may spread within a rack."""

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


def floor_after_anchors(market: Market, rows: Sequence[int], kind: int) -> Floor | None:
    """Free GPUs of type `kind` once anchored rows have theirs; None when those overlap."""
    offer = market.offer
    free, rack = offer.free.tolist(), offer.machine_rack.tolist()
    types = offer.machine_type.tolist()
    machines = [n for n, t in enumerate(types) if t == kind and free[n]]
    room = market.rack_room[:, kind].tolist()
    for r in rows:
        if market.kind[r] == ON_MACHINE:
            n, gpus = int(market.place[r]), int(market.gpus[r])
            free[n] -= gpus
            room[rack[n]] -= gpus
            if free[n] < 0:
                return None
        elif market.kind[r] == IN_RACK:
            room[market.place[r]] -= int(market.gpus[r])
    if room and min(room) < 0:
        return None
    return Floor(machines=machines, free=free, rack=rack, room=room)


def gangs_of(market: Market, rows: Sequence[int]) -> list[Gang]:
    """Gangs of kinds LOCAL and RACKED among `rows`, largest first, machine gangs before rack gangs."""
    found = []
    sizes = market.sizes.tolist()
    for r in rows:
        kind = market.kind[r]
        if kind in (LOCAL, RACKED):
            for size, count in zip(sizes, market.gangs[r].tolist()):
                found += [Gang(row=r, size=size, racked=bool(kind == RACKED))] * count
    return sorted(found, key=lambda g: (-g.size, g.racked))


def fits(market: Market, rows: Sequence[int], steps: int) -> bool | None:
    """Whether `rows` can be packed; None when `steps` of search did not tell.

    Rows must keep `market.have` in sum; then only places remain to be found.
    """
    for kind in {int(market.type[r]) for r in rows}:
        mine = [r for r in rows if market.type[r] == kind]
        floor = floor_after_anchors(market, mine, kind)
        if floor is None:
            return False
        gangs = gangs_of(market, mine)
        if first_fit(floor, gangs) is not None:
            continue
        found = place(floor, gangs, steps)
        if not isinstance(found, list):
            return found
    return True


def first_fit(floor: Floor, gangs: Sequence[Gang]) -> list[int] | None:
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


def place(floor: Floor, gangs: Sequence[Gang], steps: int) -> list[int] | bool | None:
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
        g, tried, unsure = gangs[i], set(), False
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
            unsure = unsure or rest is None
        if unsure:
            return None
        failed.add(state)
        return False

    return descend(0)
