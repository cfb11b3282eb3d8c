"""Placement of one job's gang each, all together: wide gangs on whole machines, small ones packed, as few moves as possible.

Gangs of 1, 2, 4 ... GPUs and of whole machines always fit where their sum does, if small gangs may move; so do gangs of three on
machines of four where their halves do (``optimize.gang_sizes``): the largest first, each on the fullest machine that has room.
Gangs that fit no machine any more are spread over what is free; what does not fit at all is left out.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence

import numpy as np

from themis.model.units import Bool, Int, Locality
from themis.policies.placement.packing import Counts, narrowest


def pack(
    wanted: Sequence[tuple[int, int, int]],
    stands: Mapping[int, Counts],
    free: Int,
    machine_type: Int,
    machine_rack: Int,
    machine_gpus: Int,
) -> dict[int, Counts]:
    """Counts per machine of each job: gangs stay where they are, unless another is spread over machines for that.

    Parameters
    ----------
    wanted : (job, GPUs, GPU type). ``stands`` : where gangs are whose leases end now, by job.
    free : [N], GPUs on offer. ``machine_type``, ``machine_rack``, ``machine_gpus`` : [N].
    """
    cluster = free, machine_type, machine_rack, machine_gpus
    out = _pack(wanted, stands, *cluster)
    size = {job: gpus for job, gpus, _ in wanted}
    if not (spread := _spread(out, size, machine_gpus)):
        return out
    whole = {job: counts for job, counts in stands.items() if size.get(job, 0) >= machine_gpus[counts[0][0]]}
    anew = _pack(wanted, whole, *cluster)
    return anew if _spread(anew, size, machine_gpus) < spread else out


def _spread(placed: Mapping[int, Counts], size: Mapping[int, int], machine_gpus: Int) -> int:
    """Gangs smaller than a machine that are on several, or nowhere."""
    machine = int(machine_gpus.max(initial=0))
    return sum(size[job] < machine and len(placed.get(job, ())) != 1 for job in size)


def _pack(
    wanted: Sequence[tuple[int, int, int]],
    stands: Mapping[int, Counts],
    free: Int,
    machine_type: Int,
    machine_rack: Int,
    machine_gpus: Int,
) -> dict[int, Counts]:
    """``pack``, in one go."""
    room, out = free.copy(), dict[int, Counts]()
    largest = {int(k): int(machine_gpus[machine_type == k].max()) for k in np.unique(machine_type)}
    wide = sorted((w for w in wanted if w[1] >= largest.get(w[2], 0)), key=lambda w: -w[1])
    small = sorted((w for w in wanted if w[1] < largest.get(w[2], 0)), key=lambda w: -w[1])
    same = {job: stands[job] for job, gpus, _ in wanted if job in stands and sum(c for _, c in stands[job]) == gpus}
    used = _standing(small, same, len(room))  # GPUs of small gangs that may stay, by machine
    for job, _, _ in wide:
        if job in same and all(room[n] >= c for n, c in same[job]):
            out[job] = same[job]
            _take(room, same[job])
    for job, gpus, kind in wide:
        if job not in out:
            own = {n for n, _ in stands.get(job, ())}
            whole = np.flatnonzero((machine_type == kind) & (room == largest[kind]))
            order = sorted(whole.tolist(), key=lambda n: (n not in own, used[n], n))
            count, rest = divmod(gpus, largest[kind])
            if len(order) >= count and not rest:
                out[job] = tuple((n, largest[kind]) for n in sorted(order[:count]))
                _take(room, out[job])
    for job, _, _ in small:
        if job in same and all(room[n] >= c for n, c in same[job]):
            out[job] = same[job]
            _take(room, same[job])
    moving = [w for w in small if w[0] not in out]
    ones = {out[job][0][0]: job for job, gpus, _ in small if gpus == 1 and job in out}
    for job, gpus, kind in [*moving, *(w for w in wide if w[0] not in out)]:
        usable = machine_type == kind
        found = narrowest(room, machine_rack, gpus, usable)
        if found is not None and len(found[0]) > 1 and gpus < largest[kind]:
            found = _with_one_moved(room, usable, gpus, ones, out, machine_rack) or found
        if found is not None:
            out[job] = found[0]
            _take(room, found[0])
            if gpus == 1:
                ones[found[0][0][0]] = job
    return out


def _with_one_moved(
    room: Int, usable: Bool, gpus: int, ones: dict[int, int], out: dict[int, Counts], rack: Int
) -> tuple[Counts, Locality] | None:
    """Move a gang of one GPU to another machine if that makes room on one; it restarts, which is cheaper than a spread gang."""
    for n in np.flatnonzero(usable & (room == gpus - 1)).tolist():
        other = ones.get(n)
        if other is None or out.get(other) != ((n, 1),):
            continue
        elsewhere = np.flatnonzero(usable & (room > 0) & (np.arange(len(room)) != n))
        if len(elsewhere):
            to = int(elsewhere[room[elsewhere].argmin()])
            out[other] = ((to, 1),)
            room[to] -= 1
            room[n] += 1
            del ones[n]
            ones[to] = other
            return narrowest(room, rack, gpus, usable)
    return None


def _standing(small: Sequence[tuple[int, int, int]], same: Mapping[int, Counts], machines: int) -> Int:
    used = np.zeros(machines, dtype=np.int64)
    for job, _, _ in small:
        for n, c in same.get(job, ()):
            used[n] += c
    return used


def _take(room: Int, counts: Counts) -> None:
    for n, c in counts:
        room[n] -= c


def counts_of(gpus: Sequence[int], gpu_machine: Int) -> Counts:
    """((machine, GPUs), ...) of exact GPUs."""
    return tuple(sorted(Counter(gpu_machine[list(gpus)].tolist()).items()))
