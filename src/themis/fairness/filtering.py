"""Round-by-round filtering (Themis §3.3.2): only the apps farthest from fairness take part in a round's auction."""

from __future__ import annotations

import math

import numpy as np

from themis.model.units import Float, Int


def worst_first(rho: Float, arrival: Float, app_id: Int) -> Int:
    """Positions in order of falling rho; ties go to the earlier arrival, then to the lower id."""
    out: Int = np.lexsort((app_id, arrival, -rho))
    return out


def bidder_count(apps: int, f: float) -> int:
    """How many of the worst apps bid: max(1, ceil((1 - f) n)).

    The paper's pseudocode 1 takes the top 1 - f; "a fraction f" in its §4.2.2 is a slip.
    """
    return max(1, math.ceil((1 - f) * apps - 1e-9))
