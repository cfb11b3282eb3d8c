"""Tiresias (NSDI'19, §3.2.2) with the Gittins index: the most likely to end soon for the service it would take first.

With S the GPU-seconds that finished apps took, an app that has had a of them has the index

    G(a) = max over D of P(S - a <= D | S > a) / E[min(S - a, D) | S > a]

in which only D = S_k - a, for apps k that took more, can be the best. S is what the apps that have ended took, so
nothing is known ahead; an app that has had more than any of them, and all apps while there are none, have index 0 and
go by least attained service.

Differs from Tiresias: the index orders apps directly, without queues (leases keep it from thrashing), and weights
multiply it. The Themis paper ran only least attained service and SRSF.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from themis.model.answers import Solved
from themis.model.snapshot import Snapshot
from themis.model.units import Float
from themis.policies.api import PACKING, Cadence, Granularity, Workbench
from themis.policies.attained_service import unit_service
from themis.policies.placement.grants import waiting_apps
from themis.policies.placement.ordered import in_order


@dataclass(frozen=True, slots=True, kw_only=True)
class TiresiasGittins:
    """Highest Gittins index of attained service first."""

    claims: ClassVar[frozenset[str]] = frozenset({"work_conserving"})
    needs: ClassVar[frozenset[str]] = frozenset()
    level: ClassVar[Granularity] = Granularity.APP

    @property
    def pace(self) -> Cadence:
        """Decide whenever GPUs are free."""
        return PACKING

    def __call__(self, snapshot: Snapshot, bench: Workbench) -> Solved:
        """Deal the offer by falling index, ties by attained service, arrival and id.

        Between users or groups the least served user is first, and the index orders its own apps.
        """
        s = snapshot
        index = np.zeros(s.apps)
        for a in waiting_apps(s).tolist():
            index[a] = s.app_weight[a] * gittins(float(s.app_attained[a]), s.finished_service)
        service = s.app_attained / s.app_weight
        return in_order(s, np.lexsort((s.app_id, s.app_arrival, service, -index, unit_service(s))))


def gittins(attained: float, service: Float) -> float:
    """G(attained) for the services of finished apps, rising; 0 if none of them is larger."""
    more = service[np.searchsorted(service, attained, side="right") :] - attained
    ended = np.arange(1, len(more) + 1)
    # Those that end within D cost their own service, the others D.
    cost = np.cumsum(more) + (len(more) - ended) * more
    return float((ended / cost).max(initial=0.0))
