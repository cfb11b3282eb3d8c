"""Hierarchies of entities by filling: Gavel §4.3, to any depth.

The cluster's normalised effective throughput flows in at the root. An entity passes what it gets on to its members by
its own rule; a member that cannot grow any more (a bottleneck) passes its part on within its entity, and an entity
whose members are all stuck within its parent:

    fairness               in proportion to weights
    fifo                   to the first member that has room
    finish_time_fairness   to jobs only: as their worst rho falls fastest, that is, all at one rho, or as low as they can

The third is left open by the paper.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Protocol

import numpy as np
from scipy.optimize import brentq

from themis.errors import InputError
from themis.model.units import Float, Int
from themis.optimize.shares.filling import Fill, Growth, water_fill
from themis.optimize.shares.problem import Problem, Shares
from themis.policies.gavel.finish_time_shares import JobsProgress, needed
from themis.policies.gavel.max_min import normalised_unit


class SharingRule(StrEnum):
    """Rule by which an entity shares between its members."""

    FAIRNESS = "fairness"
    FIFO = "fifo"
    FINISH_TIME_FAIRNESS = "finish_time_fairness"


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Entity:
    """An entity with either entities or jobs as members.

    Attributes
    ----------
    members : entities, in order of precedence under fifo; () if its members are jobs.
    jobs : rows of jobs, in order of arrival; empty if its members are entities.
    weight : > 0, within its parent.
    """

    name: str
    rule: SharingRule = SharingRule.FAIRNESS
    weight: float = 1.0
    members: tuple[Entity, ...] = ()
    jobs: Int

    def __post_init__(self) -> None:
        if not self.weight > 0:
            raise InputError(f"entity {self.name!r} has weight {self.weight}, expected a number above 0.")
        if self.members and len(self.jobs):
            raise InputError(f"entity {self.name!r} has both entities and jobs as members, expected one kind.")
        if self.members and self.rule is SharingRule.FINISH_TIME_FAIRNESS:
            raise InputError(
                f"entity {self.name!r} shares between entities by finish_time_fairness, which is for jobs only."
            )


def hierarchical(problem: Problem, root: Entity, weight: Float, progress: JobsProgress | None = None) -> Shares:
    """Fill the hierarchy.

    Parameters
    ----------
    weight : [J], of jobs within their entity; > 0.
    progress : needed where an entity's rule is finish_time_fairness.

    Returns
    -------
    Shares, with the normalised throughput of all jobs when the first pool was full as objective and as bound: up to
    there the hierarchy's rules are met to the letter.
    """
    unit = np.where(problem.active, normalised_unit(problem), 1.0)
    found = water_fill(problem, unit, growth(root, weight, unit, progress))
    total = float(found.first.sum())
    return Shares(x=found.x, objective=total, bound=total, price=found.price)


def growth(root: Entity, weight: Float, unit: Float, progress: JobsProgress | None = None) -> Growth:
    """Growth of the jobs of a hierarchy; the level is what flows into the root."""

    def grow(base: Float, room: Float) -> tuple[Fill, float]:
        flow = _flow(root, weight, unit, progress, base, room)

        def fill(level: float) -> Float:
            out = np.zeros(len(room))
            flow.pour(level, out)
            return out

        return fill, flow.room

    return grow


class _Flow(Protocol):
    room: float

    def pour(self, volume: float, out: Float) -> None:
        """Add what members get of a volume in [0, room]."""


def _flow(entity: Entity, weight: Float, unit: Float, progress: JobsProgress | None, base: Float, room: Float) -> _Flow:
    if entity.members:
        inner = [_flow(e, weight, unit, progress, base, room) for e in entity.members]
        rooms = np.array([flow.room for flow in inner])
        return _Entities(inner, _divider(entity.rule, np.array([e.weight for e in entity.members]), rooms))
    at = entity.jobs
    if entity.rule is SharingRule.FINISH_TIME_FAIRNESS:
        if progress is None:
            raise InputError(f"entity {entity.name!r} shares by finish_time_fairness, which needs the jobs' progress.")
        mine = JobsProgress(
            left=progress.left[at],
            elapsed=progress.elapsed[at],
            isolated_elapsed=progress.isolated_elapsed[at],
            isolated_rate=progress.isolated_rate[at],
        )
        # A job of weight w has w shares: its rho may be as much less than that of a job of mean weight.
        allowed = weight[at].mean() / weight[at] if len(at) else weight[at]
        return _RemainingJobs(at, _OneRho(mine, allowed, unit[at], base[at], room[at]))
    return _RemainingJobs(at, _divider(entity.rule, weight[at], room[at]))


class _Divider(Protocol):
    room: float

    def split(self, volume: float) -> Float:
        """Part of a volume that each member gets."""


def _divider(rule: SharingRule, weight: Float, room: Float) -> _Divider:
    return _InOrder(room) if rule is SharingRule.FIFO else _ByWeight(weight, room)


class _Entities:
    def __init__(self, inner: Sequence[_Flow], divider: _Divider) -> None:
        self._inner, self._divider, self.room = inner, divider, divider.room

    def pour(self, volume: float, out: Float) -> None:
        for flow, part in zip(self._inner, self._divider.split(volume).tolist()):
            flow.pour(part, out)


class _RemainingJobs:
    def __init__(self, jobs: Int, divider: _Divider) -> None:
        self._jobs, self._divider, self.room = jobs, divider, divider.room

    def pour(self, volume: float, out: Float) -> None:
        out[self._jobs] += self._divider.split(volume)


class _InOrder:
    """The first with room takes it."""

    def __init__(self, room: Float) -> None:
        self._each, self._before = room, np.cumsum(room) - room
        self.room = float(room.sum())

    def split(self, volume: float) -> Float:
        return np.clip(volume - self._before, 0.0, self._each)


class _ByWeight:
    """Proportional to weights; a full member passes its part on."""

    def __init__(self, weight: Float, room: Float) -> None:
        self._weight, self._each = weight, room
        full_at = np.sort(room / weight)
        order = np.argsort(room / weight, kind="stable")
        self._filled = np.concatenate([[0.0], np.cumsum(room[order])])
        self._rising = float(weight.sum()) - np.concatenate([[0.0], np.cumsum(weight[order])])
        self._volume = self._filled[:-1] + full_at * self._rising[:-1]
        self.room = float(room.sum())

    def split(self, volume: float) -> Float:
        i = int(np.searchsorted(self._volume, volume))
        if i >= len(self._volume):
            return self._each
        theta = (volume - self._filled[i]) / max(self._rising[i], 1e-300)
        out: Float = np.minimum(self._weight * theta, self._each)
        return out


class _OneRho:
    """Divider that gives jobs one common rho, within their room and above what they have."""

    def __init__(self, progress: JobsProgress, weight: Float, unit: Float, base: Float, room: Float) -> None:
        self._base, self._each, self._unit = base, room, unit
        self._need = needed(progress, weight, (progress.isolated_rate > 0).astype(np.float64))
        self.room = float(room.sum())
        rate = (base + room) * unit
        some = rate > 0
        seconds = progress.elapsed[some] + progress.left[some] / rate[some]
        self._best = float((weight[some] * progress.alone()[some] / seconds).max(initial=0.0))

    def split(self, volume: float) -> Float:
        if volume >= self.room:
            return self._each
        if volume <= 0.0:
            return np.zeros_like(self._each)
        top = self._at(self._best)
        if (rest := volume - float(top.sum())) >= 0.0:  # every job is at its best possible value, up to rounding
            short = self._each - top
            return top + short * min(rest / max(float(short.sum()), 1e-300), 1.0)
        sigma = brentq(
            lambda s: float(self._at(s).sum()) - volume, 0.0, self._best, xtol=1e-300, rtol=1e-14, maxiter=1000
        )
        return self._at(float(sigma))

    def _at(self, sigma: float) -> Float:
        return np.clip(self._need(sigma) / self._unit - self._base, 0.0, self._each)
