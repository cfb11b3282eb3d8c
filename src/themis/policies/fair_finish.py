"""Fair finish: nobody finishes later than on their own share of the cluster, and the time to spare finishes others sooner.

Each app has a due: when it finishes in the reference, a virtual cluster of weighted equal shares (``core.reference``). Apps that
cannot wait a lease longer and keep their due, or have lost it, are served in the order of their dues: a server in the
order in which a fair reference finishes completes no app later than it does (Friedman and Henderson, SIGMETRICS 2003).
An app that can use few GPUs and has no time of its own left goes before all that have more work, whatever their dues:
no GPU that it gets later makes up for one that it lacks now. Then come apps whose own critical path is about as long as
the time to the horizon, an instant that arrivals alone move, least slack first: they take no GPUs from an app that
needs them for its due. All other GPUs go to the apps with the least work left, each on the GPU type that suits all of
them best (``by_type``).
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import ClassVar, cast

import numpy as np

from themis.errors import InputError
from themis.fairness import fluid
from themis.model.answers import GpuGrant, Proof, Solved
from themis.model.snapshot import Snapshot
from themis.model.units import Bool, Float, Seconds
from themis.policies.api import ADDED, Cadence, Granularity, Renews, Workbench
from themis.policies.by_type import by_type, fastest, types_differ
from themis.policies.placement.lease_lengths import shortened
from themis.policies.placement.ordered import in_order

DOUBT = 0.2
"""Part by which a critical path, or the work of an app, may be longer than forecast."""
STARTING = 1.25
"""Time leased over time trained where every lease is of five starts."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FairFinish:
    """Shortest remaining service first, as long as each app keeps the finish of its own share.

    Parameters
    ----------
    starts : while apps wait, leases shorten to this multiple of a start's cost, 0 to 1000, where the settings have no
        ``shortest_lease_s``; 0: leases have one length. On several GPU types they always have (``by_type``). Decision 69.
    """

    starts: float = field(default=5.0, metadata=ADDED)

    claims: ClassVar[frozenset[str]] = frozenset({"work_conserving"})
    needs: ClassVar[frozenset[str]] = frozenset({"reference"})
    level: ClassVar[Granularity] = Granularity.APP

    def __post_init__(self) -> None:
        if not 0.0 <= self.starts <= 1000.0:
            raise InputError(f"policy fair_finish: starts is {self.starts}, expected 0 to 1000.")

    @property
    def pace(self) -> Cadence:
        """Decide whenever GPUs are free."""
        return Cadence(renews=Renews.ON_ONE_TYPE, packs=True)

    def __call__(self, snapshot: Snapshot, bench: Workbench) -> Solved:
        """Allocate the offer: apps that cannot wait by due (``in_time``), critical ones by slack, the others by work left.

        Ties go by work left, arrival and id.
        """
        shortest = self.shortest(snapshot)
        s = snapshot.having(lease_s=shortened(snapshot, shortest)) if shortest else snapshot
        left, due, speed = work_left(s), cast(Float, s.need("reference")) - s.now, fastest(s)
        alone = cast(Float, s.need("need_alone")) / speed
        believed = alone
        left, due, alone = as_it_turned_out(s, left, due, alone)
        urgent = cannot_wait(s, left, due, alone)
        slack = to_horizon(s, believed, speed) + believed - alone
        critical = ~urgent & (slack < 2.0 * (s.lease_s + s.restart_s) + DOUBT * alone)
        by = np.where(urgent, in_time(s, left, due, alone, urgent), np.where(critical, slack, left))
        order = np.lexsort((s.app_id, s.app_arrival, left, by, ~critical, ~urgent))
        if types_differ(s):
            solved = by_type(s, order[: int((urgent | critical).sum())])
        else:
            solved = in_order(s, order)
            solved = replace(solved, answer=replace(cast(GpuGrant, solved.answer), shortest_s=shortest))
        late = np.flatnonzero((due < alone) & np.isfinite(alone))
        return replace(solved, proof=Proof(stretched=s.app_id[late], stretch=(alone - due)[late]))

    def shortest(self, s: Snapshot) -> Seconds:
        """Down to which length leases shorten while apps wait; 0 if they do not, or if the settings say it (decision 69)."""
        if s.shortest_lease_s or not self.starts * s.restart_s or types_differ(s):
            return 0.0
        return min(max(self.starts * s.restart_s, s.tick_s), s.full_lease_s)


def work_left(s: Snapshot) -> Float:
    """GPU-seconds that each app has left, the rungs still to come included, [A]."""
    out: Float = cast(Float, s.need("need_left")) / np.maximum(s.app_speed, 1e-9)
    return out


def as_it_turned_out(s: Snapshot, left: Float, due: Float, alone: Float) -> tuple[Float, Float, Float]:
    """The same three columns, without apps whose work was far underestimated: their contract covers too little.

    An app whose present jobs had all GPU time that their believed work takes at the worst placement, and run on, is taken to need
    as much again as they had. On its own share that takes longer in proportion, and so its due is later: it never gets more than
    its share before the dues of others. By this rule no app is judged that tells the truth and repeats no work. Decision 70.
    """
    had = np.bincount(s.job_app, weights=s.job_attained, minlength=s.apps)
    covered = np.bincount(s.job_app, weights=_covered(s), minlength=s.apps)
    more = had > covered
    if not more.any():
        return left, due, alone
    again = np.where(more, np.maximum(left, had), left)
    whole = np.maximum(covered, s.app_budget)
    grown = np.where(more, 1.0 + (2.0 * had - covered) / np.maximum(whole, 1e-9), 1.0)
    lived = s.app_elapsed
    return again, np.where(more, (due + lived) * grown - lived, due), alone * again / np.maximum(left, 1e-9)


def _covered(s: Snapshot) -> Float:
    """[J], GPU-seconds that each job's believed work takes at most: worst placement, slowest type there ever was, starts."""
    config, most = s.job_config, np.stack([s.job_gpus_min, s.job_gpus_max], axis=1)
    types = np.unique(s.machine_type)
    per_gpu = s.speeds.scale[config[:, None, None], types[None, :, None], most[:, None, :]] / np.maximum(
        most[:, None, :], 1
    )
    runs = (per_gpu > 0) & s.job_allowed[:, types][:, :, None]
    slowest = np.where(runs, per_gpu, np.inf).min(axis=(1, 2), initial=np.inf)
    done = s.job_done * s.job_serial
    # A job that did all its believed work and runs on has a tenth of it left (``core.state.OVERRUN``): that is no belief.
    work = (
        (done + np.where(np.isclose(s.job_left, 0.1 * done, rtol=1e-9, atol=0.0), 0.0, s.job_left))
        * s.speeds.slowdown[config].max(axis=1)
        / slowest
    )
    start = s.restart_s + s.speeds.checkpoint_s[config]
    # Nothing is known of a job that runs on no type in the cluster.
    out: Float = np.where(np.isfinite(slowest), (work + s.job_gpus_max * start) * (1.0 + DOUBT) * STARTING, np.inf)
    return out


def cannot_wait(s: Snapshot, left: Float, due: Float, alone: Float) -> Bool:
    """[A], whether an app misses its due if it gets no GPUs for a lease, or has missed it.

    GPUs that are leased now come back after a lease, and a start costs ``restart_s``.

    Parameters
    ----------
    left : [A], GPU-seconds. ``due`` : [A], seconds from now; below 0 where it has passed, infinite if there is none.
    alone : [A], seconds that each app has left on all GPUs that it can use, of the type that runs it best.
    """
    known = np.isfinite(due)
    kept = known & (due >= alone)
    # An app that stands still in the reference, because no GPU that it runs on is in service, has no due.
    slack = np.where(known, -np.inf, np.inf)
    # Apps that miss their promised finish in any case extend no other app's. Without work left any width does.
    width = np.divide(left, alone, out=np.ones_like(left), where=(left > 0) & (alone > 0))
    slack[kept] = fluid.slack(left[kept], width[kept], due[kept], float(s.machine_gpus.sum()))
    out: Bool = slack < s.lease_s + s.restart_s
    return out


def in_time(s: Snapshot, left: Float, due: Float, alone: Float, urgent: Bool) -> Float:
    """[A], the dues by which urgent apps are served: earlier than the app's own one if it has no time left itself.

    Such an app counts as due with the first urgent app that has at least as much work. While an app that can use a part ``c`` of
    all GPUs waits a lease, ``1 - c`` of the lease is time that no number of GPUs makes up for. Where all apps can use all GPUs,
    that is nothing, and every app goes by its own due.

    Parameters
    ----------
    left, due, alone : as of ``cannot_wait``. ``urgent`` : [A], its answer.
    """
    part = left / np.maximum(alone, 1e-9) / max(float(s.machine_gpus.sum()), 1e-9)
    own = urgent & (due < alone + (s.lease_s + s.restart_s) * (1.0 - np.clip(part, 0.0, 1.0)))
    dues = np.where(urgent, due, np.inf)
    most_first = np.lexsort((dues, -left))
    with_more = np.empty_like(due)
    with_more[most_first] = np.minimum.accumulate(dues[most_first])
    out: Float = np.where(own, with_more, due)
    return out


def to_horizon(s: Snapshot, alone: Float, speed: Float) -> Float:
    """[A], seconds that each app may wait and still end by the horizon.

    The horizon is the later of when the work at hand can be done, and the latest (arrival + whole critical path).

    Parameters
    ----------
    alone : as of ``cannot_wait``, as believed. ``speed`` : [A], reference GPUs that a GPU of its best type is worth to each app.
    """
    whole = cast(Float, s.need("need_whole")) / speed
    ends = s.app_arrival + s.app_away + (1.0 + fluid.LEEWAY) * whole
    horizon = max(cast(float, s.need("horizon")), float(ends.max(initial=-np.inf)))
    out: Float = horizon - s.now - alone
    return out
