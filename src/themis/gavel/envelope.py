"""The cheapest way for each job to reach a rate, when GPUs of each pool have a price.

A job reaches rate R at least cost by mixing at most two of its types (or one type and idleness): those next to R on the
lower convex envelope of the points (rate, price), with (0, 0). Jobs with the same rates up to a factor share it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from themis.gavel.problem import Problem
from themis.model.units import NONE, Bool, Float, Int

_TIE = 1e-12


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Kinds:
    """Jobs grouped by their rates: a job's rates are ``scale`` times those of its kind, whose fastest is 1.

    Attributes
    ----------
    rate : [C, K]. ``kind`` : [J]. ``scale`` : [J], steps/s; 0 for jobs that cannot run.
    """

    rate: Float
    kind: Int
    scale: Float

    @classmethod
    def of(cls, problem: Problem) -> Kinds:
        """Group the jobs of a problem."""
        scale = problem.fastest
        relative = np.round(problem.rate / np.where(scale > 0, scale, 1.0)[:, None], 15)
        rate, kind = np.unique(relative, axis=0, return_inverse=True)
        return cls(rate=rate, kind=kind.reshape(-1), scale=scale)

    @classmethod
    def single(cls, problem: Problem) -> Kinds:
        """Every job a kind of its own: for few jobs, where grouping takes longer than it saves."""
        scale = problem.fastest
        relative = problem.rate / np.where(scale > 0, scale, 1.0)[:, None]
        return cls(rate=relative, kind=np.arange(problem.jobs), scale=scale)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Needs:
    """Needed relative rates of all jobs, sorted within their kinds, with running sums: many prices are tried on one.

    Attributes
    ----------
    key : [J], rising, 2 kind + rate. ``gpus`` : [J + 1], GPUs of the jobs before. ``work`` : [J + 1], GPUs times rate.
    """

    key: Float
    gpus: Float
    work: Float

    @classmethod
    def of(cls, kinds: Kinds, need: Float, gpus: Int) -> Needs:
        """Sort relative rates ``need`` [J] in [0, 1]."""
        key = 2.0 * kinds.kind + need
        order = np.argsort(key)
        size = gpus[order].astype(np.float64)
        return cls(
            key=key[order],
            gpus=np.concatenate([[0.0], np.cumsum(size)]),
            work=np.concatenate([[0.0], np.cumsum(size * need[order])]),
        )


@dataclass(frozen=True, kw_only=True, eq=False)
class Envelope:
    """Lower convex envelopes at one price of each type.

    Attributes
    ----------
    knot : [C, K + 1], relative rates of the corners, rising from 0, the last repeated. ``type_of`` : their types, first none.
    slope : [C, K], price of a unit of relative rate between corners. ``kind`` : [J].
    """

    knot: Float
    type_of: Int
    slope: Float
    kind: Int

    @classmethod
    def at(cls, kinds: Kinds, type_price: Float) -> Envelope:
        """Wrap the points from (0, 0): the next corner is the one with the least slope, the fastest of equals."""
        kind_count, types = kinds.rate.shape
        here, cost = np.zeros(kind_count), np.zeros(kind_count)
        knot, type_of = np.zeros((kind_count, types + 1)), np.full((kind_count, types + 1), NONE, dtype=np.int64)
        slope = np.zeros((kind_count, types))
        rows = np.arange(kind_count)
        for step in range(types):
            ahead = kinds.rate > here[:, None] * (1 + _TIE)
            rise = np.where(ahead, kinds.rate - here[:, None], 1.0)
            steep = np.where(ahead, np.maximum(type_price[None, :] - cost[:, None], 0.0) / rise, np.inf)
            least = steep.min(axis=1)
            moves = np.isfinite(least)
            if not moves.any():
                knot[:, step + 1 :], type_of[:, step + 1 :] = knot[:, [step]], type_of[:, [step]]
                break
            tied = steep <= (least * (1 + _TIE) + 1e-300)[:, None]
            best = np.argmax(np.where(tied, kinds.rate, -1.0), axis=1)
            here = np.where(moves, kinds.rate[rows, best], here)
            cost = np.where(moves, np.maximum(type_price[best], cost), cost)
            knot[:, step + 1] = here
            type_of[:, step + 1] = np.where(moves, best, type_of[:, step])
            slope[:, step] = np.where(moves, least, 0.0)
        return cls(knot=knot, type_of=type_of, slope=slope, kind=kinds.kind)

    def cost(self, need: Float) -> Float:
        """[J], least price of relative rates ``need`` [J] in [0, 1]."""
        low, width, slope = self._segments
        out: Float = (np.minimum(np.maximum(need[:, None] - low, 0.0), width) * slope).sum(axis=1)
        return out

    @cached_property
    def _segments(self) -> tuple[Float, Float, Float]:
        """[J, S] of the segments that any job has: lower end, width, slope."""
        width = self.knot[:, 1:] - self.knot[:, :-1]
        some = width.any(axis=0)
        return self.knot[:, :-1][:, some][self.kind], width[:, some][self.kind], self.slope[:, some][self.kind]

    def marginal(self, need: Float) -> Float:
        """[J], price of a little more rate than ``need``; infinite for jobs at their fastest."""
        at = self._segment(need * (1 + 1e-9) + 1e-15)
        out: Float = np.where(self._at_top(need), np.inf, self.slope[self.kind, at])
        return out

    def mix(self, need: Float) -> Float:
        """[J, K], shares of time that reach ``need`` at least price."""
        at = self._segment(need)
        rows = np.arange(len(need))
        low, high = self.knot[self.kind, at], self.knot[self.kind, at + 1]
        part = np.clip((need - low) / np.where(high > low, high - low, 1.0), 0.0, 1.0)
        x = np.zeros((len(need), self.slope.shape[1] + 1))  # the last column is idleness
        x[rows, self.type_of[self.kind, at]] += 1.0 - part
        x[rows, self.type_of[self.kind, at + 1]] += part
        return x[:, :-1]

    def _segment(self, need: Float) -> Int:
        """[J], the segment that a rate lies on, the last for the fastest."""
        at = np.zeros(len(need), dtype=np.int64)
        for s in range(1, self.slope.shape[1]):
            low, high = self.knot[self.kind, s], self.knot[self.kind, s + 1]
            at += (need > low) & (high > low)
        return at

    def _at_top(self, need: Float) -> Bool:
        top: Bool = need >= self.knot[self.kind, -1] * (1 - 1e-9)
        return top


def uses(envelopes: Sequence[Envelope], needs: Needs) -> Float:
    """[P, K], GPUs of each type that all jobs use together at least price: what ``mix`` adds up to, for many prices."""
    knot = np.stack([e.knot for e in envelopes])
    type_of = np.stack([e.type_of for e in envelopes]) + 1
    prices, kinds, types = len(knot), knot.shape[1], knot.shape[2] - 1
    base = 2.0 * np.arange(kinds)
    at = np.searchsorted(needs.key, base[:, None] + knot, side="right")
    at[:, :, 0] = np.searchsorted(needs.key, base, side="left")  # all jobs of the kind, those at 0 too
    low, wide = knot[:, :, :-1], knot[:, :, 1:] - knot[:, :, :-1]
    before, work = needs.gpus[at], needs.work[at]
    gpus = before[:, :, 1:] - before[:, :, :-1]
    part = (work[:, :, 1:] - work[:, :, :-1] - low * gpus) / np.where(wide > 0, wide, np.inf)
    part = np.minimum(np.maximum(part, 0.0), gpus)
    cell = type_of + (np.arange(prices) * (types + 1))[:, None, None]
    place = np.concatenate([cell[:, :, :-1].ravel(), cell[:, :, 1:].ravel()])
    amount = np.concatenate([(gpus - part).ravel(), part.ravel()])
    out = np.bincount(place, weights=amount, minlength=prices * (types + 1)).astype(np.float64)
    return out.reshape(prices, types + 1)[:, 1:]
