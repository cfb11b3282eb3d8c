"""How long leases are while apps wait, for answers that grant leases (rounds have a length of their own).

A running lease is never cut. Leases that are granted or renewed while apps wait for their first GPUs are shorter, so that every app
has had a turn after one full lease; and where no GPU is left, lease ends are spread, so that a newcomer need not wait until all
end together. Renewals restart nothing, so an app that keeps its GPUs notices neither. Decision 21.

Differs from the paper: Themis has one fixed length (§6.4). That is the simulator's default (``shortest_lease_s`` 0).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

import numpy as np

from themis.core.gangs import Placed
from themis.core.offer import FreeGpus
from themis.core.state import EPS, State
from themis.model.units import Int, Seconds


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


def paced(s: State, placed: Sequence[Placed], offer: FreeGpus) -> list[Placed]:
    """The same gangs with leases that end early where apps wait, or where no GPU is left for the next app.

    An app's first lease is of ``shortest_lease_s`` while others wait for theirs. No running lease is touched, so neither is a
    gang that grows.
    """
    t, shortest, until = s.jobs.one, s.settings.shortest_lease_s, s.jobs.until
    new = [i for i, p in enumerate(placed) if not (p.job in s.job_gpus and t.until[p.job] > offer.by + EPS)]
    if not new:
        return list(placed)
    here = {p.job for p in placed}
    running = [float(until[j]) for j in s.job_gpus if j not in here and until[j] > offer.by + EPS]
    got = Counter[int]()
    for p in placed:
        got[t.app[p.job]] += len(p.gpus)
    going = {t.app[j] for j in s.job_gpus if until[j] > offer.by + EPS} | got.keys()
    waiting = {t.app[j] for j in offer.waiting().tolist() if j not in here} - going
    open_ = offer.free.copy()
    for p in placed:
        open_[list(p.gpus)] = False
    if open_.any() and not waiting:
        return list(placed)
    out, apps = list(placed), s.apps.one
    if waiting:
        for i in new:
            a = t.app[out[i].job]
            if not apps.attained[a] and not apps.leased[a]:
                out[i] = out[i]._replace(until=min(out[i].until, s.now + shortest))
    # Gangs of the apps that have most are the first that others may get.
    new.sort(key=lambda i: (-got[t.app[out[i].job]] / apps.weight[t.app[out[i].job]], len(out[i].gpus), out[i].job))
    lease_s = max(out[i].until for i in new) - s.now
    gap = max(s.settings.tick_s, min(shortest, lease_s / (len(running) + len(new))))
    for i, end in zip(new, spread([out[i].until for i in new], running, s.now, lease_s, gap)):
        out[i] = out[i]._replace(until=end)
    return out


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
            ends.append(out[at])  # it ends early already
            at += 1
        if any(slot - gap_s + EPS < end <= slot + EPS for end in ends):
            continue
        if at == len(out):
            break
        out[at] = slot
        at += 1
    return out
