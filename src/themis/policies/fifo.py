"""First in, first out: apps in order of arrival, each its whole demand, on leases (Themis §6.1's setting).

A gang that does not fit lets later apps pass, and leases are then aligned so that it fits soon.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from themis.model.answers import Solved
from themis.model.snapshot import Snapshot
from themis.policies.baseline import Baseline
from themis.policies.placement.ordered import in_order


@dataclass(frozen=True, slots=True, kw_only=True)
class Fifo(Baseline):
    """Earliest arrival first."""

    def grant(self, snapshot: Snapshot) -> Solved:
        """Deal the offer to the apps in order of arrival, then id."""
        return in_order(snapshot, np.lexsort((snapshot.app_id, snapshot.app_arrival)), self.placement)
