"""Answer -> Intent: which gangs run now, how many GPUs each has, until when, in which order.

The single place that looks at the kind of an answer: how it is carried out (``intend``), what is kept of it (``adopt``), how long
it holds (``in_force``), and what it entitles jobs to (``entitlement``). What follows, and reports, know only the results.
"""

from __future__ import annotations

from operator import itemgetter
from typing import NamedTuple

import numpy as np

from themis.core.offer import FreeGpus
from themis.core.placed_gangs import Intent, WantedGang
from themis.core.rounds import Speeds, pick
from themis.core.state import EPS, State
from themis.core.steady import steadied
from themis.core.tables import RUNNING
from themis.errors import InvariantBroken
from themis.model.answers import Answer, GpuGrant, Renewal, RoundPlan, TimeShare
from themis.model.units import NONE, Bool, Float, Int, Seconds, round_end
from themis.policies.api import ON_FREE_GPUS, Cadence

_gpus = itemgetter(1)
"""GPUs of a ``WantedGang``."""

_NONE_DECLINED: Int = np.zeros(0, dtype=np.int64)

KEEPS = 2.0
"""Difference of deficits, in rounds, at which a gang gives up its machine to another; each such change restarts both."""


def intend(state: State, answer: Answer, offer: FreeGpus, pace: Cadence = ON_FREE_GPUS) -> Intent:
    """The gangs that an answer wants to run from now on, on GPUs of the offer.

    ``pace`` : the cadence of the policy that answered.
    """
    match answer:
        case Renewal() if answer.new is None and offer.stands and not state.one_machine and not state.starts:
            return _leased(state, [], pace)._replace(renewed=answer.until)
        case Renewal():
            gangs = _renewed(state, answer, offer)
            return _leased(state, gangs if answer.new is None else gangs + _granted(answer.new), pace)
        case GpuGrant():
            return _leased(state, _granted(answer), pace, answer.declined)
        case TimeShare():
            return _time_shared(state, answer, offer, pace.spare)
        case RoundPlan():
            return _planned(state, answer, offer)
        case _:
            raise InvariantBroken(f"an answer of kind {type(answer).__name__} cannot be carried out.")


def adopt(state: State, answer: Answer, asked: int) -> None:
    """Put an answer in force; ``asked`` : the state's version that it was computed for."""
    match answer:
        case TimeShare():
            state.rounds.adopt(answer, state.now, asked)
        case RoundPlan():
            # What ends a plan also ends the one that was being made: it runs for this round alone.
            state.plan = None if state.plan_dropped else answer
            state.plan_start = state.round_end(answer.round_s) - answer.round_s


class InForce(NamedTuple):
    """An earlier answer that needs no new solve, if there is one; ``look`` : when to decide again in any case."""

    answer: Answer | None = None
    look: Seconds | None = None


def in_force(state: State, cadence: Cadence, offer: FreeGpus) -> InForce:
    """A plan for this round, unless it leaves GPUs idle that a job could use; else still valid time shares."""
    plan = _round_of_plan(state)
    if plan is None:
        return _shares_in_force(state, cadence)
    return InForce() if _falls_short(plan, offer) else InForce(plan)


def _round_of_plan(s: State) -> RoundPlan | None:
    """The rest of the plan in force, its column 0 being the round that starts now."""
    if s.plan is None:
        return None
    plan, column = s.plan, round((s.round_end(s.plan.round_s) - s.plan_start) / s.plan.round_s) - 1
    if column >= plan.run.shape[1]:
        return None
    return RoundPlan(job=plan.job, gpus=plan.gpus, run=plan.run[:, column:], round_s=plan.round_s)


def _shares_in_force(s: State, cadence: Cadence) -> InForce:
    """Time shares where nothing changed since they were solved, or where that is not long enough ago."""
    rounds = s.rounds
    if rounds.answer is None or cadence.resolve_interval is None:
        return InForce()
    if rounds.version == s.version:
        return InForce(rounds.answer)
    if s.now >= rounds.solved + cadence.resolve_interval - EPS:
        return InForce()
    # An app that arrived since waits, maybe as the only one in the system: the rounds continue.
    return InForce(rounds.answer, look=s.round_end(rounds.answer.round_s))


class Entitlement(NamedTuple):
    """GPU time that an answer entitles jobs to; rows are jobs, and a job may have several.

    Attributes
    ----------
    job : [J], ids. ``gpus`` : [J], on average while the answer is in force; of a plan the gang.
    round : [J], GPU-seconds of one round.
    run : [J, R], of a plan: 1 in rounds in which the job is to run. ``ends`` : [R], when each round ends.
    """

    job: Int
    gpus: Float
    round: Float
    run: Float | None = None
    ends: Float = np.zeros(0)


def entitlement(answer: Answer, now: Seconds, origin: Seconds) -> Entitlement | None:
    """GPU time to which this answer entitles jobs; None where it grants leases, which promise nothing.

    ``origin`` : when rounds began.
    """
    match answer:
        case TimeShare():
            size, both = answer.gpus * answer.x.sum(axis=1), answer.combos[:, 1] != NONE
            return Entitlement(
                job=np.concatenate([answer.combos[:, 0], answer.combos[both, 1]]),
                gpus=np.concatenate([size, size[both]]),
                round=np.concatenate([answer.gpus, answer.gpus[both]]) * float(answer.round_s),
            )
        case RoundPlan():
            gang, run = answer.gpus.astype(np.float64), answer.run.astype(np.float64)
            ends = round_end(now, answer.round_s, origin) + answer.round_s * np.arange(run.shape[1], dtype=np.float64)
            return Entitlement(answer.job, gang, gang * answer.round_s, run, ends)
        case _:
            return None


def _leased(s: State, gangs: list[WantedGang], pace: Cadence, declined: Int = _NONE_DECLINED) -> Intent:
    """Leases, which end when each says; ``declined`` : of the answer."""
    return Intent(gangs, None, s.settings.tick_s, declined, step=s.step_s(pace))


def _renewed(s: State, answer: Renewal, offer: FreeGpus) -> list[WantedGang]:
    app, held, until = s.jobs.one.app, s.job_gpus, answer.until
    return [WantedGang(app[j], len(held[j]), until, j) for j in offer.ending]


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


def _time_shared(s: State, answer: TimeShare, offer: FreeGpus, spare: bool) -> Intent:
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
    # Where no job with a share has a deficit yet, one may have by the next round.
    later = bool(picked) or bool((answer.x[idle.all(axis=1)] > 0).any())
    return Intent(out, until, next_look=until if later else None, if_none_placed=True)


def _near(s: State, answer: TimeShare, gangs: list[WantedGang]) -> list[WantedGang]:
    """The same gangs with the seconds that each is owed on one machine, plus ``KEEPS`` rounds if it runs on one."""
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

    First to jobs more than a round behind their shares, without room on the types of their shares: such a
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
    """Row of each job among the shares of single jobs, or -1, and the part of its work that it lacks
    (``Rounds.overdue``).
    """
    if not s.rounds.any_overdue(s.now, until):
        return np.full(len(rows), NONE), np.zeros(len(rows))
    alone = np.flatnonzero(answer.combos[:, 1] == NONE)
    of = dict(zip(answer.combos[alone, 0].tolist(), alone.tolist()))
    row = np.array([of.get(j, NONE) for j in rows.tolist()], dtype=np.int64)
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
    """True for each of these jobs that is among the others, which may be -1 (no job); a table beats sorting both."""
    there = np.zeros(jobs + 1, dtype=bool)
    there[others] = True
    out: Bool = there[rows]
    return out


def _may_share(s: State, jobs: Int, gpu_type: int, gpus: int) -> bool:
    """True where both jobs take gangs of this size and their speeds side by side on this GPU type were measured."""
    if (s.jobs.gpus_min[jobs] > gpus).any() or (s.jobs.gpus_max[jobs] < gpus).any():
        return False
    one, other = s.jobs.config[jobs].tolist()
    return (one, other, gpu_type) in s.speeds.beside and (other, one, gpu_type) in s.speeds.beside


def _planned(s: State, plan: RoundPlan, offer: FreeGpus) -> Intent:
    until = s.round_end(plan.round_s)
    rows = np.flatnonzero(plan.run[:, 0])
    rows = rows[offer.idle(plan.job[rows])]
    gangs = zip(plan.job[rows].tolist(), plan.gpus[rows].tolist())
    wanted = _large_first([WantedGang(app=int(s.jobs.app[j]), job=j, gpus=gpus, until=until) for j, gpus in gangs])
    # A plan may leave GPUs idle until its next round.
    return Intent(wanted, until, next_look=until if plan.run[:, 1:].any() else None)


def _large_first(gangs: list[WantedGang]) -> list[WantedGang]:
    """Large gangs are placed first: they have the fewest places to go."""
    return sorted(gangs, key=_gpus, reverse=True)


def _falls_short(plan: RoundPlan, offer: FreeGpus) -> bool:
    """True if a plan's first round leaves GPUs idle that a waiting job could use: work took longer than was planned."""
    rows = offer.waiting()
    runs = np.isin(rows, plan.job[plan.run[:, 0]])
    gangs = dict(zip(plan.job.tolist(), plan.gpus.tolist()))
    spare = int(offer.free.sum()) - sum(gangs[j] for j in rows[runs].tolist())
    return any(0 < gangs.get(j, 0) <= spare for j in rows[~runs].tolist())
