"""Rounds of gangs that keep every deficit bounded wherever the shares pack, on any number of GPU types: decisions 22 and 62.

Shares pack when they are an average of sets of gangs that can run at one time, each job once. Let ``d`` be the deficits and
``x`` the shares of all (combination, type), in rounds, and ``w = 1 / sqrt(x)``. A round that serves a set S with
``sum_S w d >= sum w x d`` lets ``V = sum w d^2`` grow by at most ``B = sum w max(x, 1 - x)^2``, so after t rounds each deficit
is at most ``sqrt((V0 + t B) / w)`` and the part received of each share tends to 1. If the shares pack, some set meets the
condition, for no average exceeds its largest member. So where the heaviest set has less, the shares are proven not to pack, and
the order of ``Rounds.priority`` stays. Shares that hardly do not pack pass that test for long; after ``DOUBTED`` rounds they are
shown to pack or not once and for all.

Where an answer says what its objective needs (``due``), ``x`` are these parts of the shares and ``d`` what is missing of them, 0
where more was received; what it leaves over goes by the order.

Source: the drift argument of max-weight scheduling (Tassiulas and Ephremides 1992) and of Blackwell's approachability.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from themis.core.rounds import Rounds
from themis.model.units import NONE, Float

BEHIND = 6.0
"""Rounds behind a share from which the condition is checked; below, the order of deficits does better."""
DOUBTED = 16
"""Sets served in place of those picked, after which shares that last must be shown to pack."""

Picked = list[tuple[int, int]]


def weights(x: Float) -> Float:
    """[C, K], w: of deficits in V; 0 where the share is."""
    w: Float = np.divide(1.0, np.sqrt(x), out=np.zeros(x.shape), where=x > 0)
    return w


def potential_bound(x: Float, rounds: int) -> float:
    """V0 + t B: maximum of V after t rounds of shares x [C, K] that pack.

    V0 is the maximum of V after a round before which no combination was more than ``BEHIND`` rounds behind.
    """
    w = weights(x)
    return float((w * ((BEHIND + 1.0) ** 2 + rounds * np.maximum(x, 1.0 - x) ** 2)).sum())


def steadied(
    rounds: Rounds, picked: Picked, free: Sequence[int], may: Callable[[int, int], bool] = lambda c, k: True
) -> Picked:
    """The gangs of this round: those picked, or a set that meets the condition where these do not.

    Changes nothing unless all GPUs are free and a gang is far behind with its share, or with what its objective needs of it.

    Parameters
    ----------
    picked : (combination, type) by precedence. ``free`` : [K], GPUs of each type, all of them.
    may : asked of pairs of jobs, whether the pair c may run on type k.
    """
    answer = rounds.answer
    assert answer is not None
    if not rounds.packs:
        return picked
    x, gpus, combos = answer.x, answer.gpus, answer.combos
    lacks = rounds.entitled - rounds.received
    if answer.due is not None:
        x, lacks = x * answer.due[:, None], np.maximum(rounds.due - rounds.received, 0.0)
    if lacks.max(initial=0.0) <= BEHIND * answer.round_s:
        return picked
    behind = lacks / answer.round_s
    worth = weights(x) * behind
    slack = 1e-9 * float((x * np.abs(worth)).sum())
    needed = float((x * worth).sum()) - slack
    total = sum(float(worth[c, k]) for c, k in picked)
    if total >= needed:
        return picked
    value = np.maximum(worth, 0.0)
    owed = float((x * value).sum()) - slack
    for c in np.flatnonzero(combos[:, 1] != NONE).tolist():
        value[c] *= [may(c, k) for k in range(x.shape[1])]
    from themis.optimize.rounds.sets import heaviest_set, packs  # with scipy, which few policies need

    best = heaviest_set(value, gpus, combos, free, owed)
    if best.value < owed:
        # The result is proven, unless the search ended at its limit.
        rounds.packs = False
        return picked
    rounds.replaced += 1
    if rounds.replaced == DOUBTED and packs(x, gpus, combos, free) is False:
        rounds.packs = False
        return picked
    out, left = list(best.chosen), list(free)
    busy = set[int]()
    for c, k in out:
        left[k] -= int(gpus[c])
        busy.update(combos[c].tolist())
    busy.discard(NONE)
    total = best.value
    for c, k in picked:
        there = set(combos[c].tolist()) - {NONE}
        if gpus[c] <= left[k] and busy.isdisjoint(there) and total + float(worth[c, k]) >= needed:
            out.append((c, k))
            left[k] -= int(gpus[c])
            total += float(worth[c, k])
            busy |= there
    return out
