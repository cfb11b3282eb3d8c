"""Leases that end early, for answers that grant leases (rounds have a length of their own).

A running lease is never cut. Leases that are granted or renewed while apps wait for their first GPUs are shorter, so that every app
has had a turn after one full lease; and where no GPU is left, lease ends are spread, so that a newcomer need not wait until all
end together (``policies.placement.lease_lengths``). Renewals restart nothing, so an app that keeps its GPUs notices neither.
Decision 21. Leases that end together at each step (``step_s``, decision 99) need no such rule.

Differs from the paper: Themis has one fixed length (§6.4), as with ``shortest_lease_s`` and ``step_s`` 0.
"""

from __future__ import annotations

from collections import Counter

from themis.core.offer import FreeGpus
from themis.core.placed_gangs import Placed
from themis.core.state import EPS, State
from themis.model.units import Seconds
from themis.policies.placement.lease_lengths import spread


def paced(s: State, placed: list[Placed], offer: FreeGpus, shortest: Seconds) -> list[Placed]:
    """The same gangs with leases that end early where apps wait, or where no GPU is left for the next app.

    ``shortest`` : seconds; 0: they stay as they are.
    An app's first lease is of ``shortest`` seconds while others wait for theirs. No running lease is touched, so neither is a
    gang that grows.
    """
    if not shortest:
        return placed
    t, until = s.jobs.one, s.jobs.until
    new = [i for i, p in enumerate(placed) if not (p.job in s.job_gpus and t.until[p.job] > offer.by + EPS)]
    if not new:
        return placed
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
        return placed
    out, apps = list(placed), s.apps.one
    if waiting:
        for i in new:
            a = t.app[out[i].job]
            if not apps.attained[a] and not apps.leased[a]:
                out[i] = out[i]._replace(until=min(out[i].until, s.now + shortest))
    # Others may first get gangs of the apps with the most GPUs.
    new.sort(key=lambda i: (-got[t.app[out[i].job]] / apps.weight[t.app[out[i].job]], len(out[i].gpus), out[i].job))
    lease_s = max(out[i].until for i in new) - s.now
    gap = max(s.settings.tick_s, min(shortest, lease_s / (len(running) + len(new))))
    for i, end in zip(new, spread([out[i].until for i in new], running, s.now, lease_s, gap)):
        out[i] = out[i]._replace(until=end)
    return out
