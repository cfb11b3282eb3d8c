"""Leases that are renewed at once (``Leases.renew``, decision 132) against renewals one by one."""

from __future__ import annotations

import numpy as np

from themis.core.tables import LeaseEnds


def test_ends_moved_together_are_those_moved_one_by_one() -> None:
    """Random ends, of which some are over; the new end is among those that there are, or not."""
    for seed in range(200):
        rng = np.random.default_rng(seed)
        together, each = LeaseEnds(), LeaseEnds()
        until = dict(enumerate((rng.integers(1, 8, size=12) * 0.5).tolist()))
        for j, end in until.items():
            together.put(j, end)
            each.put(j, end)
        by, new = float(rng.integers(0, 5)), float(rng.integers(5, 9)) * 0.5
        if not (over := each.by(by)):
            continue  # nothing is renewed then
        together.move(over, by, new)
        for j in over:
            each.drop(j, until[j])
            each.put(j, new)
        assert together.jobs == each.jobs
        assert together.times == each.times
