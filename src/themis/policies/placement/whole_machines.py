"""Placement of one job's gang each, all together: wide gangs on whole machines, small ones packed, as few moves as possible.

Gangs of 1, 2, 4 ... GPUs and of whole machines always fit where their sum does, if small gangs may move; so do gangs of three on
machines of four where their halves do (``optimize.gang_sizes``): the largest first, each on the fullest machine that has room.
Gangs that fit no machine any more are spread over what is free; what does not fit at all is left out.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np

from themis.model.units import Bool, Int, Locality
from themis.policies.placement.packing import Counts, narrowest


class Wanted(NamedTuple):
    """A gang: job, GPUs, their type; ``split``: on two machines though one would hold it, as its GPUs but one, and one."""

    job: int
    gpus: int
    kind: int
    split: bool = False


def pack(
    wanted: Sequence[Wanted],
    stands: Mapping[int, Counts],
    free: Int,
    machine_type: Int,
    machine_rack: Int,
    machine_gpus: Int,
) -> dict[int, Counts]:
    """Counts per machine of each job: gangs stay where they are, unless another is spread over machines for that.

    Parameters
    ----------
    stands : where gangs are whose leases end now, by job.
    free : [N], GPUs on offer. ``machine_type``, ``machine_rack``, ``machine_gpus`` : [N].
    """
    cluster = free, machine_type, machine_rack, machine_gpus
    out = _pack(wanted, stands, *cluster)
    if not (spread := _spread(out, wanted, machine_gpus)):
        return out
    whole = {w.job: stands[w.job] for w in wanted if w.job in stands and w.gpus >= machine_gpus[stands[w.job][0][0]]}
    anew = _pack(wanted, whole, *cluster)
    return anew if _spread(anew, wanted, machine_gpus) < spread else out


def _spread(placed: Mapping[int, Counts], wanted: Sequence[Wanted], machine_gpus: Int) -> int:
    """Gangs smaller than a machine that are on more than they are meant to be, or nowhere."""
    machine = int(machine_gpus.max(initial=0))
    return sum(w.gpus < machine and not 1 <= len(placed.get(w.job, ())) <= 1 + w.split for w in wanted)


def _pack(
    wanted: Sequence[Wanted],
    stands: Mapping[int, Counts],
    free: Int,
    machine_type: Int,
    machine_rack: Int,
    machine_gpus: Int,
) -> dict[int, Counts]:
    """``pack``, in one go."""
    room, out = free.copy(), dict[int, Counts]()
    largest = {int(k): int(machine_gpus[machine_type == k].max()) for k in np.unique(machine_type)}
    by_size = sorted(wanted, key=lambda w: -w.gpus)
    wide = [w for w in by_size if w.gpus >= largest.get(w.kind, 0)]
    small = [w for w in by_size if w.gpus < largest.get(w.kind, 0)]
    same = {w.job: stands[w.job] for w in wanted if w.job in stands and sum(c for _, c in stands[w.job]) == w.gpus}

    def stay(gangs: Sequence[Wanted]) -> None:
        for job, *_ in gangs:
            if job in same and all(room[n] >= c for n, c in same[job]):
                out[job] = same[job]
                _take(room, same[job])

    used = np.zeros(len(room), dtype=np.int64)  # GPUs of small gangs that may stay, by machine
    for job, *_ in small:
        _take(used, same.get(job, ()), -1)
    stay(wide)
    for job, gpus, kind, _ in wide:
        if job not in out:
            own = {n for n, _ in stands.get(job, ())}
            whole = np.flatnonzero((machine_type == kind) & (room == largest[kind]))
            order = sorted(whole.tolist(), key=lambda n: (n not in own, used[n], n))
            count, rest = divmod(gpus, largest[kind])
            if len(order) >= count and not rest:
                out[job] = tuple((n, largest[kind]) for n in sorted(order[:count]))
                _take(room, out[job])
    stay(small)
    ones = {out[job][0][0]: job for job, gpus, *_ in small if gpus == 1 and job in out}
    parts = [
        w._replace(gpus=gpus) for w in small if w.job not in out for gpus in ((w.gpus - 1, 1) if w.split else (w.gpus,))
    ]
    parts = sorted(parts, key=lambda w: -w.gpus) + [w for w in wide if w.job not in out]
    for job, gpus, kind, split in parts:
        usable = machine_type == kind
        found = narrowest(room, machine_rack, gpus, usable)
        if found is not None and len(found[0]) > 1 and gpus < largest[kind]:
            found = _with_one_moved(room, usable, gpus, ones, out, machine_rack) or found
        if found is not None:
            _take(room, found[0])
            out[job] = _joined(out.get(job, ()), found[0])
            if gpus == 1 and not split:
                ones[found[0][0][0]] = job
    for w in small:
        if w.split and w.job in out and sum(c for _, c in out[w.job]) < w.gpus:
            _take(room, out.pop(w.job), -1)
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


def _joined(some: Counts, more: Counts) -> Counts:
    """Counts of both together."""
    return tuple(sorted((Counter(dict(some)) + Counter(dict(more))).items())) if some else more


def _take(room: Int, counts: Counts, sign: int = 1) -> None:
    for n, c in counts:
        room[n] -= sign * c


def counts_of(gpus: Sequence[int], gpu_machine: Int) -> Counts:
    """((machine, GPUs), ...) of exact GPUs."""
    return tuple(sorted(Counter(gpu_machine[list(gpus)].tolist()).items()))
