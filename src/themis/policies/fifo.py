"""First in, first out: apps in order of arrival, each its whole demand, on leases (Themis §6.1's setting).

A gang that does not fit lets later apps pass, and leases are then aligned so that it fits soon.
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
class Fifo:
    """Earliest arrival first."""

    claims: ClassVar[frozenset[str]] = frozenset({"work_conserving"})
    needs: ClassVar[frozenset[str]] = frozenset()
    level: ClassVar[Level] = Level.APP

    @property
    def pace(self) -> Pace:
        """On free GPUs."""
        return ON_FREE_GPUS

    def __call__(self, snapshot: Snapshot, bench: Workbench) -> Solved:
        """Deal the offer to the apps in order of arrival, then id."""
        return in_order(snapshot, np.lexsort((snapshot.app_id, snapshot.app_arrival)))
