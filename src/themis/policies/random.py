"""Random: whoever the dice name gets its demand. The floor that any policy with a plan should beat.

Each decision draws its own order from the seed and the decision's number, so that one seed gives one log.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from themis.model.answers import Solved
from themis.model.snapshot import Snapshot
from themis.policies.baseline import Baseline
from themis.policies.placement.ordered import in_order


@dataclass(frozen=True, slots=True, kw_only=True)
class Random(Baseline):
    """All orders of the apps are equally likely."""

    turns: ClassVar[bool] = True

    def grant(self, snapshot: Snapshot) -> Solved:
        """Deal the offer in an order drawn for this decision."""
        s = snapshot
        return in_order(s, np.random.default_rng((s.seed, s.round)).permutation(s.apps), self.placement)
