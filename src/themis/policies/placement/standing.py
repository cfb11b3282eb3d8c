"""Whether each gang whose lease ends stays where it is, and no other gets GPUs: found from a few columns, before any gang is placed."""

from __future__ import annotations

import numpy as np

from themis.model.snapshot import Snapshot
from themis.model.units import Float, Int, Locality, Seconds

_NONE = np.iinfo(np.int64).max
_ROUNDING = 1e-9


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
    here = _slowdown_here(s, rows, slowdown)
    if here is None:
        return False
    if not len(line):
        return True
    # An app's gangs that stand come before those that wait; of a gang that waits counts the best place that there is.
    old = s.now - s.job_since[rows] >= young_s
    app, place = s.job_app[rows], np.zeros(s.apps)
    np.maximum.at(place, app, np.where(old, here, 0.0))
    young = np.bincount(app, weights=~old, minlength=s.apps) > 0
    there = rest[stands[rest] > 0]
    keys = np.append(place[there], np.where(young, -1.0, slowdown.min(axis=1))[line])
    both, late = np.append(there, line), np.arange(len(there) + len(line)) >= len(there)
    order = np.lexsort((late, both, rank[both], keys))
    given = np.cumsum(np.append(stands[there], np.zeros(len(line)))[order])
    return bool((least[both[order]] > left - given)[late[order]].all())


def _slowdown_here(s: Snapshot, rows: Int, slowdown: Float) -> Float | None:
    """[len(rows)], slowdown of these gangs, whose leases end; None if one may move or grow, or has not all its GPUs to itself.

    ``slowdown`` : [A, localities], by which places are compared.
    """
    held, app = s.job_expiring[rows], s.job_app[rows]
    if (s.job_gpus_min[rows] != held).any() or (s.job_gpus_max[rows] != held).any():
        return None
    if (s.gpu_job[s.gpu_free, 1] >= 0).any():
        return None
    g = (s.gpu_free & (s.gpu_job[:, 0] >= 0)).nonzero()[0]
    job, machine = s.gpu_job[g, 0], s.gpu_machine[g]
    at = np.searchsorted(s.job_id[rows], job)
    if (np.append(s.job_id[rows], -1)[at] != job).any() or (np.bincount(at, minlength=len(rows)) != held).any():
        return None
    span = np.full(len(rows), int(Locality.MACHINE))
    for where, wider in ((machine, Locality.RACK), (s.machine_rack[machine], Locality.CROSS_RACK)):
        one = np.zeros(len(rows), dtype=np.int64)
        one[at] = where
        span[at[one[at] != where]] = wider
    here = slowdown[app, span]
    racks = np.bincount(s.machine_rack, weights=s.machine_gpus)
    best = np.where(held <= racks.max(), int(Locality.RACK), int(Locality.CROSS_RACK))
    best[held <= s.machine_gpus.max()] = int(Locality.MACHINE)
    start = s.restart_s + s.speeds.checkpoint_s[s.job_config[s.job_ptr[:-1]]][app]
    moves = (s.lease_s - start) * here * (1.0 + _ROUNDING) > s.lease_s * slowdown[app, best]
    return None if (moves & (span > Locality.MACHINE)).any() else here
