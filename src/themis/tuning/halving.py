"""Successive halving (Themis §4.3.2): when a rung's jobs have all reached its end, the best of them go on."""

from __future__ import annotations

import numpy as np

from themis.model.units import Bool, Float


def survivors(loss: Float, keep: int) -> Bool:
    """Which jobs go on: the ``keep`` lowest losses, ties to the earlier job; NaN loses against everything."""
    order = np.lexsort((np.arange(len(loss)), np.where(np.isnan(loss), np.inf, loss)))
    out = np.zeros(len(loss), dtype=bool)
    out[order[:keep]] = True
    return out
