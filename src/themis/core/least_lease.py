"""Leases that are never shorter than a start and a few steps, so that every lease makes progress (decision 120).

Measured job by job from what executors report: a start takes from the grant to the first report of a new step; a step what lies
between that report and later ones. A gang that was stopped before it reported any needs at least twice as long. Off with
``least_steps`` 0, as in the papers, whose leases are far longer than a start.
"""

from __future__ import annotations

from typing import NamedTuple

from themis.core.placed_gangs import Placed
from themis.core.state import State
from themis.model.events import LeastLease
from themis.model.units import Seconds

NEWS = 0.25
"""Share by which a measurement differs from the one in force to replace it."""
LONGEST_S: Seconds = 600.0
"""A least lease is no longer than this, or than the setting ``lease_s``; a job that had one and made no step has none then."""


class Start(NamedTuple):
    """A job's starts, as far as they are known; a plain tuple in checkpoints.

    Attributes
    ----------
    granted, base : time of its present or latest attempt's grant, and steps done then.
    first, steps : time and steps of that attempt's first report of a new step; 0 before.
    start_s, step_s : measured seconds of a start and of a step; 0 while unknown.
    silent : 1 if it had the longest least lease and reported no step, else 0.
    """

    granted: Seconds
    base: float
    first: Seconds = 0.0
    steps: float = 0.0
    start_s: Seconds = 0.0
    step_s: Seconds = 0.0
    silent: float = 0.0


def granted(s: State, j: int) -> None:
    """An attempt begins now."""
    if s.settings.least_steps:
        known = Start(*s.starts.get(j, (0.0, 0.0)))
        s.starts[j] = known._replace(granted=s.now, base=float(s.jobs.done[j]), first=0.0, steps=0.0)


def reported(s: State, j: int, steps: float) -> list[LeastLease]:
    """The attempt that runs has done these steps: what is learned from it."""
    if j not in s.starts:
        return []
    known = Start(*s.starts[j])
    if steps <= known.base:
        return []
    if not known.first:
        s.starts[j] = known = known._replace(first=s.now, steps=steps, silent=0.0)
        return _learn(s, j, known, s.now - known.granted, known.step_s)
    if steps <= known.steps:
        return []
    return _learn(s, j, known, known.start_s, (s.now - known.first) / (steps - known.steps))


def stopped(s: State, j: int, steps: float) -> list[LeastLease]:
    """A gang was stopped for others, with these steps saved: without a new one the start takes longer than its lease."""
    if j not in s.starts:
        return []
    known = Start(*s.starts[j])
    if known.first or steps > known.base or known.silent:
        return []
    if s.now - known.granted >= _longest_s(s):
        s.starts[j] = known._replace(start_s=0.0, silent=1.0)
        return [LeastLease(job=j, start_s=0.0, step_s=known.step_s, least_s=0.0)] if known.start_s else []
    return _learn(s, j, known, max(known.start_s, 2 * (s.now - known.granted)), known.step_s)


def least_s(s: State, j: int) -> Seconds:
    """Seconds that a job's next lease lasts at least; 0 while nothing is known, and of a silent job."""
    known = Start(*s.starts.get(j, (0.0, 0.0)))
    return 0.0 if known.silent else min(known.start_s + s.settings.least_steps * known.step_s, _longest_s(s))


def _longest_s(s: State) -> Seconds:
    return max(s.settings.lease_s, LONGEST_S)


def long_enough(s: State, placed: list[Placed]) -> list[Placed]:
    """The same gangs; leases of those that start, or have not reported a step since they did, last long enough for some."""
    if not s.starts:
        return placed
    return [p if (end := _earliest(s, p)) <= p.until else p._replace(until=end) for p in placed]


def _earliest(s: State, p: Placed) -> Seconds:
    known = s.starts.get(p.job)
    if known is None:
        return p.until
    start = Start(*known)
    stays = s.job_gpus.get(p.job) == p.gpus and s.job_seat[p.job] == p.seat
    if stays and start.first:
        return p.until
    return (start.granted if stays else s.now) + least_s(s, p.job)


def _learn(s: State, j: int, known: Start, start_s: Seconds, step_s: Seconds) -> list[LeastLease]:
    news = any(abs(new - old) > NEWS * old for new, old in ((start_s, known.start_s), (step_s, known.step_s)))
    if not news:
        return []
    s.starts[j] = known._replace(start_s=start_s, step_s=step_s)
    return [LeastLease(job=j, start_s=start_s, step_s=step_s, least_s=least_s(s, j))]
