"""Answer -> Intent: who runs now, how many GPUs, until when, in which order.

The single place that looks at the kind of an answer. What follows (``place``, ``lease``) knows only gangs.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from themis.errors import InvariantBroken
from themis.model.answers import Answer, GpuGrant, RoundPlan, TimeShare
from themis.model.snapshot import Snapshot
from themis.model.units import NONE, Seconds
from themis.placement.packing import Counts


@dataclass(frozen=True, slots=True, kw_only=True)
class Gang:
    """GPUs that one job, or one pair of jobs, is to get together or not at all.

    Attributes
    ----------
    job : its job, or -1 where the app's own scheduler chooses. ``partner`` : the job that shares the GPUs, or -1.
    counts : GPUs on each machine, or None where placement chooses. ``gpu_type`` : the type to use, or -1 for any.
    extend : the GPUs are added to those that ``job`` holds.
    """

    app: int
    job: int = NONE
    partner: int = NONE
    gpus: int
    until: Seconds
    counts: Counts | None = None
    gpu_type: int = NONE
    extend: bool = False


def intend(snapshot: Snapshot, answer: Answer) -> list[Gang]:
    """The gangs that an answer wants to run from now on, in order of precedence."""
    match answer:
        case GpuGrant():
            return _granted(answer)
        case TimeShare():
            return _time_shared(snapshot, answer)
        case RoundPlan():
            return _planned(snapshot, answer)
        case _:
            raise InvariantBroken(f"an answer of kind {type(answer).__name__} cannot be carried out.")


def round_end(now: Seconds, round_s: Seconds) -> Seconds:
    """Rounds begin at multiples of their length: the next boundary after ``now``."""
    return (math.floor(now / round_s + 1e-9) + 1) * round_s


def _granted(grant: GpuGrant) -> list[Gang]:
    gangs: dict[int, list[int]] = {}
    for w, gang in enumerate(grant.gang.tolist()):
        gangs.setdefault(gang, []).append(w)
    out = []
    for rows in gangs.values():
        first = rows[0]
        counts = tuple((int(grant.machine[w]), int(grant.gpus[w])) for w in rows)
        extend = int(grant.extend[first])
        out.append(
            Gang(
                app=int(grant.app[first]),
                job=extend,
                gpus=sum(c for _, c in counts),
                until=float(grant.until[first]),
                counts=counts,
                extend=extend != NONE,
            )
        )
    return out


def _time_shared(s: Snapshot, answer: TimeShare) -> list[Gang]:
    """Gavel algorithm 1: combos in falling priority while their GPUs fit; no job runs twice.

    Priority is what is owed by the end of this round over what was received on that type, the latter floored at half
    a round. Differs from the published code: both are carried over re-solves, not reset.
    """
    row_of = {int(j): r for r, j in enumerate(s.job_id)}
    free = np.bincount(s.machine_type, weights=s.free, minlength=len(s.gpu_types)).astype(np.int64)
    until = round_end(s.now, answer.round_s)
    rows = np.array([row_of.get(int(j), NONE) for j in answer.combos[:, 0]], dtype=np.int64)
    alive = rows >= 0
    owed = s.entitled[rows] + answer.x * answer.round_s
    priority = np.where((answer.x > 0) & alive[:, None], owed / np.maximum(s.received[rows], answer.round_s / 2), 0.0)
    busy = {int(j) for j in s.job_id[s.job_held > 0]}
    out: list[Gang] = []
    for flat in np.argsort(-priority, axis=None, kind="stable"):
        c, k = divmod(int(flat), priority.shape[1])
        if priority[c, k] <= 0:
            break
        members = [int(j) for j in answer.combos[c] if j != NONE]
        gpus = int(answer.gpus[c])
        if len(members) > 1 and not _may_share(s, [row_of.get(j, NONE) for j in members], k, gpus):
            continue
        if gpus > free[k] or any(j in busy or j not in row_of for j in members):
            continue
        free[k] -= gpus
        busy.update(members)
        partner = members[1] if len(members) > 1 else NONE
        app = int(s.app_id[s.job_app[row_of[members[0]]]])
        out.append(Gang(app=app, job=members[0], partner=partner, gpus=gpus, until=until, gpu_type=k))
    return _large_first(out)


def _may_share(s: Snapshot, rows: list[int], gpu_type: int, gpus: int) -> bool:
    """Whether both jobs take gangs of this size, and somebody measured them side by side on this GPU type."""
    if NONE in rows or (s.job_gpus_min[rows] > gpus).any() or (s.job_gpus_max[rows] < gpus).any():
        return False
    one, other = s.job_config[rows].tolist()
    return (one, other, gpu_type) in s.speeds.beside and (other, one, gpu_type) in s.speeds.beside


def _planned(s: Snapshot, plan: RoundPlan) -> list[Gang]:
    row_of = {int(j): r for r, j in enumerate(s.job_id)}
    until = round_end(s.now, plan.round_s)
    out = []
    for p in np.flatnonzero(plan.run[:, 0]):
        j = int(plan.job[p])
        row = row_of.get(j, NONE)
        if row != NONE and s.job_held[row] == 0:
            out.append(Gang(app=int(s.app_id[s.job_app[row]]), job=j, gpus=int(plan.gpus[p]), until=until))
    return _large_first(out)


def _large_first(gangs: list[Gang]) -> list[Gang]:
    """Large gangs are placed first: they have the fewest places to go."""
    return sorted(gangs, key=lambda gang: -gang.gpus)


def plan_from(plan: RoundPlan, column: int) -> RoundPlan:
    """The rest of a plan, its column 0 being the round that starts now."""
    return RoundPlan(job=plan.job, gpus=plan.gpus, run=plan.run[:, column:], round_s=plan.round_s)
