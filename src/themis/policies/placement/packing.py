"""Placement of a gang: counts per machine first, exact GPUs second.

Gangs are put on the narrowest locality that has room, by best fit, so that large free blocks stay whole. Every policy
places with these functions, so that none of them loses for want of a packer.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from themis.model.snapshot import Snapshot
from themis.model.units import NONE, Bool, Int, Locality

Counts = tuple[tuple[int, int], ...]
"""((machine, GPUs), ...) of one gang."""


def narrowest(free: Int, machine_rack: Int, gpus: int, usable: Bool) -> tuple[Counts, Locality] | None:
    """Best place for a gang of ``gpus`` GPUs, or None if the usable machines have too few free.

    Parameters
    ----------
    free : Int[N], free GPUs per machine. usable : Bool[N], machines of a type that the gang may use.

    Returns
    -------
    Counts per machine and the locality they span: one machine if any fits (the fullest that does), else one rack
    (the fullest that does, on as few machines as possible), else the emptiest machines anywhere.
    """
    fits = (usable & (free >= gpus)).nonzero()[0]
    if len(fits):
        return ((int(fits[free[fits].argmin()]), gpus),), Locality.MACHINE
    room = np.where(usable, free, 0)
    if room.sum() < gpus:
        return None
    by_rack = np.bincount(machine_rack, weights=room)
    racks = np.flatnonzero(by_rack >= gpus)
    if len(racks):
        rack = racks[np.argmin(by_rack[racks])]
        return _largest_first(np.where(machine_rack == rack, room, 0), gpus), Locality.RACK
    return _largest_first(room, gpus), Locality.CROSS_RACK


def fullest(free: Sequence[int], machines: Sequence[int], gpus: int) -> int:
    """The machine with the fewest free GPUs that fits a gang, the first of equals, or NONE: ``narrowest`` for few machines."""
    best, least = NONE, 0
    for n in machines:
        room = free[n]
        if room >= gpus and (best == NONE or room < least):
            best, least = n, room
    return best


def narrowest_of_types(
    free: Int, machine_rack: Int, machine_type: Int, gpus: int, types: Sequence[int]
) -> tuple[Counts, Locality] | None:
    """``narrowest`` over GPU types in order of preference; a gang never mixes types."""
    best: tuple[Counts, Locality] | None = None
    for k in types:
        found = narrowest(free, machine_rack, gpus, machine_type == k)
        if found is not None and (best is None or found[1] < best[1]):
            best = found
    return best


def most_gpus(s: Snapshot) -> Int:
    """The largest gang of each job that the machines in service can hold: it never mixes types."""
    of_type = np.bincount(s.machine_type, weights=s.machine_gpus, minlength=len(s.gpu_types)).astype(np.int64)
    out: Int = np.maximum(np.minimum(s.job_gpus_max, (s.job_allowed * of_type).max(axis=1)), s.job_gpus_min)
    return out


def _largest_first(room: Int, gpus: int) -> Counts:
    counts = []
    for n in np.argsort(-room, kind="stable"):
        take = min(gpus, int(room[n]))
        if take:
            counts.append((int(n), take))
            gpus -= take
        if not gpus:
            break
    return tuple(counts)


def pick_gpus(free_gpus: Sequence[int], slot_of: Sequence[int], gpus: int) -> list[int]:
    """Exact GPUs on one machine: the smallest slot that holds them all, else whole slots, fullest first.

    Parameters
    ----------
    free_gpus : ids of the machine's free GPUs, rising. slot_of : [G].
    """
    by_slot: dict[int, list[int]] = {}
    for g in free_gpus:
        slot = slot_of[g]
        if slot in by_slot:
            by_slot[slot].append(g)
        else:
            by_slot[slot] = [g]
    whole = [ids for ids in by_slot.values() if len(ids) >= gpus]
    if whole:
        return min(whole, key=len)[:gpus]
    chosen: list[int] = []
    for ids in sorted(by_slot.values(), key=lambda ids: (-len(ids), ids[0])):
        chosen += ids[: gpus - len(chosen)]
    return chosen
