"""Decisions that leave nothing to decide: every job has all GPUs that it can use, so each lease that ends is renewed.

The policy is not asked, and no snapshot is made. Its cadence says whether that is its own answer (``Cadence.renews``);
decision 93.
"""

from __future__ import annotations

import numpy as np

from themis.core.offer import FreeGpus
from themis.core.state import EPS, State
from themis.model.answers import UNCONTESTED, GpuGrant, Proof, Solved
from themis.model.snapshot import Kind
from themis.model.units import NONE, Int
from themis.policies.api import Cadence, Renews

RENEWED = f"{UNCONTESTED}: every lease that ends is renewed"
"""``Proof.method`` of these answers."""

_BAG = int(Kind.BAG)


def renewals(s: State, pace: Cadence, offer: FreeGpus) -> Solved | None:
    """Renewals of all leases that end, if no policy could do anything else; else None.

    That is so where every job that is present runs with its largest gang, gangs whose leases end are each on GPUs of one machine
    that stay in service, and a GPU is left free, so that no newcomer waits for one.
    """
    if not pace.renews or not (pace.spare and s.settings.renew_idle) or s.quotas:
        return None
    if pace.renews is not Renews.ALWAYS and np.count_nonzero(s.type_gpus) > 1:
        return None
    t, rows = s.jobs, offer.present
    if (t.gpus[rows] < t.gpus_max[rows]).any() or _stale(s, rows):
        return None
    until, app, free, leased = t.one.until, t.one.app, offer.free.data, s.leased_to
    ending = sorted(j for j in s.job_gpus if until[j] <= offer.by + EPS)
    if pace.renews is Renews.SINGLE_ON_ONE_TYPE and any(s.apps.one.jobs[app[j]] > 1 for j in ending):
        return None
    machines, sizes, left = [], [], int(np.count_nonzero(offer.free))
    for j in ending:
        gpus, beside = s.job_gpus[j], 1 - s.job_seat[j]
        n = s.machine_of[gpus[0]]
        for g in gpus:
            if not free[g] or s.machine_of[g] != n or leased[g, beside] != NONE:
                return None
        machines.append(n)
        sizes.append(len(gpus))
        left -= len(gpus)
    if not left:
        return None
    count = len(ending)
    return Solved(
        answer=GpuGrant(
            app=np.array([app[j] for j in ending], dtype=np.int64),
            gang=np.arange(count),
            machine=np.array(machines, dtype=np.int64),
            gpus=np.array(sizes, dtype=np.int64),
            until=np.full(count, s.now + s.settings.lease_s),
            extend=np.full(count, NONE),
        ),
        proof=Proof(method=RENEWED),
    )


def _stale(s: State, rows: Int) -> bool:
    """True if a snapshot would record the forecast finish of a job set."""
    apps, a = s.apps, s.jobs.app[rows]
    return bool(((apps.stale[a] == 1) & (apps.kind[a] == _BAG)).any())
