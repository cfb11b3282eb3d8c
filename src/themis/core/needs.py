"""Work of apps on the best place that the machines in service have for each gang: one definition for the reference, the time
alone and the time left.

A job's best gang is the fastest of those that its limits and the machines allow: a gang that is wider than a machine counts at
the speed that it has there. Each stretch at one batch size counts at the speed of its own batch. Functions over the tables.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterator, Mapping
from itertools import count
from typing import NamedTuple

import numpy as np

from themis.core.state import State
from themis.core.tables import ENDED
from themis.fairness.fluid import Scaling
from themis.model.cluster import Reach, places, reaches
from themis.model.units import NONE, Float, GpuSeconds, Int, Locality, Seconds
from themis.model.workload import Halving, brackets_of
from themis.policies.placement.packing import narrowest

_REACH = "reach"
"""Key of ``State.best_gangs``: the reach of each GPU type in service."""
_ROWS = "rows"
"""Key of ``State.best_gangs``: batch size, GPUs and speedup of the best gang of each job, [3, jobs]."""


class Gang(NamedTuple):
    """The best gang of a job: its GPUs, how many single GPUs of its type are as fast, and how many reference GPUs."""

    gpus: int
    speedup: float
    rate: float


class Need(NamedTuple):
    """Reference GPU-seconds, and seconds on reference GPUs: on the best gang, placed best."""

    gpu_s: GpuSeconds
    seconds: Seconds


def fill(state: State, a: int) -> None:
    """Write what each phase of an app needs: ``State.need``. Rungs that nobody reached count at their bracket's median job."""
    jobs, brackets = state.app_jobs(a), brackets_of(state.app_specs[a].tuner)
    state.need[:, a] = 0.0
    if not brackets:
        steps = np.where(state.jobs.status[jobs] == ENDED, state.jobs.done[jobs], state.jobs.total[jobs])
        each = [spent(state, j, 0.0, upto) for j, upto in zip(jobs.tolist(), steps.tolist())]
        state.need[:, a, 0] = _together(state, a, each)
        return
    phase = 0
    for b, bracket in enumerate(brackets):
        members = jobs[state.jobs.bracket[jobs] == b]
        for rung in range(len(bracket.rungs)):
            state.need[:, a, phase] = _together(state, a, _rung(state, bracket, rung, members))
            phase += 1


def _rung(state: State, bracket: Halving, rung: int, members: Int) -> list[Need]:
    begin, upto = (Halving(rungs=bracket.rungs[:r]).steps if r else 0.0 for r in (rung, rung + 1))
    there = members[state.jobs.rung[members] >= rung]
    if len(there):
        return [spent(state, j, begin, upto) for j in there.tolist()]
    each = np.array([spent(state, j, begin, upto) for j in members.tolist()])
    return [Need(*np.median(each, axis=0).tolist())] * bracket.rungs[rung].jobs


def _together(state: State, a: int, each: list[Need]) -> Need:
    """Jobs that share GPUs freely: all work, and the longest job; with a limit of concurrent jobs at least their rounds."""
    work, longest = sum(need.gpu_s for need in each), max(need.seconds for need in each)
    if at_once := state.app_specs[a].at_once:
        longest = max(longest, sum(need.seconds for need in each) / at_once)
    return Need(work, longest)


def spent(state: State, j: int, begin: float, upto: float, *, here: bool = False) -> Need:
    """Cost of a job's steps from ``begin`` to ``upto`` on reference GPUs, or ``here``, on the GPUs of its best gang."""
    gpu_s = seconds = 0.0
    job = state.job_specs[j]
    for config, work in stretches(state, j, begin, upto):
        gang = best_gang(state, config, int(state.jobs.gpus_min[j]), int(state.jobs.gpus_max[j]), job.gpu_types)
        takes = work / (gang.rate if here else gang.speedup)
        seconds += takes
        gpu_s += takes * gang.gpus
    return Need(gpu_s, seconds)


def stretches(state: State, j: int, begin: float, upto: float) -> Iterator[tuple[int, GpuSeconds]]:
    """(row of the speed table, reference GPU-seconds) of a job's steps from ``begin`` to ``upto``, batch size by batch size."""
    job, at = state.job_specs[j], 0.0
    for regime in state.regimes[j]:
        steps = min(at + regime.steps, upto) - max(at, begin)
        if steps > 0:
            config = state.speeds.index[job.model, regime.batch]
            yield config, steps * float(state.speeds.serial[config]) * job.scale(regime.batch)
        at += regime.steps


def best_gang(state: State, config: int, low: int, high: int, only: tuple[str, ...] = ()) -> Gang:
    """The fastest gang of ``low`` to ``high`` GPUs; where no machine in service can hold one, as if placed best on ``high``."""
    of: dict[tuple[int, int, tuple[str, ...]], Gang] = state.best_gangs.setdefault(config, {})
    if (found := of.get((low, high, only))) is None:
        found = of[low, high, only] = _best_gang(state, config, low, high, only)
    return found


def _best_gang(state: State, config: int, low: int, high: int, only: tuple[str, ...]) -> Gang:
    scale, slowdown = state.speeds.scale[config], state.speeds.slowdown[config]
    may = [k for k, name in enumerate(state.gpu_types) if not only or name in only]
    reach = reach_in_service(state)
    found = [
        (float(scale[k, gpus] / slowdown[place]), -k, gpus, float(scale[k, 1]))
        for k in may
        for gpus, place in _places(scale[k], low, high, reach.get(state.gpu_types[k]))
    ]
    if not any(rate > 0 for rate, *_ in found):
        found = [(float(scale[k, high] / slowdown[Locality.SLOT]), -k, high, float(scale[k, 1])) for k in may]
    rate, _, gpus, one = max(found, default=(0.0, 0, high, 1.0))
    return Gang(gpus, rate / one if rate > 0 and one > 0 else float(gpus), rate or float(gpus))


def reach_in_service(state: State) -> Mapping[str, Reach]:
    """The reach of each GPU type on the machines in service."""
    found: Mapping[str, Reach] | None = state.best_gangs.get(_REACH)
    if found is None:
        up = state.machine_up.tolist()
        found = state.best_gangs[_REACH] = reaches(m for m, there in zip(state.machines, up) if there)
    return found


def _places(scale: Float, low: int, high: int, reach: Reach | None) -> list[tuple[int, Locality]]:
    """``places``, and the fastest gang of each locality, where a wider one may be slower."""
    out = places(low, high, reach)
    if low == high or reach is None:
        return out
    begin = low
    for place, most in enumerate(reach):
        if begin <= (end := min(most, high)):
            out.append((begin + int(scale[begin : end + 1].argmax()), Locality(place)))
            begin = end + 1
    return out


def scaling(state: State, j: int) -> Scaling:
    """Speed of an elastic job over its whole training by GPUs, as part of that with its best gang in each regime.

    At the gangs that pack: up to a machine, and whole machines. Where a wider gang is slower, the job takes the narrower one. Empty
    where speed is in proportion to GPUs.
    """
    low, high = int(state.jobs.gpus_min[j]), int(state.jobs.gpus_max[j])
    if low == high:
        return ()
    reach = reach_in_service(state)
    job, done = state.job_specs[j], float(state.jobs.done[j])
    kinds = [
        k for k, name in enumerate(state.gpu_types) if name in reach and (not job.gpu_types or name in job.gpu_types)
    ]
    parts = list(stretches(state, j, 0.0, done))
    if not kinds or not parts:
        return ()
    kind = max(kinds, key=lambda k: float(state.speeds.scale[parts[-1][0], k, low : high + 1].max()))
    most = reach[state.gpu_types[kind]]
    sizes = np.array(
        sorted({low, *range(low, min(most[1], high) + 1), *range(most[1], min(most[3], high) + 1, most[1])} - {0})
    )
    sizes = sizes[sizes >= low]
    span = np.searchsorted(np.array(most[:3]), sizes)
    seconds, best = np.zeros(len(sizes)), 0.0
    with np.errstate(divide="ignore"):
        for config, work in parts:
            scale = state.speeds.scale[config, kind]
            rate = np.maximum.accumulate(scale[sizes] / state.speeds.slowdown[config, span])
            seconds += work * scale[1] / rate
            best += work / best_gang(state, config, low, high, job.gpu_types).speedup
    part = best / seconds
    if not np.isfinite(part).all() or np.allclose(part / sizes, part[0] / sizes[0]):
        return ()
    widest = int(np.flatnonzero(np.diff(part, prepend=0.0) > 0)[-1]) + 1
    return tuple(zip(sizes[:widest].astype(float).tolist(), part[:widest].tolist()))


class Left(NamedTuple):
    """[A] each.

    ``work`` : reference GPU-seconds left. ``alone`` : seconds on reference GPUs if nobody else is there. ``whole`` : the same of
    all that the app ever needs.
    """

    work: Float
    alone: Float
    whole: Float


def left(state: State, rows: Int) -> Left:
    """Work that apps have left, and how long it takes them alone on the cluster: starts are not counted."""
    t, jobs = state.jobs, state.present()
    of = np.searchsorted(rows, t.app[jobs])
    inside = np.append(rows, NONE)[of] == t.app[jobs]
    jobs, of = jobs[inside], of[inside]
    gpus, speedup = _best_gangs(state, jobs)
    seconds = state.work_left(jobs) / speedup
    for i in np.flatnonzero(t.later[jobs] > 0).tolist():
        need = spent(state, int(jobs[i]), float(state.steps_now(jobs[i : i + 1])[0]), float(t.target[jobs[i]]))
        if need.seconds > 0:
            seconds[i], gpus[i] = need.seconds, need.gpu_s / need.seconds
    bracket = t.bracket[jobs]
    brackets = state.phase_bracket[rows]
    future = state.need[:, rows] * (state.future[0, rows] > 0)
    work = np.bincount(of, weights=seconds * gpus, minlength=len(rows)) + future[0].sum(axis=1)
    now = np.zeros((len(rows), int(brackets.max(initial=0)) + 1))
    np.maximum.at(now, (of, bracket), seconds)
    limit = np.array([state.at_once.get(a, 0) for a in rows.tolist()]) if state.at_once else np.zeros(len(rows))
    if limit.any():
        rounds = np.bincount(of, weights=seconds, minlength=len(rows)) / np.maximum(limit, 1)
        now[:, 0] = np.where(limit > 0, np.maximum(now[:, 0], rounds), now[:, 0])
    total = max(state.capacity, 1.0)
    alone = np.maximum((now + by_bracket(future[1], brackets)).max(axis=1), work / total)
    gpu_s, longest = state.need[:, rows]
    whole = np.maximum(by_bracket(longest, brackets).max(axis=1), gpu_s.sum(axis=1) / total)
    return Left(work, alone, whole)


def _best_gangs(state: State, jobs: Int) -> tuple[Float, Float]:
    """GPUs and speedup of each job's best gang at its present batch size; looked up once for each job and batch size."""
    t = state.jobs
    known: Float | None = state.best_gangs.get(_ROWS)
    if known is None or known.shape[1] < t.size:
        known = state.best_gangs[_ROWS] = np.full((3, len(t.config)), float(NONE))
    config = t.config[jobs]
    for i in np.flatnonzero(known[0, jobs] != config).tolist():
        j = int(jobs[i])
        types = state.job_specs[j].gpu_types if state.restricted else ()
        found = best_gang(state, int(config[i]), int(t.gpus_min[j]), int(t.gpus_max[j]), types)
        known[:, j] = config[i], found[0], found[1]
    gpus, speedup = known[1:, jobs]
    return gpus, speedup


def by_bracket(seconds: Float, bracket: Int) -> Float:
    """Seconds of each bracket one phase after the other, [A, brackets]."""
    if bracket.shape[1] == 1 and not bracket.any():
        return seconds
    return np.stack(
        [np.where(bracket == b, seconds, 0.0).sum(axis=1) for b in range(int(bracket.max(initial=0)) + 1)], axis=1
    )


class _Run(NamedTuple):
    """Steps of a job that are run in one piece: of one rung, or all."""

    seconds: Seconds
    job: int
    begin: float
    upto: float
    bracket: int


def alone_s(state: State, a: int) -> Seconds:
    """Seconds that an app that ended takes alone on the idle cluster: jobs longest first, each placed best, with its starts.

    Jobs that find no room wait until others end. Elastic gangs that do not fit side by side share all GPUs freely.
    """
    line = _course(state, a)
    if sum(len(rung) for rungs in line for rung in rungs) == 1:
        return state.settings.container_s + line[0][0][0].seconds
    t, jobs = state.jobs, state.app_jobs(a)
    freely, listed = _shared(state, a, line), _listed(state, a, line)
    if (t.gpus_min[jobs] < t.gpus_max[jobs]).any() or not np.isfinite(listed):
        return min(freely, listed)
    return listed


def _course(state: State, a: int) -> list[list[list[_Run]]]:
    """By bracket and rung: what the app's jobs did, longest first."""
    jobs, t = state.app_jobs(a).tolist(), state.jobs.one
    brackets = brackets_of(state.app_specs[a].tuner)
    if not brackets:
        return [
            [
                sorted(
                    (_Run(spent(state, j, 0.0, t.done[j], here=True).seconds, j, 0.0, t.done[j], 0) for j in jobs),
                    reverse=True,
                )
            ]
        ]
    out = []
    for b, bracket in enumerate(brackets):
        rungs = []
        for r in range(len(bracket.rungs)):
            begin = Halving(rungs=bracket.rungs[:r]).steps if r else 0.0
            most = Halving(rungs=bracket.rungs[: r + 1]).steps
            there = [(j, min(most, t.done[j])) for j in jobs if t.bracket[j] == b and t.rung[j] >= r]
            runs = (_Run(spent(state, j, begin, upto, here=True).seconds, j, begin, upto, b) for j, upto in there)
            rungs.append(sorted(runs, reverse=True))
        out.append([rung for rung in rungs if rung])
    return [rungs for rungs in out if rungs]


def _start_s(state: State, run: _Run) -> Seconds:
    """A start; a job that ran before loads its checkpoint."""
    again = float(state.speeds.checkpoint_s[state.jobs.config[run.job]]) if run.begin > 0 else 0.0
    return state.settings.container_s + again


def _shared(state: State, a: int, line: list[list[list[_Run]]]) -> Seconds:
    """All GPUs shared freely, rung after rung."""
    total, alone, work = max(state.capacity, 1.0), 0.0, 0.0
    for rungs in line:
        seconds = 0.0
        for rung in rungs:
            needs = [spent(state, run.job, run.begin, run.upto, here=True) for run in rung]
            both = _together(state, a, needs)
            seconds += max(both.seconds, both.gpu_s / total) + max(_start_s(state, run) for run in rung)
            work += both.gpu_s
        alone = max(alone, seconds)
    return max(alone, work / total)


def _listed(state: State, a: int, line: list[list[list[_Run]]]) -> Seconds:
    """Each job on the best place that is free, longest first; infinite where one finds none on the idle cluster."""
    free = np.where(state.machine_up, state.machine_size, 0)
    at_once = state.app_specs[a].at_once or state.jobs.size
    ahead = [list(rungs[1:]) for rungs in line]
    row = {rungs[0][0].bracket: i for i, rungs in enumerate(line)}
    open_ = [len(rungs[0]) for rungs in line]
    waiting = sorted((run for rungs in line for run in rungs[0]), reverse=True)
    running: list[tuple[Seconds, int, int, tuple[tuple[int, int], ...]]] = []
    now, number = 0.0, count()
    while waiting or running:
        for run in list(waiting):
            if len(running) >= at_once:
                break
            if (found := _put(state, run, free)) is not None:
                seconds, counts = found
                waiting.remove(run)
                heapq.heappush(running, (now + seconds, next(number), row[run.bracket], counts))
        if not running:
            return np.inf
        now, _, i, counts = heapq.heappop(running)
        for n, gpus in counts:
            free[n] += gpus
        open_[i] -= 1
        if not open_[i] and ahead[i]:
            rung = ahead[i].pop(0)
            open_[i] = len(rung)
            waiting = sorted([*waiting, *rung], reverse=True)
    return now


def _put(state: State, run: _Run, free: Int) -> tuple[Seconds, tuple[tuple[int, int], ...]] | None:
    """Seconds of a run with its start where it is fastest now, and the GPUs that it takes from ``free`` there."""
    t, best = state.jobs.one, None
    job = state.job_specs[run.job]
    parts = list(stretches(state, run.job, run.begin, run.upto))
    config = parts[0][0] if parts else t.config[run.job]
    size = best_gang(state, config, t.gpus_min[run.job], t.gpus_max[run.job], job.gpu_types).gpus
    for k, name in enumerate(state.gpu_types):
        if job.gpu_types and name not in job.gpu_types:
            continue
        found = narrowest(free, state.machine_rack, size, state.machine_type == k)
        if found is None:
            continue
        counts, place = found
        if place <= Locality.MACHINE and size <= state.machine_slot[counts[0][0]]:
            place = Locality.SLOT
        rates = [state.speeds.scale[c, k, size] / state.speeds.slowdown[c, place] for c, _ in parts]
        if any(rate <= 0 for rate in rates):
            continue
        seconds = sum(work / rate for (_, work), rate in zip(parts, rates))
        if best is None or seconds < best[0]:
            best = float(seconds), counts
    if best is None:
        return None
    for n, gpus in best[1]:
        free[n] -= gpus
    return best[0] + _start_s(state, run), best[1]
