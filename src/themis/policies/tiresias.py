"""Tiresias (NSDI'19) as the Themis paper ran it (§6.1): least attained GPU service first.

All apps report the GPU time that they received; whoever has least gets its demand first. No knowledge of run times,
no placement preferences.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from themis.model.answers import Solved
from themis.model.snapshot import Snapshot
from themis.placement.ordered import in_order
from themis.policies.api import ON_FREE_GPUS, Level, Pace, Workbench


@dataclass(frozen=True, slots=True, kw_only=True)
class Tiresias:
    """Least attained service, per unit of weight."""

    claims: ClassVar[frozenset[str]] = frozenset({"work_conserving"})
    needs: ClassVar[frozenset[str]] = frozenset()
    level: ClassVar[Level] = Level.APP

    @property
    def pace(self) -> Pace:
        """On free GPUs."""
        return ON_FREE_GPUS

    def __call__(self, snapshot: Snapshot, bench: Workbench) -> Solved:
        """Deal the offer by attained service, ties by arrival and id."""
        s = snapshot
        return in_order(s, np.lexsort((s.app_id, s.app_arrival, s.app_attained / s.app_weight)))
