"""Successive halving (Themis §4.3.2): when a rung's jobs have all reached its end, the best of them continue.

Hyperband is several such brackets, which trade many jobs tried briefly for few tried long.
"""

from __future__ import annotations

import math
from itertools import pairwise

import numpy as np

from themis.errors import InputError
from themis.model.units import Bool, Float
from themis.model.workload import Halving, Hyperband, Rung


def survivors(loss: Float, keep: int) -> Bool:
    """Jobs that continue: the ``keep`` lowest losses, ties to the earlier job; NaN loses against everything."""
    order = np.lexsort((np.arange(len(loss)), np.where(np.isnan(loss), np.inf, loss)))
    out = np.zeros(len(loss), dtype=bool)
    out[order[:keep]] = True
    return out


def hyperband(max_steps: float, eta: int = 3, min_steps: float = 1.0) -> Hyperband:
    """The brackets of Hyperband (Li et al., JMLR'18, algorithm 1); the app needs as many jobs as their first rungs.

        n_s = ceil((s_max + 1) / (s + 1) * eta^s)     rung i: floor(n_s / eta^i) jobs up to step R / eta^(s - i)

    for s = s_max, ..., 0 with s_max = floor(log_eta(R / min_steps)).

    Differs from the source: a job that survives continues from its checkpoint, so a rung's steps are those beyond the
    last one's; the brackets run side by side.

    Parameters
    ----------
    max_steps : R, steps of a job that survives every rung. ``min_steps`` : the fewest steps of any job.
    eta : one in this many of a rung's jobs survives; at least 2.
    """
    if eta < 2 or not 0 < min_steps <= max_steps < float("inf"):
        raise InputError(
            f"hyperband of {min_steps} to {max_steps} steps with eta {eta}; expected 0 < min_steps <= max_steps and eta >= 2."
        )
    # A ratio that is a power of eta must not fall short of it by a rounding error.
    most = math.floor(math.log(max_steps / min_steps, eta) + 1e-9)
    return Hyperband(brackets=tuple(_bracket(max_steps, eta, s, most) for s in range(most, -1, -1)))


def _bracket(max_steps: float, eta: int, s: int, most: int) -> Halving:
    jobs = -(-(most + 1) * eta**s // (s + 1))
    upto = [max_steps / eta ** (s - i) for i in range(s + 1)]
    more = [upto[0], *(b - a for a, b in pairwise(upto))]
    return Halving(rungs=tuple(Rung(jobs=jobs // eta**i, steps=steps) for i, steps in enumerate(more)))
