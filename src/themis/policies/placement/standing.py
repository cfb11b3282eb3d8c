"""Whether each gang whose lease ends stays and no other gets GPUs: found from a few columns, before any gang is placed."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from themis.model.snapshot import Snapshot
from themis.model.units import Bool, Float, Int, Locality, Seconds

_NONE = np.iinfo(np.int64).max
_ROUNDING = 1e-9


class _Gangs(NamedTuple):
    """Gangs whose leases end, rigid, each with all its GPUs on offer and to itself.

    Attributes
    ----------
    app : [S], rows. ``here`` : [S], slowdown on its machines. ``best`` : [S], on the best place that there may be for it, if
        that is worth a move; infinite where it is not. ``across`` : [S], over several racks.
    gang, machine : of each of their GPUs, the gang and the machine.
    """

    app: Int
    here: Float
    best: Float
    across: Bool
    gang: Int
    machine: Int


def all_stay(s: Snapshot, head: Int, rest: Int, rank: Float, young_s: Seconds) -> bool:
    """True if ``ordered.fill`` of the head and then ``best_first`` of the rest would renew all that stands, and nothing else.

    It is enough that each smallest gang that waits is larger than what is left when its turn may come at the earliest: GPUs are
    counted, wherever they are. False where that is open, where gangs may grow, or where a better place may be worth a move.

    Parameters
    ----------
    head, rest : all rows of apps in order. ``rank``, ``young_s`` : as of ``best_first``.
    """
    ends = s.job_expiring > 0
    waits = (s.job_held == 0) & ~ends
    least = np.minimum.reduceat(np.where(waits, s.job_gpus_min, _NONE), s.job_ptr[:-1])
    stands = np.bincount(s.job_app, weights=s.job_expiring, minlength=s.apps)
    left = float(s.free.sum())
    at = left - np.cumsum(stands[head])
    if (least[head] <= at).any():
        return False
    left = float(at[-1]) if len(at) else left
    line = rest[least[rest] <= left]
    rows = ends.nonzero()[0]
    slowdown = s.speeds.slowdown[s.job_config[s.job_ptr[:-1]]]
    gangs = _gangs(s, rows, slowdown)
    moves = gangs is not None and np.isfinite(gangs.best).any()
    if gangs is None or not (len(line) or moves):
        return gangs is not None
    # An app's gangs that stand come before those that wait; of a gang that waits counts the best place that there is.
    old = s.now - s.job_since[rows] >= young_s
    place = np.zeros(s.apps)
    np.maximum.at(place, gangs.app, np.where(old, gangs.here, 0.0))
    if moves and _moves(s, gangs, head, rank, place, old):
        return False
    young = np.bincount(gangs.app, weights=~old, minlength=s.apps) > 0
    there = rest[stands[rest] > 0]
    keys = np.append(place[there], np.where(young, -1.0, slowdown.min(axis=1))[line])
    both, late = np.append(there, line), np.arange(len(there) + len(line)) >= len(there)
    order = np.lexsort((late, both, rank[both], keys))
    given = np.cumsum(np.append(stands[there], np.zeros(len(line)))[order])
    return bool((least[both[order]] > left - given)[late[order]].all())


def _gangs(s: Snapshot, rows: Int, slowdown: Float) -> _Gangs | None:
    """The gangs of these jobs; None if one may grow, or has not all its GPUs to itself.

    ``slowdown`` : [A, localities], by which places are compared.
    """
    held, app = s.job_expiring[rows], s.job_app[rows]
    if (s.job_gpus_min[rows] != held).any() or (s.job_gpus_max[rows] != held).any():
        return None
    if (s.gpu_job[s.gpu_free, 1] >= 0).any():
        return None
    g = (s.gpu_free & (s.gpu_job[:, 0] >= 0)).nonzero()[0]
    job, machine = s.gpu_job[g, 0], s.gpu_machine[g]
    gang = np.searchsorted(s.job_id[rows], job)
    if (np.append(s.job_id[rows], -1)[gang] != job).any() or (np.bincount(gang, minlength=len(rows)) != held).any():
        return None
    span = np.full(len(rows), int(Locality.MACHINE))
    for where, wider in ((machine, Locality.RACK), (s.machine_rack[machine], Locality.CROSS_RACK)):
        one = np.zeros(len(rows), dtype=np.int64)
        one[gang] = where
        span[gang[one[gang] != where]] = wider
    here, best = slowdown[app, span], np.full(len(rows), np.inf)
    if (wide := (span > Locality.MACHINE).nonzero()[0]).size:
        most = np.bincount(s.machine_rack, weights=s.machine_gpus).max()
        narrow = np.where(held[wide] <= most, int(Locality.RACK), int(Locality.CROSS_RACK))
        narrow[held[wide] <= s.machine_gpus.max()] = int(Locality.MACHINE)
        there = slowdown[app[wide], narrow]
        start = s.restart_s + s.speeds.checkpoint_s[s.job_config[s.job_ptr[app[wide]]]]
        worth = (s.lease_s - start) * here[wide] * (1.0 + _ROUNDING) > s.lease_s * there
        best[wide[worth]] = there[worth]
    return _Gangs(app, here, best, span == Locality.CROSS_RACK, gang, machine)


def _moves(s: Snapshot, gangs: _Gangs, head: Int, rank: Float, place: Float, old: Bool) -> bool:
    """True if one of the gangs may find a better place when its turn may come at the earliest.

    ``place`` : [A], by which an app comes among the rest. ``old`` : [S], gangs that are not young.
    """
    first = np.full(s.apps, len(head))
    first[head] = np.arange(len(head))
    app = gangs.app
    for i in np.isfinite(gangs.best).nonzero()[0].tolist():
        a, by = app[i], gangs.best[i] if old[i] else 0.0
        before = first[app] < first[a]
        if first[a] == len(head):
            equal = (place[app] == by) & ((rank[app] < rank[a]) | ((rank[app] == rank[a]) & (app < a)))
            before |= (place[app] < by) | equal
        room = s.free - np.bincount(gangs.machine[before[gangs.gang]], minlength=len(s.free))
        gpus = np.count_nonzero(gangs.gang == i)
        if room.max() >= gpus or (gangs.across[i] and np.bincount(s.machine_rack, weights=room).max() >= gpus):
            return True
    return False
