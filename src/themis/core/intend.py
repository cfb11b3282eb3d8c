"""Answer -> Intent: who runs now, how many GPUs, until when, in which order.

The single place that looks at the kind of an answer. What follows (``place``, ``lease``) knows only gangs.
"""

from __future__ import annotations

from operator import itemgetter

import numpy as np

from themis.core.offer import FreeGpus
from themis.core.placed_gangs import WantedGang
from themis.core.rounds import Speeds, pick
from themis.core.state import State
from themis.core.steady import steadied
from themis.core.tables import RUNNING
from themis.errors import InvariantBroken
from themis.model.answers import Answer, GpuGrant, RoundPlan, TimeShare
from themis.model.units import NONE, Bool, Float, Int, Seconds

_gpus = itemgetter(1)
"""Of a ``WantedGang``."""

KEEPS = 2.0
"""Difference of deficits, in rounds, at which a gang gives up its machine to another; each such change restarts both."""


def intend(state: State, answer: Answer, offer: FreeGpus, spare: bool = False) -> list[WantedGang]:
    """The gangs that an answer wants to run from now on, on GPUs of the offer, in order of precedence.

    ``spare`` : of time shares, GPU time to which no job is entitled goes to jobs that wait (``Cadence.spare``).
    """
    match answer:
        case GpuGrant():
            return _granted(answer)
        case TimeShare():
            return _time_shared(state, answer, offer, spare)
        case RoundPlan():
            return _planned(state, answer, offer)
        case _:
            raise InvariantBroken(f"an answer of kind {type(answer).__name__} cannot be carried out.")


def _granted(grant: GpuGrant) -> list[WantedGang]:
    gangs: dict[int, list[int]] = {}
    for w, gang in enumerate(grant.gang.tolist()):
        gangs.setdefault(gang, []).append(w)
    app, until, of_job = grant.app.tolist(), grant.until.tolist(), grant.extend.tolist()
    named = of_job if grant.job is None else grant.job.tolist()
    seats = list(zip(grant.machine.tolist(), grant.gpus.tolist()))
    out = []
    for rows in gangs.values():
        first = rows[0]
        counts = tuple(seats[w] for w in rows)
        extend = of_job[first]
        out.append(
            WantedGang(
                app=app[first],
                job=extend if extend != NONE else named[first],
                gpus=sum(c for _, c in counts),
                until=until[first],
                counts=counts,
                extend=extend != NONE,
            )
        )
    return out


def _time_shared(s: State, answer: TimeShare, offer: FreeGpus, spare: bool) -> list[WantedGang]:
    """Serve the jobs with the largest deficit on some type, round by round: see ``core.rounds``."""
    free = np.bincount(s.machine_type[s.gpu_machine[offer.free]], minlength=len(s.gpu_types)).tolist()
    until, combos = s.round_end(answer.round_s), answer.combos
    idle = offer.idle(combos)
    size, in_service = s.rounds.size, s.type_gpus.tolist()
    alike = size > 0 and not any(gpus % size for gpus in in_service)
    priority = s.rounds.priority(s.now, until, idle[:, 0] & idle[:, 1], _speeds(s, answer), alike)

    def may(c: int, k: int) -> bool:
        return _may_share(s, combos[c], k, int(answer.gpus[c]))

    picked = pick(priority, combos, answer.gpus, free, may)
    if free == in_service and idle.all():
        picked = steadied(s.rounds, picked, free, may)
    out, apps = [], s.jobs.one.app
    rows = [c for c, _ in picked]
    for (c, k), (job, partner), gpus in zip(picked, combos[rows].tolist(), answer.gpus[rows].tolist()):
        out.append(WantedGang(apps[job], gpus, until, job, partner, None, k, False, c))
        free[k] -= gpus
    out = _large_first(_near(s, answer, out) if answer.apart is not None else out)
    if spare and any(free):
        out += _on_spare(s, answer, offer, free, combos[rows], until)
    return out


def _near(s: State, answer: TimeShare, gangs: list[WantedGang]) -> list[WantedGang]:
    """The same gangs with the seconds that each is owed on one machine, and ``KEEPS`` rounds more where it stands on one."""
    out = []
    for gang in gangs:
        deficit = s.rounds.deficit_near(gang.combo, gang.gpu_type, gang.until) if gang.gpus > 1 else 0.0
        if deficit > 0 and len({s.machine_of[g] for g in s.job_gpus.get(gang.job, ())}) == 1:
            deficit += KEEPS * answer.round_s
        out.append(gang._replace(near=max(deficit, 0.0)))
    return out


def _on_spare(
    s: State, answer: TimeShare, offer: FreeGpus, free: list[int], busy: Int, until: Seconds
) -> list[WantedGang]:
    """GPUs left, [K], go to jobs that wait, each on its fastest type.

    First to those more than a round behind their shares, for whom there was no room on the types of their shares: such a
    round pays off their deficit. The others are not charged: first those who have no share yet, then those whose lease
    ends now, who need not start again, then by arrival.
    """
    t, rows = s.jobs, offer.waiting()
    rows = rows[~_among(rows, t.size, busy)]
    if not len(rows):
        return []
    standing = t.status[rows] == RUNNING
    shares = _among(rows, t.size, answer.combos[(answer.x > 0).any(axis=1)])
    row, lacks = _overdue(s, answer, rows, until)
    order = np.lexsort((~standing, shares, -lacks))
    if until - s.now <= s.settings.container_s:
        # No other job could train before the round's end.
        order = order[standing[order]]
    rows, row, lacks = rows[order], row[order], lacks[order]
    of = dict(zip(rows[lacks > 0].tolist(), row[lacks > 0].tolist()))
    may, least, room, out = s.allowed(rows), t.gpus_min[rows], np.array(free), []
    while len(rows := rows[(fits := (may & (least[:, None] <= room)).any(axis=1))]):
        may, least = may[fits], least[fits]
        j, gpus = int(rows[0]), np.minimum(room, t.gpus_max[rows[0]])
        speed = s.speeds.scale[t.config[j], np.arange(len(room)), gpus] * (may[0] & (gpus >= least[0]))
        k = int(speed.argmax())
        if speed[k] > 0:
            c = of.get(j, NONE)
            worth = _worth(s, j, float(speed[k]), int(answer.gpus[c])) if c != NONE else ()
            out.append(WantedGang(int(t.app[j]), int(gpus[k]), until, j, gpu_type=k, combo=c, worth=worth))
            room[k] -= gpus[k]
        rows, may, least = rows[1:], may[1:], least[1:]
    return _large_first(out)


def _overdue(s: State, answer: TimeShare, rows: Int, until: Seconds) -> tuple[Int, Float]:
    """Of each job: its row among the shares of jobs alone, or -1, and how much of its work is missing (``Rounds.overdue``)."""
    row = np.full(s.jobs.size, NONE)
    alone = np.flatnonzero(answer.combos[:, 1] == NONE)
    row[answer.combos[alone, 0]] = alone
    row = row[rows]
    has, lacks = row != NONE, np.zeros(len(rows))
    lacks[has] = s.rounds.overdue(s.now, until, row[has], _speeds(s, answer))
    return row, lacks


def _speeds(s: State, answer: TimeShare) -> Speeds:
    """Speeds of combinations on each type; of a pair those of its first job."""
    return lambda rows: s.speeds.scale[s.jobs.config[answer.combos[rows, 0]], :, answer.gpus[rows]]


def _worth(s: State, j: int, speed: float, gpus: int) -> tuple[float, ...]:
    """Seconds of a gang of this size on each type that do as much work as one second at ``speed``; 0 where it cannot run."""
    there: list[float] = s.speeds.scale[s.jobs.config[j], :, gpus].tolist()
    return tuple(speed / rate if rate > 0 else 0.0 for rate in there)


def _among(rows: Int, jobs: int, others: Int) -> Bool:
    """Which of these jobs are among the others, which may be -1 (no job); a table of all is faster than sorting both."""
    there = np.zeros(jobs + 1, dtype=bool)
    there[others] = True
    out: Bool = there[rows]
    return out


def _may_share(s: State, jobs: Int, gpu_type: int, gpus: int) -> bool:
    """Whether both jobs take gangs of this size, and somebody measured them side by side on this GPU type."""
    if (s.jobs.gpus_min[jobs] > gpus).any() or (s.jobs.gpus_max[jobs] < gpus).any():
        return False
    one, other = s.jobs.config[jobs].tolist()
    return (one, other, gpu_type) in s.speeds.beside and (other, one, gpu_type) in s.speeds.beside


def _planned(s: State, plan: RoundPlan, offer: FreeGpus) -> list[WantedGang]:
    until = s.round_end(plan.round_s)
    rows = np.flatnonzero(plan.run[:, 0])
    rows = rows[offer.idle(plan.job[rows])]
    gangs = zip(plan.job[rows].tolist(), plan.gpus[rows].tolist())
    return _large_first([WantedGang(app=int(s.jobs.app[j]), job=j, gpus=gpus, until=until) for j, gpus in gangs])


def _large_first(gangs: list[WantedGang]) -> list[WantedGang]:
    """Large gangs are placed first: they have the fewest places to go."""
    return sorted(gangs, key=_gpus, reverse=True)


def falls_short(plan: RoundPlan, offer: FreeGpus) -> bool:
    """Whether a plan's first round leaves GPUs idle that a waiting job could use: work took longer than was planned."""
    rows = offer.waiting()
    runs = np.isin(rows, plan.job[plan.run[:, 0]])
    gangs = dict(zip(plan.job.tolist(), plan.gpus.tolist()))
    spare = int(offer.free.sum()) - sum(gangs[j] for j in rows[runs].tolist())
    return any(0 < gangs.get(j, 0) <= spare for j in rows[~runs].tolist())


def plan_from(plan: RoundPlan, column: int) -> RoundPlan:
    """The rest of a plan, its column 0 being the round that starts now."""
    return RoundPlan(job=plan.job, gpus=plan.gpus, run=plan.run[:, column:], round_s=plan.round_s)
