"""Decisions that leave nothing to decide: each lease that ends is renewed, and what waits fits without a choice.

The policy is not asked, and no snapshot is made. Its cadence says whether that is its own answer (``Cadence.renews``,
``Cadence.packs``); decision 93.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from themis.core.offer import FreeGpus
from themis.core.state import State
from themis.core.tables import WAITING
from themis.model.answers import NOTHING_TO_DECIDE, GpuGrant, Renewal, Solved
from themis.model.snapshot import Kind
from themis.model.units import NONE, Int, end_of_lease
from themis.policies.api import Cadence, Renews
from themis.policies.placement.packing import Counts, narrowest_of_types

_BAG = int(Kind.BAG)


def uncontested(s: State, pace: Cadence, offer: FreeGpus) -> Solved | None:
    """Renewals of all leases that end and grants to all jobs that wait, if the policy could do nothing else; else None.

    That is so where every job that is present runs with its largest gang, or waits, is its app's only one and has one number of
    GPUs, of which no two are equal. Gangs whose leases end are each on GPUs of one machine that stay in service, and a GPU is left
    free, so that no newcomer waits for one.
    """
    if not pace.renews or not (pace.spare and s.settings.renew_idle) or s.quotas or len(offer.blocked):
        return None
    if pace.renews is not Renews.ALWAYS and np.count_nonzero(s.type_gpus) > 1:
        return None
    t, rows = s.jobs, offer.present
    if not offer.ending and pace.lone:
        return _lone(s, pace, offer)
    if t.waiting and not pace.packs:
        return None
    short = rows[t.gpus[rows] < t.gpus_max[rows]]
    waiting = _distinct(s, short.tolist()) if pace.packs or not len(short) else None
    if waiting is None or _stale(s, rows):
        return None
    standing = _standing(s, pace, offer)
    if standing is None:
        return None
    free, held = np.count_nonzero(offer.free), sum(gpus for _, gpus in standing)
    if free <= held:
        return None
    offer.stands = True
    new = _new(s, offer, standing, waiting) if waiting else ()
    if new is None or sum(c for _, counts in new for _, c in counts) + held >= free:
        return None
    return _solved(s, pace, new)


def _lone(s: State, pace: Cadence, offer: FreeGpus) -> Solved | None:
    """The answer where no lease ends: no gang, or the only one that fits, if that is rigid and its app's only job; else None.

    Other jobs that wait need more GPUs than are free, and get none in whatever order.
    """
    t = s.jobs
    waiting = offer.present[t.status[offer.present] == WAITING]
    fit = waiting[t.gpus_min[waiting] <= np.count_nonzero(offer.free)].tolist()
    if len(fit) > 1 or _distinct(s, fit) is None or _stale(s, offer.present):
        return None
    if (new := _new(s, offer, (), fit)) is None:
        return None
    offer.stands = True
    return _solved(s, pace, new)


def _solved(s: State, pace: Cadence, new: Sequence[tuple[int, Counts]]) -> Solved:
    until = end_of_lease(s.now, s.settings.lease_s, s.step_s(pace))
    answer = Renewal(until=until, new=_grant(new, until) if new else None)
    return Solved(answer=answer, proof=NOTHING_TO_DECIDE)


def _new(
    s: State, offer: FreeGpus, standing: Sequence[tuple[int, int]], waiting: Sequence[int]
) -> Sequence[tuple[int, Counts]] | None:
    """App and place of each job that waits, if all have room beside the gangs that stand; else None."""
    t, new = s.jobs, list[tuple[int, Counts]]()
    room = np.bincount(s.gpu_machine[offer.free], minlength=len(s.machines))
    for n, gpus in standing:
        room[n] -= gpus
    for j in waiting:
        types: list[int] = np.flatnonzero(s.allowed(np.array([j]))[0]).tolist()
        found = narrowest_of_types(room, s.machine_rack, s.machine_type, t.one.gpus_min[j], types)
        if found is None or (len(found[0]) > 1 and j in s.one_machine):
            return None
        new.append((t.one.app[j], found[0]))
        for n, c in found[0]:
            room[n] -= c
    return new


def _distinct(s: State, jobs: list[int]) -> list[int] | None:
    """The same jobs, largest gangs first, if each waits, is its app's only job, and has another number of GPUs; else None."""
    t, sizes = s.jobs.one, set[int]()
    for j in jobs:
        least = t.gpus_min[j]
        if t.status[j] != WAITING or least != t.gpus_max[j] or least in sizes or s.apps.one.jobs[t.app[j]] > 1:
            return None
        sizes.add(least)
    return sorted(jobs, key=t.gpus_min.__getitem__, reverse=True)


def stands(s: State, offer: FreeGpus) -> bool:
    """True if each gang whose lease ends may keep its GPUs, and has them alone."""
    free, leased = offer.free.data, s.leased_to
    return all(free[g] and leased[1 - s.job_seat[j]][g] == NONE for j in offer.ending for g in s.job_gpus[j])


def _stale(s: State, rows: Int) -> bool:
    """True if a snapshot would record the forecast finish of a job set."""
    apps, a = s.apps, s.jobs.app[rows]
    return bool(((apps.stale[a] == 1) & (apps.kind[a] == _BAG)).any())


def _standing(s: State, pace: Cadence, offer: FreeGpus) -> list[tuple[int, int]] | None:
    """Machine and GPUs of each gang whose lease ends, in order of jobs; None if one of them may have to move."""
    app, free, leased, out = s.jobs.one.app, offer.free.data, s.leased_to, list[tuple[int, int]]()
    for j in offer.ending:
        gpus, beside = s.job_gpus[j], 1 - s.job_seat[j]
        n = s.machine_of[gpus[0]]
        if pace.renews is Renews.SINGLE_ON_ONE_TYPE and s.apps.one.jobs[app[j]] > 1:
            return None
        for g in gpus:
            if not free[g] or s.machine_of[g] != n or leased[beside][g] != NONE:
                return None
        out.append((n, len(gpus)))
    return out


def _grant(gangs: Sequence[tuple[int, Counts]], until: float) -> GpuGrant:
    rows = [(app, i, n, c) for i, (app, counts) in enumerate(gangs) for n, c in counts]
    app, gang, machine, gpus = np.array(rows, dtype=np.int64).T.copy()
    return GpuGrant(
        app=app, gang=gang, machine=machine, gpus=gpus, until=np.full(len(rows), until), extend=np.full(len(rows), NONE)
    )
