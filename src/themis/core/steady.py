"""Rounds of gangs on one GPU type that keep every deficit bounded wherever the shares pack: decision 22.

Shares pack when they are an average of sets of gangs that fit together. Let ``d`` be the deficits and ``x`` the shares, in
rounds. A round that serves a set S of gangs with ``sum_S d / x >= sum d`` (deficits above 0) lets ``V = sum d^2 / x`` grow by at
most a constant, so after t rounds each deficit is at most ``sqrt(x t B + ...)`` and the part received of each share tends to 1.
If the shares pack, the set that fits and has the largest ``sum_S d / x`` meets the condition, for no average exceeds its largest
member. So where that set does not meet it, the shares are proven not to pack, and the order of ``Rounds.priority`` stays.

Source: the drift argument of max-weight scheduling (Tassiulas and Ephremides 1992) and of Blackwell's approachability.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from themis.core.rounds import Rounds
from themis.model.units import NONE, Float, Int

BEHIND = 4.0
"""Rounds behind a share from which the condition is checked; below, the order of deficits does better."""

Picked = list[tuple[int, int]]


def steadied(rounds: Rounds, picked: Picked, free: Sequence[int]) -> Picked:
    """The gangs of this round: those picked, or a set that meets the condition where these do not.

    Changes nothing unless gangs of different sizes share one GPU type, all of it is free, and one is far behind.

    Parameters
    ----------
    picked : (combination, type) by precedence. ``free`` : [K], GPUs of each type, all of them.
    """
    answer = rounds.answer
    assert answer is not None
    if not rounds.packs or rounds.size or answer.due is not None:
        return picked
    x, gpus = answer.x, answer.gpus
    behind = (rounds.entitled - rounds.received) / answer.round_s
    used = np.flatnonzero((x > 0).any(axis=0))
    if len(used) != 1 or behind.max(initial=0.0) <= BEHIND or (answer.combos[:, 1] != NONE).any():
        return picked
    k = int(used[0])
    deficit = np.where(x[:, k] > 0, np.maximum(behind[:, k], 0.0), 0.0)
    worth = np.divide(deficit, x[:, k], out=np.zeros(len(x)), where=x[:, k] > 0)
    needed = float(deficit.sum()) * (1.0 - 1e-9)
    if float(worth[[c for c, _ in picked]].sum()) >= needed:
        return picked
    best = heaviest(worth, gpus, free[k])
    if float(worth[best].sum()) < needed:
        rounds.packs = False
        return picked
    left, there = free[k] - int(gpus[best].sum()), set(best)
    for c, _ in picked:
        if c not in there and gpus[c] <= left:
            best.append(c)
            left -= int(gpus[c])
    return [(c, k) for c in best]


def heaviest(value: Float, gpus: Int, room: int) -> list[int]:
    """The gangs of greatest total value that fit into ``room`` GPUs together; exact.

    Parameters
    ----------
    value : [R], >= 0; gangs of value 0 are left out. ``gpus`` : [R], >= 1.
    """
    rows: list[int] = []
    for size in np.unique(gpus[(value > 0) & (gpus <= room)]).tolist():
        alike = np.flatnonzero((value > 0) & (gpus == size))
        rows += alike[np.argsort(-value[alike], kind="stable")][: room // size].tolist()
    best, taken = np.zeros(room + 1), np.zeros((len(rows), room + 1), dtype=bool)
    for i, row in enumerate(rows):
        size = int(gpus[row])
        other = best[: room + 1 - size] + value[row]
        taken[i, size:] = other > best[size:]
        best[size:] = np.maximum(best[size:], other)
    out, left = [], room
    for i in range(len(rows) - 1, -1, -1):
        if taken[i, left]:
            out.append(rows[i])
            left -= int(gpus[rows[i]])
    return out[::-1]
