"""Fair finish: nobody finishes later than on their own share of the cluster, and the time to spare finishes others sooner.

Each app has a due: when it finishes in the reference, a virtual cluster of weighted equal shares (``core.reference``), with up to
a twentieth of that time more where it can use few GPUs (decision 153). Apps that
cannot wait a lease longer and keep their due, or have lost it, are served in the order of their dues: a server in the
order in which a fair reference finishes completes no app later than it does (Friedman and Henderson, SIGMETRICS 2003).
An app that can use few GPUs and has no time of its own left goes before all that have more work, whatever their dues:
no GPU that it gets later makes up for one that it lacks now. Where it uses no more than its share, it goes before all
(decision 100), and so do, on a quarter of the GPUs, single jobs that take as long as the time to the horizon, an instant that
arrivals alone move. All other GPUs go gang by gang to the one that is placed best, of equal ones to the app with
the least work left. Leases end together, at each tick (decision 99). On several GPU types each job gets the type that suits all
of them best (``by_type``).
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import ClassVar, cast

import numpy as np

from themis.fairness import fluid
from themis.model.answers import Proof, Renewal, Solved
from themis.model.snapshot import Kind, Snapshot
from themis.model.units import Bool, Float
from themis.policies.api import Cadence, Granularity, Renews, Workbench
from themis.policies.by_type import by_type, fastest, types_differ
from themis.policies.placement.best_first import best_first
from themis.policies.placement.grants import Allocator, lease_end
from themis.policies.placement.ordered import fill
from themis.policies.placement.standing import all_stay

DOUBT = 0.2
"""Part by which a critical path, or the work of an app, may be longer than forecast."""
QUARTER = 0.25
"""Part of the GPUs that single jobs which take as long as the time to the horizon get before the others."""
YOUNG = 5.0
"""Starts; a gang that has run for less is not stopped for an app that can wait."""
FIRST, GROWS = 3.0, 4.0
"""Leases of the first part of unknown work, and how many times as much GPU time ends the next part."""
PLANNED = 5.0
"""Steps that a decision takes a gang to stay for where leases end at each step: moves and starts are paid over them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FairFinish:
    """Shortest remaining service first, as long as each app keeps the finish of its own share."""

    claims: ClassVar[frozenset[str]] = frozenset({"work_conserving"})
    needs: ClassVar[frozenset[str]] = frozenset({"reference"})
    level: ClassVar[Granularity] = Granularity.APP

    @property
    def pace(self) -> Cadence:
        """Decide whenever GPUs are free."""
        return Cadence(renews=Renews.ON_ONE_TYPE, lone=True, ticks=True)

    def __call__(self, snapshot: Snapshot, bench: Workbench) -> Solved:
        """Allocate the offer: own share first, long paths by slack, apps that cannot wait by due, the others by place.

        Ties go by work left, arrival and id.
        """
        several, s = types_differ(snapshot), snapshot
        s = s.having(lease_s=min(s.lease_s, PLANNED * s.step_s), reference=with_leeway(s))
        left, due, speed = work_left(s), cast(Float, s.need("reference")) - s.now, fastest(s)
        alone = cast(Float, s.need("need_alone")) / speed
        believed = alone
        left, due, alone = in_parts(s, *as_it_turned_out(s, left, due, alone))
        urgent = cannot_wait(s, left, due, alone)
        slack = to_horizon(s, believed, speed) + believed - alone
        width = np.divide(left, alone, out=np.ones_like(left), where=(left > 0) & (alone > 0))
        if several:
            classes = [np.zeros_like(urgent), np.zeros_like(urgent), urgent, to_critical(s, slack, alone)]
        else:
            classes = [urgent & own_share(s, width, due, alone), long_path(s, width, slack), urgent]
        first = np.select(classes, list(range(len(classes))), 4)
        by = np.select([first % 2 == 1, urgent], [slack, in_time(s, left, due, alone, urgent)], left)
        order = np.lexsort((s.app_id, s.app_arrival, left, by, first))
        head, rest = np.split(order, [int((first < 4).sum())])
        young_s = YOUNG * s.restart_s
        if several:
            solved = by_type(s, head)
        elif s.job_expiring.any() and all_stay(s, head, rest, left, young_s):
            solved = Solved(answer=Renewal(until=lease_end(s)))
        else:
            allocator = Allocator(s)
            best_first(allocator, rest, left, fill(allocator, head), young_s=young_s)
            solved = Solved(answer=allocator.grant())
        late = np.flatnonzero((due < alone) & np.isfinite(alone))
        return replace(solved, proof=Proof(stretched=s.app_id[late], stretch=(alone - due)[late]))


def with_leeway(s: Snapshot) -> Float:
    """[A], when each app is due: its finish in the reference, later by up to ``fluid.LEEWAY`` of its time there.

    In the reference an app starts at once, at no cost, on the best place. One that can use part ``c`` of the GPUs, as a mean
    over all its work, cannot make up for ``1 - c`` of the time that these take here, so it has ``1 - c`` of the leeway: else
    it has no time of its own from its arrival on, and goes first all its life. Decision 153.
    """
    finish, whole = cast(Float, s.need("reference")), cast(Float, s.need("need_whole"))
    width = np.divide(s.app_budget, whole, out=np.zeros_like(whole), where=whole > 0)
    narrow = 1.0 - np.clip(width / max(float(s.machine_gpus.sum()), 1e-9), 0.0, 1.0)
    lasts = np.where(np.isfinite(finish), np.maximum(finish - s.now + s.app_elapsed, 0.0), 0.0)
    out: Float = finish + fluid.LEEWAY * narrow * lasts
    return out


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


def in_parts(s: Snapshot, left: Float, due: Float, alone: Float) -> tuple[Float, Float, Float]:
    """The same three columns; of an app of unknown work, for the next part of it alone.

    Parts end at ``FIRST`` leases of all GPUs that the app can use, and at ``GROWS`` times as much GPU time each. A part is due when
    the app would have had it on its share. So a short app waits for no believed length, and one that runs on does not hold
    GPUs that it had its share of. Decision 112.
    """
    if not s.app_unknown.any():
        return left, due, alone
    had, whole = s.app_attained, np.maximum(s.app_budget / np.maximum(s.app_speed, 1e-9), 1e-9)
    width = np.divide(left, alone, out=np.ones_like(left), where=(left > 0) & (alone > 0))
    first = FIRST * s.lease_s * np.maximum(width, 1e-9)
    parts = np.floor(np.log(np.maximum(had / first, 1e-9)) / np.log(GROWS)) + 1.0
    end = first * GROWS ** np.maximum(parts, 0.0)
    asked = cast(Float, s.need("reference")) - s.now + s.app_elapsed
    columns = ((end - had, left), (asked * end / whole - s.app_elapsed, due), ((end - had) / width, alone))
    of_part, due_then, takes = (np.where(s.app_unknown, new, old) for new, old in columns)
    return of_part, due_then, takes


def _covered(s: Snapshot) -> Float:
    """[J], GPU-seconds that each job's believed work takes at most: worst placement, slowest type there ever was, its starts."""
    config, most = s.job_config, np.stack([s.job_gpus_min, s.job_gpus_max], axis=1)
    types = np.unique(s.machine_type)
    per_gpu = s.speeds.scale[config[:, None, None], types[None, :, None], most[:, None, :]] / np.maximum(
        most[:, None, :], 1
    )
    runs = (per_gpu > 0) & s.job_allowed[:, types][:, :, None]
    slowest = np.where(runs, per_gpu, np.inf).min(axis=(1, 2), initial=np.inf)
    done = s.job_done * s.job_serial
    # A job that did all its believed work and runs on has a tenth of it left (``core.state.OVERRUN``): that is no belief.
    none = np.abs(s.job_left - 0.1 * done) <= 1e-9 * (0.1 * done)
    work = (done + np.where(none, 0.0, s.job_left)) * s.speeds.slowdown[config].max(axis=1) / slowest
    start = s.restart_s + s.speeds.checkpoint_s[config]
    # Nothing is known of a job that runs on no type in the cluster.
    out: Float = np.where(
        np.isfinite(slowest), (work + s.job_gpus_max * start * np.maximum(s.job_attempt, 1)) * (1.0 + DOUBT), np.inf
    )
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


def own_share(s: Snapshot, width: Float, due: Float, alone: Float) -> Bool:
    """[A], apps without time of their own whose jobs can use no more than the app's share of the GPUs now.

    The reference holds these GPUs for such an app all the time, so serving it first moves no due. What counts is what its jobs
    can use now: a sweep whose many jobs leave one long one behind is narrow in the mean of its work, and holds many GPUs first.

    Parameters
    ----------
    width : [A], GPUs that each app can use, as a mean over its work left. ``due``, ``alone`` : as of ``cannot_wait``.
    """
    uses = np.maximum(width, np.bincount(s.job_app, weights=s.job_gpus_max, minlength=s.apps))
    filled: Bool = fluid.fill(s.app_weight, uses, float(s.machine_gpus.sum())) >= uses * (1.0 - fluid.TINY)
    return filled & _no_time(s, width, due, alone)


def _no_time(s: Snapshot, width: Float, due: Float, alone: Float) -> Bool:
    """[A], whether no number of GPUs makes up for all of a lease that the app waits now."""
    part = np.clip(width / max(float(s.machine_gpus.sum()), 1e-9), 0.0, 1.0)
    out: Bool = due < alone + (s.lease_s + s.restart_s) * (1.0 - part)
    return out


def long_path(s: Snapshot, width: Float, slack: Float) -> Bool:
    """[A], single jobs that take as long as the time to the horizon: least slack first, those that fit a quarter of the GPUs.

    Apps of several jobs are not among them: few of their jobs are critical, and in sweeps it is open which go on (decision 111).
    """
    late = np.flatnonzero((slack < s.lease_s + s.restart_s) & (s.app_kind == Kind.SINGLE))
    late = late[np.argsort(slack[late], kind="stable")]
    out = np.zeros(s.apps, dtype=np.bool_)
    out[late[np.cumsum(width[late]) <= QUARTER * s.machine_gpus.sum()]] = True
    return out


def to_critical(s: Snapshot, slack: Float, alone: Float) -> Bool:
    """[A], where GPUs of several types are in service: apps whose critical path is about as long as the time to the horizon."""
    out: Bool = slack < 2.0 * (s.lease_s + s.restart_s) + DOUBT * alone
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
    own = urgent & _no_time(s, left / np.maximum(alone, 1e-9), due, alone)
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
