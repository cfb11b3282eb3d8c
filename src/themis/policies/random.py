"""Random: whoever the dice name gets its demand. The floor that any policy with a plan should beat.

Each decision draws its own order from the seed and the decision's number, so that one seed gives one log.
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
class Random:
    """All orders of the apps are equally likely."""

    claims: ClassVar[frozenset[str]] = frozenset({"work_conserving"})
    needs: ClassVar[frozenset[str]] = frozenset()
    level: ClassVar[Level] = Level.APP

    @property
    def pace(self) -> Pace:
        """On free GPUs."""
        return ON_FREE_GPUS

    def __call__(self, snapshot: Snapshot, bench: Workbench) -> Solved:
        """Deal the offer in an order drawn for this decision."""
        s = snapshot
        return in_order(s, np.random.default_rng((s.seed, s.round)).permutation(s.apps))
