"""Assignment of rounds to jobs with given numbers of rounds: gangs side by side, no round too full (Shockwave §6, §7).

Each column is filled in turn: first by jobs that would otherwise not get all of their rounds; then by rank, jobs that
ran before going first if that is wanted (fewer restarts). For jobs of one GPU nothing is ever lost by that
(McNaughton's rule). Gangs may not pack: then large gangs go first, if need be from the first round on. Rounds that
still find no place are reported.

Columns of several rounds are filled as one: jobs in a row, one behind the other, as they would be if gangs always packed.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from themis.model.units import Bool, Float, Int
from themis.optimize.rounds.window import Window


@dataclass(frozen=True, slots=True, kw_only=True)
class Schedule:
    """Schedule of jobs in a window of rounds.

    Attributes
    ----------
    run : Int[J, C], rounds of each job in each column. ``until`` : Float[J, C], rounds from the column's begin to the last.
    loss : by how much the objective of these rounds is below that of the choices asked for.
    """

    run: Int
    until: Float
    loss: float


def ordered(
    window: Window, n: Int, *, running: Bool, rank: Float, stay: bool, by_rank: int, accept: float = 0.0
) -> Schedule:
    """Lay out the rounds of these choices, [J].

    Parameters
    ----------
    running : [J], who ran just before the window. rank : [J], the lower one goes first.
    stay : running jobs continue, whatever the ranks; otherwise running decides between equal ranks alone.
    by_rank : columns, from the first on, in which rank goes before what packs well; the others are planned again before
        they come.
    accept : what the objective may lose before large gangs go first.
    """
    tried: list[Schedule] = []
    for upto in (len(window.lengths), by_rank, 0):
        run, until = _laid_out(window, n, running, rank, stay, upto)
        loss = window.objective(n) - window.objective(window.reached(run.sum(axis=1)))
        tried.append(Schedule(run=run, until=until, loss=loss))
        if tried[-1].loss <= accept:
            return tried[-1]
    return min(tried, key=lambda schedule: schedule.loss)


def _laid_out(w: Window, n: Int, running: Bool, rank: Float, stay: bool, by_rank: int) -> tuple[Int, Float]:
    run, until = np.zeros((w.jobs, len(w.lengths)), dtype=np.int64), np.zeros((w.jobs, len(w.lengths)))
    deficit, before = w.takes(n), running
    # The fewest rounds that hold them all: a job that needs every one of these must begin immediately.
    last = max(-(-int(w.gpus @ deficit) // max(w.capacity, 1)), int(deficit.max(initial=0)))
    got = np.zeros_like(deficit)
    for c, length in enumerate(w.lengths.tolist()):
        wants = np.flatnonzero(deficit > 0)
        if not len(wants) and length > 1:
            break
        last -= length
        may_wait = deficit[wants] <= last
        size = np.zeros(len(wants)) if c < by_rank else -w.gpus[wants]
        keys = (rank[wants], ~before[wants]) if stay else (~before[wants], rank[wants])
        order = wants[np.lexsort((*keys, size, may_wait))]
        if length > 1:
            _in_a_row(run[:, c], until[:, c], order, deficit, w, length)
        else:
            room = _side_by_side(run[:, c], order, w.gpus, w.capacity)
            if room > 0:
                # Where a gang does not fit, a job that has all its rounds may benefit from one more.
                _fill(w, run[:, c], (deficit <= run[:, c]) & (got < w.useful), got, room)
            until[:, c] = run[:, c]
        deficit = np.maximum(deficit - run[:, c], 0)
        before = run[:, c] > 0
        got += run[:, c]
    return run, until


def evenly(w: Window, n: Int) -> Int:
    """[J, T], rounds of these choices, [J], by size and not by rank: large gangs first, each in the emptiest single rounds.

    Gangs of one size all find their rounds so, if they can (Gale and Ryser).
    """
    run, room, takes = np.zeros((w.jobs, w.rounds), dtype=np.int64), np.full(w.rounds, w.capacity), w.takes(n)
    for j in np.lexsort((-takes, -w.gpus)).tolist():
        emptiest = np.argsort(-room, kind="stable")[: takes[j]]
        emptiest = emptiest[room[emptiest] >= w.gpus[j]]
        run[j, emptiest] = 1
        room[emptiest] -= w.gpus[j]
    return run


def in_time(w: Window, sets: Bool, times: Int, *, running: Bool, rank: Float, stay: bool) -> Int:
    """[J, T], one after the other, ``times`` [P] rounds of each of the ``sets`` [P, J] of gangs; others get what these leave idle.

    The next round is that in which most GPUs continue, of equals that with the lower ranks; the other way round without ``stay``.
    """
    times, before, got = times.copy(), running, np.zeros(w.jobs, dtype=np.int64)
    run = np.zeros((w.jobs, w.rounds), dtype=np.int64)
    gangs = sets * w.gpus
    early = gangs @ (w.jobs - np.unique(rank, return_inverse=True)[1])
    for column in run.T:
        stays = gangs @ before
        following = int(np.lexsort((*((early, stays) if stay else (stays, early)), times > 0))[-1])
        if times[following] > 0:
            times[following] -= 1
            column[sets[following] & (got < w.useful)] = 1
        _fill(w, column, got < w.useful, got, w.capacity - int(w.gpus @ column))
        before = column > 0
        got += column
    return run


def _fill(w: Window, column: Int, may: Bool, got: Int, room: int) -> None:
    """Give GPUs of a round that are idle to the jobs that gain most by it, of those that may have it and have not."""
    more = np.flatnonzero(may & (column == 0))
    _side_by_side(column, more[np.argsort(-_gain(w, more, got[more]), kind="stable")], w.gpus, room)


def _side_by_side(column: Int, order: Int, gpus: Int, room: int) -> int:
    for j in order.tolist():
        if gpus[j] <= room:
            column[j] = 1
            room -= int(gpus[j])
            if room == 0:
                break
    return room


def _in_a_row(column: Int, until: Float, order: Int, deficit: Int, w: Window, length: int) -> None:
    used, most = 0, w.capacity * length
    for j in order.tolist():
        rounds = min(int(deficit[j]), length, (most - used) // int(w.gpus[j]))
        if rounds > 0:
            used += rounds * int(w.gpus[j])
            column[j], until[j] = rounds, max(rounds, used / w.capacity)
            if used == most:
                break


def _gain(w: Window, jobs: Int, n: Int) -> Float:
    """Increase of these jobs' value, per GPU, by one more round than ``n``."""
    gain: Float = (w.value[jobs, n + 1] - w.value[jobs, n]) / w.gpus[jobs]
    return gain
