"""From rounds per job to which rounds: gangs side by side, no round overfilled (Shockwave §6, §7).

Each round is filled in turn: first who would otherwise not get all of its rounds; then who would be late if it waited any
longer; then who ran in the round before (fewer restarts); then by rank. For jobs of one GPU nothing is ever lost by that
(McNaughton's rule). Gangs may not pack: then large gangs go first, if need be from the first round on. Rounds that still
find no place are reported.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from themis.model.units import Bool, Float, Int
from themis.planning.window import Window


@dataclass(frozen=True, slots=True, kw_only=True)
class Schedule:
    """``run`` : Bool[J, T]. ``loss`` : by how much the objective of these rounds is below that of the counts asked for."""

    run: Bool
    loss: float


def ordered(
    window: Window, n: Int, *, running: Bool, rank: Float, slack: Float, by_rank: int, accept: float = 0.0
) -> Schedule:
    """Lay out ``n`` rounds of each job, [J].

    Parameters
    ----------
    running : [J], who ran just before the window. rank : [J], of equal standing the lower one goes first.
    slack : [J], rounds that a job may wait without being late.
    by_rank : rounds, from the first on, in which rank goes before what packs well; the others are planned anew before
        they come.
    accept : what the objective may lose before large gangs go first.
    """
    tried: list[Schedule] = []
    for upto in (window.rounds, by_rank, 0):
        run = _laid_out(window, n, running, rank, slack, upto)
        tried.append(Schedule(run=run, loss=window.objective(n) - window.objective(run.sum(axis=1))))
        if tried[-1].loss <= accept:
            return tried[-1]
    return min(tried, key=lambda schedule: schedule.loss)


def _laid_out(w: Window, n: Int, running: Bool, rank: Float, slack: Float, by_rank: int) -> Bool:
    run = np.zeros((w.jobs, w.rounds), dtype=bool)
    owed, before, got = n.copy(), running, np.zeros_like(n)
    # The fewest rounds that hold them all: whoever needs every one of these must begin at once.
    last = max(-(-int(w.gpus @ n) // max(w.capacity, 1)), int(n.max(initial=0)))
    for r in range(w.rounds):
        wants = np.flatnonzero(owed > 0)
        may_wait = owed[wants] < last - r
        size = np.zeros(len(wants)) if r < by_rank else -w.gpus[wants]
        in_time = r - got[wants] < slack[wants]
        order = wants[np.lexsort((rank[wants], ~before[wants], in_time, size, may_wait))]
        room = _fill(run[:, r], order, w.gpus, w.capacity)
        owed -= run[:, r]
        if room > 0:
            # Where a gang does not fit, whoever has all its rounds may make something of one more.
            more = np.flatnonzero((owed == 0) & (got < w.useful) & ~run[:, r])
            _fill(run[:, r], more[np.argsort(-_gain(w, more, got[more]), kind="stable")], w.gpus, room)
        before = run[:, r]
        got += before
    return run


def _fill(column: Bool, order: Int, gpus: Int, room: int) -> int:
    for j in order.tolist():
        if gpus[j] <= room:
            column[j] = True
            room -= int(gpus[j])
            if room == 0:
                break
    return room


def _gain(w: Window, jobs: Int, n: Int) -> Float:
    """What one more round than ``n`` adds to these jobs' value, per GPU."""
    gain: Float = (w.value[jobs, n + 1] - w.value[jobs, n]) / w.gpus[jobs]
    return gain
