"""Answer -> Intent: who runs now, how many GPUs, until when, in which order.

The single place that looks at the kind of an answer. What follows (``place``, ``lease``) knows only gangs.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from themis.core.rounds import Rounds
from themis.errors import InvariantBroken
from themis.model.answers import Answer, GpuGrant, RoundPlan, TimeShare
from themis.model.snapshot import Snapshot
from themis.model.units import NONE, Seconds, round_end
from themis.placement.packing import Counts


@dataclass(frozen=True, slots=True, kw_only=True)
class Gang:
    """GPUs that one job, or one pair of jobs, is to get together or not at all.

    Attributes
    ----------
    job : its job, or -1 where the app's own scheduler chooses. ``partner`` : the job that shares the GPUs, or -1.
    counts : GPUs on each machine, or None where placement chooses. ``gpu_type`` : the type to use, or -1 for any.
    extend : the GPUs are added to those that ``job`` holds. ``combo`` : row of the time shares, or -1.
    """

    app: int
    job: int = NONE
    partner: int = NONE
    gpus: int
    until: Seconds
    counts: Counts | None = None
    gpu_type: int = NONE
    extend: bool = False
    combo: int = NONE


def intend(snapshot: Snapshot, answer: Answer, rounds: Rounds | None = None) -> list[Gang]:
    """The gangs that an answer wants to run from now on, in order of precedence; ``rounds`` is the account of shares."""
    match answer:
        case GpuGrant():
            return _granted(answer)
        case TimeShare():
            return _time_shared(snapshot, answer, rounds or _fresh(snapshot, answer))
        case RoundPlan():
            return _planned(snapshot, answer)
        case _:
            raise InvariantBroken(f"an answer of kind {type(answer).__name__} cannot be carried out.")


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


def _time_shared(s: Snapshot, answer: TimeShare, rounds: Rounds) -> list[Gang]:
    """Gavel algorithm 1: combinations in falling priority while their GPUs fit; no job runs twice."""
    free = np.bincount(s.machine_type, weights=s.free, minlength=len(s.gpu_types)).astype(np.int64)
    until = round_end(s.now, answer.round_s)
    row_of = np.full(max(int(s.job_id.max(initial=0)), int(answer.combos.max(initial=0))) + 2, NONE)
    row_of[s.job_id] = np.arange(s.jobs)
    able = np.append(s.job_held == 0, False)[row_of]
    able[NONE] = True  # nobody is always ready to be a partner
    priority = rounds.priority(s.now, able[answer.combos].all(axis=1))
    flat = np.flatnonzero(priority)
    order = flat[np.argsort(-priority.ravel()[flat], kind="stable")]
    combo, kind = np.divmod(order, priority.shape[1])
    gpus = answer.gpus[combo]
    busy: set[int] = set()
    out: list[Gang] = []
    for c, k, size, (job, partner) in zip(combo.tolist(), kind.tolist(), gpus.tolist(), answer.combos[combo].tolist()):
        if size > free[k] or job in busy or partner in busy:
            continue
        if partner != NONE and not _may_share(s, [int(row_of[job]), int(row_of[partner])], k, size):
            continue
        free[k] -= size
        busy.add(job)
        if partner != NONE:
            busy.add(partner)
        app = int(s.app_id[s.job_app[row_of[job]]])
        out.append(Gang(app=app, job=job, partner=partner, gpus=size, until=until, gpu_type=k, combo=c))
        if not free.any():
            break
    return _large_first(out)


def _fresh(s: Snapshot, answer: TimeShare) -> Rounds:
    rounds = Rounds()
    rounds.adopt(answer, s.now, s.version)
    return rounds


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


def falls_short(s: Snapshot, plan: RoundPlan) -> bool:
    """Whether a plan's first round leaves GPUs idle that a waiting job could use: work took longer than was planned."""
    runs = np.isin(s.job_id, plan.job[plan.run[:, 0]])
    waits = np.flatnonzero((s.job_held == 0) & ~runs)
    gangs = dict(zip(plan.job.tolist(), plan.gpus.tolist()))
    spare = int(s.free.sum()) - sum(gangs[j] for j in s.job_id[runs & (s.job_held == 0)].tolist())
    return any(0 < gangs.get(j, 0) <= spare for j in s.job_id[waits].tolist())


def plan_from(plan: RoundPlan, column: int) -> RoundPlan:
    """The rest of a plan, its column 0 being the round that starts now."""
    return RoundPlan(job=plan.job, gpus=plan.gpus, run=plan.run[:, column:], round_s=plan.round_s)
