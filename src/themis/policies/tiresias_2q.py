"""Tiresias (NSDI'19, §3.2.3), discretised: two queues by attained service, first in, first out within each.

An app starts in the first queue and falls into the second when its GPU time passes a threshold; the first queue goes
first. Against plain least attained service (``tiresias``, which the Themis paper ran) apps of like age no longer take
GPUs from each other at every lease. Leaves out promoting jobs that starve.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from themis.errors import InputError
from themis.model.answers import Solved
from themis.model.snapshot import Snapshot
from themis.policies.api import PACKING, Cadence, Granularity, Workbench
from themis.policies.attained_service import unit_service
from themis.policies.placement.ordered import in_order


@dataclass(frozen=True, slots=True, kw_only=True)
class Tiresias2Q:
    """Two-queue least attained service.

    Attributes
    ----------
    threshold : above 0; GPU time at which an app of mean weight leaves the first queue, in leases of the whole cluster:
        ``threshold * lease_s * GPUs in service`` GPU-seconds. An app of twice the mean weight of the present apps may have twice
        as much. Tiresias tunes it to its trace; counted so, one figure serves clusters of any size, in any unit of time, and
        weights on any scale.
    """

    threshold: float = 1.0

    claims: ClassVar[frozenset[str]] = frozenset({"work_conserving"})
    needs: ClassVar[frozenset[str]] = frozenset()
    level: ClassVar[Granularity] = Granularity.APP

    def __post_init__(self) -> None:
        if not self.threshold > 0:
            raise InputError(f"policy tiresias_2q: threshold is {self.threshold}, expected more than 0.")

    @property
    def pace(self) -> Cadence:
        """Decide whenever GPUs are free."""
        return PACKING

    def __call__(self, snapshot: Snapshot, bench: Workbench) -> Solved:
        """Deal the offer by queue, then arrival, then id; between users or groups, by the user's queue before the app's."""
        s = snapshot
        # Services are often whole leases, so that they equal the limit up to rounding in the mean weight.
        limit = self.threshold * s.lease_s * s.machine_gpus.sum() * (1.0 - 1e-9)
        relative = s.app_weight * s.apps / max(float(s.app_weight.sum()), 1e-300)
        of_user, of_app = unit_service(s) >= limit, s.app_attained >= limit * relative
        return in_order(s, np.lexsort((s.app_id, s.app_arrival, of_app, of_user)))
