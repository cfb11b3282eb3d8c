"""Tiresias (NSDI'19) as the Themis paper ran it (§6.1): least attained GPU service first.

All apps report the GPU time that they received; the app with least gets its demand first. No knowledge of run times,
no placement preferences.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from themis.model.answers import Solved
from themis.model.snapshot import Snapshot
from themis.policies.attained_service import unit_service
from themis.policies.baseline import Baseline
from themis.policies.placement.ordered import in_order


@dataclass(frozen=True, slots=True, kw_only=True)
class Tiresias(Baseline):
    """Least attained service, per unit of weight; between users or groups, first by what the user received."""

    turns: ClassVar[bool] = True

    def grant(self, snapshot: Snapshot) -> Solved:
        """Deal the offer by attained service of the unit of fairness, then of the app; ties by arrival and id."""
        s = snapshot
        order = np.lexsort((s.app_id, s.app_arrival, s.app_attained / s.app_weight, unit_service(s)))
        return in_order(s, order, self.placement)
