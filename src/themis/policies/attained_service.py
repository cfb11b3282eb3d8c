"""Attained service by the unit of fairness, for policies that serve the least served first (decision 0041).

Between apps it is what the app itself received, as Tiresias has it. Between users or groups it is what the app's user received
beyond its share since the first of its present apps came. For two users who come together this is the same order as by what
they received. A user who comes later starts level with the others, as in fair queueing by virtual time: from zero, it would have
the cluster until it had received as much as others did in their whole time here.
"""

from __future__ import annotations

import numpy as np

from themis.model.snapshot import Snapshot
from themis.model.units import Float, Int


def unit_service(s: Snapshot) -> Float:
    """[A], GPU-seconds, per weight relative to the mean user's, by which the app's user is ahead of its share; 0 between apps.

    Below 0: the user received less than its share.
    """
    if s.unit_received is None or s.unit_entitled is None or s.unit_rate is None or not s.apps:
        return np.zeros(s.apps)
    _, first = np.unique(s.app_user, return_index=True)
    relative = s.unit_rate / max(float(s.unit_rate[first].mean()), 1e-300)
    out: Float = (s.unit_received - s.unit_entitled) / np.maximum(relative, 1e-9)
    return out


def units(s: Snapshot) -> Int:
    """[A], the number of each app's unit of fairness: of its user, or between apps its own."""
    if s.unit_received is None:
        return np.arange(s.apps)
    _, unit = np.unique(s.app_user, return_inverse=True)
    return unit
