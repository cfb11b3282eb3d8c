"""Fair finish: nobody finishes later than on their own share of the cluster, and the time to spare finishes others sooner.

Each app has a due: when it finishes in the reference, a virtual cluster of weighted equal shares (``core.reference``). Apps that
cannot wait a lease longer and keep their due, or have lost it, are served in the order of their dues: whoever serves in the order
in which a fair reference finishes ends nobody later than it does (Friedman and Henderson, SIGMETRICS 2003). All other GPUs go to
the apps with the least work left.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, cast

import numpy as np

from themis.fairness import fluid
from themis.fairness.finish_time import FinishTime
from themis.model.answers import Solved
from themis.model.snapshot import Snapshot
from themis.model.units import Bool, Float
from themis.placement.ordered import in_order
from themis.policies.api import ON_FREE_GPUS, Cadence, Granularity, Workbench


@dataclass(frozen=True, slots=True, kw_only=True)
class FairFinish:
    """Shortest remaining service first, as long as each app keeps the finish of its own share."""

    claims: ClassVar[frozenset[str]] = frozenset({"work_conserving"})
    needs: ClassVar[frozenset[str]] = frozenset({"reference"})
    level: ClassVar[Granularity] = Granularity.APP

    @property
    def pace(self) -> Cadence:
        """On free GPUs."""
        return ON_FREE_GPUS

    def __call__(self, snapshot: Snapshot, bench: Workbench) -> Solved:
        """Deal the offer: apps that cannot wait by due, then the others by work left; ties by arrival and id."""
        s = snapshot
        left = work_left(s)
        due = cast(Float, s.need("reference")) - s.now
        urgent = cannot_wait(s, left, due)
        by = np.where(urgent, due, left)
        return in_order(s, np.lexsort((s.app_id, s.app_arrival, by, ~urgent)))


def work_left(s: Snapshot) -> Float:
    """GPU-seconds that each app has left, the rungs still to come included, [A]."""
    out: Float = (FinishTime.of(s).current_work + s.future_work.sum(axis=1)) / np.maximum(s.app_speed, 1e-9)
    return out


def cannot_wait(s: Snapshot, left: Float, due: Float) -> Bool:
    """[A], whether an app misses its due if it gets no GPUs for a lease, or has missed it.

    GPUs that are leased now come back after a lease, and a start costs ``restart_s``.

    Parameters
    ----------
    left : [A], GPU-seconds. ``due`` : [A], seconds from now; below 0 where it has passed, infinite where there is none.
    """
    speed = np.maximum(s.app_speed, 1e-9)
    alone = FinishTime.of(s).left_on(s.app_demand.astype(float) * speed, s.app_gang_max.astype(float) * speed)
    late = due < alone
    known = np.isfinite(due)
    kept = known & ~late
    # An app that stands still in the reference, because no GPU that it runs on is in service, has no due.
    slack = np.where(known, -np.inf, np.inf)
    # Apps past saving stretch nobody's due.
    slack[kept] = fluid.slack(left[kept], left[kept] / alone[kept], due[kept], float(s.machine_gpus.sum()))
    out: Bool = slack < s.lease_s + s.restart_s
    return out
