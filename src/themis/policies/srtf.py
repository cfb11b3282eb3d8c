"""SRTF as the Themis paper ran it (§6.1): shortest remaining time with allocations from the offer first.

Every app's agent says how long the app would still take with the best of what is on offer in addition to its own;
better places mean less time, so placement comes in second. Times that need a span which no free GPUs have do not count.

An app whose time no GPU would shorten (its longest job already runs) goes last.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from themis.fairness.finish_time import FinishTime
from themis.model.answers import Solved
from themis.model.snapshot import Snapshot
from themis.model.units import Float
from themis.policies.baseline import Baseline
from themis.policies.placement.blind import Placing
from themis.policies.placement.grants import waiting_apps
from themis.policies.placement.ordered import in_order
from themis.policies.placement.packing import narrowest
from themis.policies.tuning.app_agent import Agents
from themis.policies.tuning.bid_rows import ExclusiveRow


@dataclass(frozen=True, slots=True, kw_only=True)
class Srtf(Baseline):
    """Shortest remaining time first."""

    def grant(self, snapshot: Snapshot) -> Solved:
        """Deal the offer by remaining time, ties by arrival and id."""
        s = snapshot
        return in_order(s, np.lexsort((s.app_id, s.app_arrival, _time_left(s, self.placement))), self.placement)


def _time_left(s: Snapshot, placement: Placing) -> Float:
    """Seconds that each app would still take if it had the whole offer, [A]; inf where that would not help it."""
    if placement is Placing.BLIND:
        return _time_left_anywhere(s)
    agents = Agents(s, FinishTime(s))
    offered: list[int] = np.bincount(s.machine_type, s.free, len(s.gpu_types)).astype(np.int64).tolist()
    spans: dict[tuple[int, int], float] = {}

    def can_be_had(row: ExclusiveRow) -> bool:
        key = (row.gpu_type, max(row.sizes))
        if key not in spans:
            found = narrowest(s.free, s.machine_rack, key[1], s.machine_type == key[0])
            spans[key] = found[1] if found else np.inf
        return spans[key] <= row.span

    left = np.full(s.apps, np.inf)
    for a in waiting_apps(s).tolist():
        left[a] = min((row.left for row in agents.rows(a, s.free, offered) if can_be_had(row)), default=np.inf)
    return left


def _time_left_anywhere(s: Snapshot) -> Float:
    """The same where every GPU counts as near every other, [A]."""
    gpus = np.minimum(s.app_demand, s.app_held + s.free.sum())
    gang = np.minimum(s.app_gang_max, gpus) * s.app_speed
    left = np.full(s.apps, np.inf)
    rows = waiting_apps(s)
    left[rows] = FinishTime(s).left_on((gpus * s.app_speed)[rows], gang[rows], rows)
    return left
