"""Lengths of leases while apps wait, and their ends, so that a newcomer need not wait for all of them: decision 21.

Pure functions; the core applies them where the settings say so (``core.contention``, ``core.take_snapshot``).
"""

from __future__ import annotations

from bisect import bisect_right, insort
from collections.abc import Sequence

import numpy as np

from themis.model.snapshot import Snapshot
from themis.model.units import Int, Seconds
from themis.policies.placement.grants import least_waiting

EPS = 1e-6
"""Seconds by which instants may differ and still be one."""


def lease_length(lease_s: Seconds, shortest_s: Seconds, waiting: int, served: int) -> Seconds:
    """Length of a lease given now: lease_s x served / (served + waiting), at least shortest_s.

    A full rotation then takes one ``lease_s``: (served + waiting) / served turns of this length each.

    Parameters
    ----------
    lease_s : seconds, without contention. ``shortest_s`` : seconds, at most ``lease_s``; 0: leases have one length.
    waiting : apps that hold nothing and get nothing now. ``served`` : apps that hold GPUs or can get some now.
    """
    if not shortest_s or not waiting:
        return lease_s
    return max(lease_s * served / (served + waiting), shortest_s)


def unserved(least: Int, held: Int, free: int) -> tuple[int, int]:
    """(waiting, served) for ``lease_length``: as many apps as fit by count get GPUs, the smallest gangs first.

    Parameters
    ----------
    least : [A], GPUs of each app's smallest gang that waits, 0 if none does. ``held`` : [A], GPUs held beyond this instant.
    free : GPUs on offer.
    """
    without = np.sort(least[(held == 0) & (least > 0)])
    fit = int((without.cumsum() <= free).sum())
    return len(without) - fit, int((held > 0).sum()) + fit


def shortened(s: Snapshot, shortest_s: Seconds) -> Seconds:
    """``lease_length`` for what this snapshot has waiting and on offer."""
    waiting, served = unserved(least_waiting(s), s.app_held, int(s.free.sum())) if s.apps else (0, 0)
    return lease_length(s.full_lease_s, shortest_s, waiting, served)


def spread(
    until: Sequence[Seconds], running: Sequence[Seconds], now: Seconds, lease_s: Seconds, gap_s: Seconds
) -> list[Seconds]:
    """Ends of new leases, brought forward so that some lease ends in every ``gap_s`` seconds, as far as there are enough.

    Parameters
    ----------
    until : ends as the policy decided, in the order in which leases are to end early. ``running`` : ends of the other leases.
    lease_s : length of a lease now. ``gap_s`` : seconds between ends, more than 0.

    Returns
    -------
    Ends, none later than in ``until`` and none earlier than ``gap_s`` from now.
    """
    out, ends = list(until), sorted(running)
    slots = int((lease_s - EPS) // gap_s)
    at = 0
    for i in range(1, slots + 1):
        slot = now + i * gap_s
        while at < len(out) and out[at] <= slot + EPS:
            insort(ends, out[at])  # it ends early already
            at += 1
        first = bisect_right(ends, slot - gap_s + EPS)
        if first < len(ends) and ends[first] <= slot + EPS:
            continue
        if at == len(out):
            break
        out[at] = slot
        at += 1
    return out
