"""Reasons that keep a runnable job from GPUs: quotas, its app's maximum number of concurrent jobs, and backoff.

Policies know none of these. Jobs that may not run now are left out of the snapshot, and the maximum GPUs of the others are
cut to what their quotas leave. Of the placement only what the quotas allow is leased, renewals first. GPUs left over that
way are offered again at the same instant; a user whose quota is full is left out, so the repetition ends.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from themis.core.placed_gangs import Placed
from themis.core.state import EPS, State
from themis.core.tables import Status
from themis.model.units import Int

NO_LIMIT = np.iinfo(np.int64).max
REASONS = ("", "backoff", "at_once", "quota")
"""Why a job is left out, by code; "" if it is not."""
BACKOFF, AT_ONCE, QUOTA = 1, 2, 3


def blocked(state: State, job_id: Int, *, expired: bool = False) -> tuple[Int, Int]:
    """Reasons why jobs may not run now, and GPU limits of the others.

    Parameters
    ----------
    job_id : jobs that wait or run, rising.
    expired : expired leases count as held until the next decision; users are shown it this way.

    Returns
    -------
    Codes of ``REASONS``, [J], 0 for every job that runs; maximum number of GPUs of each job in addition to those
    that it holds beyond this instant, [J], ``NO_LIMIT`` without a quota.
    """
    t = state.jobs
    waiting = t.status[job_id] == Status.WAITING
    why = np.where(waiting & (t.ready[job_id] > state.now + EPS), BACKOFF, 0)
    for a in sorted(state.at_once):
        rows = np.flatnonzero(t.app[job_id] == a)
        candidates = rows[(why[rows] == 0) & waiting[rows]]
        room = max(state.at_once[a] - int((~waiting[rows]).sum()), 0)
        # As the app's own scheduler would choose: its own order, the most work left, then the lower number.
        order = np.lexsort((job_id[candidates], -state.work_left(job_id[candidates]), t.order[job_id[candidates]]))
        why[candidates[order[room:]]] = AT_ONCE
    room_of = rooms(state, expired=expired)[state.apps.user[t.app[job_id]]]
    why[(why == 0) & waiting & (t.gpus_min[job_id] > room_of)] = QUOTA
    return why, room_of


def rooms(state: State, *, expired: bool = False) -> Int:
    """GPUs that each user may take in addition to those held beyond this instant, [users]; ``NO_LIMIT`` without a quota."""
    held = _held(state, expired)
    out = np.full(max(len(state.users), 1), NO_LIMIT)
    for members, gpus in state.quotas.values():
        ids = [state.users[name] for name in members if name in state.users]
        out[ids] = np.minimum(out[ids], max(gpus - int(held[ids].sum()), 0))
    return out


def _held(state: State, expired: bool = False) -> Int:
    t = state.jobs
    held = np.zeros(max(len(state.users), 1), dtype=np.int64)
    on = np.fromiter(state.job_gpus, dtype=np.int64, count=len(state.job_gpus))
    on = on[expired | (t.until[on] > state.now + EPS)]
    np.add.at(held, state.apps.user[t.app[on]], t.gpus[on])
    return held


def within_quotas(state: State, placed: Sequence[Placed]) -> list[Placed]:
    """Gangs that the quotas allow, taken in order."""
    if not state.quotas:
        return list(placed)
    held, t = _held(state), state.jobs
    quotas = [
        (frozenset(state.users[name] for name in members if name in state.users), gpus)
        for members, gpus in state.quotas.values()
    ]
    out: list[Placed] = []
    for gang in placed:
        user = int(state.apps.user[t.app[gang.job]])
        goes_on = t.status[gang.job] == Status.RUNNING and t.until[gang.job] > state.now + EPS
        more = len(gang.gpus) - (int(t.gpus[gang.job]) if goes_on else 0)
        if all(user not in members or int(held[list(members)].sum()) + more <= gpus for members, gpus in quotas):
            held[user] += more
            out.append(gang)
    return out
