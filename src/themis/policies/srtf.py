"""SRTF as the Themis paper ran it (§6.1): shortest remaining time with allocations from the offer first.

Every app's agent says how long the app would still take with the best of what is on offer beside what it holds;
better places mean less time, so placement comes in second. Times that need a span which no free GPUs have do not count.

An app whose time no GPU would shorten (its longest job already runs) goes last.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from themis.fairness.finish_time import FinishTime
from themis.model.answers import Solved
from themis.model.snapshot import Snapshot
from themis.model.units import Float
from themis.placement.grants import waiting_apps
from themis.placement.ordered import in_order
from themis.placement.packing import narrowest
from themis.policies.api import ON_FREE_GPUS, Level, Pace, Workbench
from themis.tuning.agent import Agents, Row


@dataclass(frozen=True, slots=True, kw_only=True)
class Srtf:
    """Shortest remaining time first."""

    claims: ClassVar[frozenset[str]] = frozenset({"work_conserving"})
    needs: ClassVar[frozenset[str]] = frozenset()
    level: ClassVar[Level] = Level.APP

    @property
    def pace(self) -> Pace:
        """On free GPUs."""
        return ON_FREE_GPUS

    def __call__(self, snapshot: Snapshot, bench: Workbench) -> Solved:
        """Deal the offer by remaining time, ties by arrival and id."""
        s = snapshot
        return in_order(s, np.lexsort((s.app_id, s.app_arrival, _time_left(s))))


def _time_left(s: Snapshot) -> Float:
    """Seconds that each app would still take if it had the whole offer, [A]; inf where that would not help it."""
    agents = Agents(s, FinishTime(s))
    offered: list[int] = np.bincount(s.machine_type, s.free, len(s.gpu_types)).astype(np.int64).tolist()
    spans: dict[tuple[int, int], float] = {}

    def can_be_had(row: Row) -> bool:
        key = (row.gpu_type, max(row.sizes))
        if key not in spans:
            found = narrowest(s.free, s.machine_rack, key[1], s.machine_type == key[0])
            spans[key] = found[1] if found else np.inf
        return spans[key] <= row.span

    left = np.full(s.apps, np.inf)
    for a in waiting_apps(s).tolist():
        left[a] = min((row.left for row in agents.rows(a, s.free, offered) if can_be_had(row)), default=np.inf)
    return left
