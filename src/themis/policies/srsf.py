"""SRSF as the Themis paper ran it (§6.1): shortest remaining service first, one GPU at a time.

Service is GPUs times time (Tiresias §3.2), and what remains of it is known. It does not change within one instant, so
dealing one GPU at a time to the app with the least gives that app its whole demand before the next has its turn.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from themis.fairness.finish_time import FinishTime
from themis.model.answers import Solved
from themis.model.snapshot import Snapshot
from themis.policies.baseline import Baseline
from themis.policies.placement.ordered import in_order


@dataclass(frozen=True, slots=True, kw_only=True)
class Srsf(Baseline):
    """Fewest reference GPU-seconds left first, the rungs still to come included."""

    def grant(self, snapshot: Snapshot) -> Solved:
        """Deal the offer by work left, ties by arrival and id."""
        s = snapshot
        left = FinishTime(s).current_work + s.future_work.sum(axis=1)
        return in_order(s, np.lexsort((s.app_id, s.app_arrival, left)), self.placement)
