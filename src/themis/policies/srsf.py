"""SRSF as the Themis paper ran it (§6.1): shortest remaining service first, one GPU at a time.

Service is GPUs times time (Tiresias §3.2), and what remains of it is known. It does not change within one instant, so
dealing one GPU at a time to the app with the least gives that app its whole demand before the next has its turn.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from themis.fairness.finish_time import FinishTime
from themis.model.answers import Solved
from themis.model.snapshot import Snapshot
from themis.placement.ordered import in_order
from themis.policies.api import ON_FREE_GPUS, Level, Pace, Workbench


@dataclass(frozen=True, slots=True, kw_only=True)
class Srsf:
    """Fewest reference GPU-seconds left first, the rungs still to come included."""

    claims: ClassVar[frozenset[str]] = frozenset({"work_conserving"})
    needs: ClassVar[frozenset[str]] = frozenset()
    level: ClassVar[Level] = Level.APP

    @property
    def pace(self) -> Pace:
        """On free GPUs."""
        return ON_FREE_GPUS

    def __call__(self, snapshot: Snapshot, bench: Workbench) -> Solved:
        """Deal the offer by work left, ties by arrival and id."""
        s = snapshot
        left = FinishTime(s).current_work + s.future_work.sum(axis=1)
        return in_order(s, np.lexsort((s.app_id, s.app_arrival, left)))
