"""Work conservation after the policy's answer: GPUs that the answer leaves free do not idle while a job could use them.

First, a gang whose lease has expired keeps its GPUs if no other job gets them, which saves a restart. Then waiting jobs take
what is free, the least served app per unit of weight first, each with its smallest gang. Such leases end at the next step (where
leases end apart: with the first one; rounds: with the round), so that the policy soon decides on these GPUs again. Decision 21.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from copy import copy

import numpy as np

from themis.core.offer import FreeGpus
from themis.core.place import place
from themis.core.placed_gangs import Intent, Placed, WantedGang
from themis.core.state import EPS, State
from themis.model.units import Bool, Float, Int, Seconds, end_of_lease


def left_over(
    state: State, intent: Intent, offer: FreeGpus, placed: Sequence[Placed], *, stale: bool = False
) -> list[Placed]:
    """Renewals, then new gangs, on GPUs of the offer that ``placed`` leaves free.

    Parameters
    ----------
    placed : the intent's gangs that found room.
    stale : the answer is of an earlier instant, and the policy is about to be asked again: gangs stay where they are for one tick,
        and nothing is started.
    """
    taken = {p.job for p in placed}
    over = [j for j in offer.ending if j not in taken]
    if not over and state.jobs.waiting <= taken:
        return []
    open_ = offer.free.copy()
    one = open_.data
    for p in placed:
        for g in p.gpus:
            one[g] = False
    if not open_.any():
        return []
    stale = stale and intent.round_end is None
    stays = [j for j in over if all(one[g] for g in state.job_gpus[j])]
    out = []
    if stays:
        end = state.now + state.settings.tick_s if stale else _end(state, intent, offer, placed, 0.0)
        for j in stays:
            gpus = state.job_gpus[j]
            for g in gpus:
                one[g] = False
            out.append(Placed(j, gpus, state.job_seat[j], end))
    if stale or not open_.any():
        return out
    taken.update(stays)
    end = _end(state, intent, offer, placed, state.settings.container_s)
    rest = copy(offer)
    rest.free = open_
    while end > state.now and (gangs := _starts(state, intent, offer, open_, taken)):
        started = place(state, [gang._replace(until=end) for gang in gangs], rest)
        out += started
        if len(started) == len(gangs) or not state.one_machine:
            break
        # Some found no machine with room for all of it; others may have the GPUs.
        for p in started:
            open_[list(p.gpus)] = False
        taken.update(gang.job for gang in gangs)
    return out


def _end(s: State, intent: Intent, offer: FreeGpus, placed: Sequence[Placed], start_s: Seconds) -> Seconds:
    """First end of a lease more than ``start_s`` from now: the next step; of rounds, the round's end, or 0 where that is sooner."""
    if (end := intent.round_end) is not None:
        return end if end - s.now > start_s + EPS or not start_s else 0.0
    if intent.step:
        return end_of_lease(s.now, s.settings.lease_s, intent.step)
    after = s.now + start_s + EPS
    first = min((p.until for p in placed if p.until > after), default=math.inf)
    first = min(first, s.ends.first(max(offer.by + EPS, after)))
    return first if first < math.inf else s.now + s.settings.lease_s


def _starts(s: State, intent: Intent, offer: FreeGpus, open_: Bool, taken: set[int]) -> list[WantedGang]:
    """Gangs for jobs that wait and fit the open GPUs by count, in order of precedence."""
    t = s.jobs
    room = np.bincount(s.machine_type[s.gpu_machine[open_]], minlength=len(s.gpu_types))
    rows = offer.waiting()
    out_of_it = t.gpus_min[rows] > room.max()
    if taken:
        has = np.zeros(t.size, dtype=bool)
        has[list(taken)] = True
        out_of_it |= has[rows]
    if len(intent.declined):
        out_of_it |= np.isin(t.app[rows], intent.declined)
    rows = rows[~out_of_it]
    if not len(rows):
        return []
    may, out = s.allowed(rows), list[WantedGang]()
    fits = (may & (t.gpus_min[rows][:, None] <= room)).any(axis=1)
    rows, may = rows[fits], may[fits]
    order = np.lexsort((rows, -s.work_left(rows), t.order[rows], _served(s, rows)))
    rows, may = rows[order], may[order]
    while len(rows):
        j, gpus = int(rows[0]), int(t.gpus_min[rows[0]])
        speed = s.speeds.scale[t.config[j], np.arange(len(room)), gpus] * (may[0] & (room >= gpus))
        k = int(speed.argmax())
        if speed[k] > 0:
            out.append(WantedGang(app=int(t.app[j]), job=j, gpus=gpus, until=s.now, gpu_type=k))
            room[k] -= gpus
        rows, may = rows[1:], may[1:]
        fits = (may & (t.gpus_min[rows][:, None] <= room)).any(axis=1)
        rows, may = rows[fits], may[fits]
    return sorted(out, key=lambda gang: -gang.gpus)


def _served(s: State, rows: Int) -> Float:
    """GPU-seconds that each job's app has received, per unit of weight."""
    a, apps = s.jobs.app[rows], s.apps
    had = apps.attained[a] + apps.leased[a] * np.maximum(s.now - apps.since[a], 0.0)
    out: Float = had / np.maximum(apps.weight[a], EPS)
    return out
