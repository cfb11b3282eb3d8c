"""The cheapest way for each job to reach a rate, when GPUs of each pool have a price.

A job reaches rate R at least cost by mixing at most two of its types (or one type and idleness): those next to R on the
lower convex hull of the points (rate, price), with (0, 0). Jobs with the same rates up to a factor share it.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from themis.model.units import NONE, Bool, Float, Int
from themis.optimize.shares.problem import Problem

_TIE = 1e-12


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Points:
    """The points that hulls are wrapped around, before prices: a kind's types, faster ones first, then idleness.

    Attributes
    ----------
    order : [K, C], types by falling rate. ``type_of``, ``rate`` : [K + 1, C], with idleness: ``NONE``, 0.
    rise : [K, K + 1, 1, C], rate of a type beyond that of a point; 1 where it is no faster, and ``behind`` infinite.
    """

    order: Int
    type_of: Int
    rate: Float
    rise: Float
    behind: Float

    @classmethod
    def of(cls, rate: Float) -> Points:
        """Hull points of the rates [C, K]."""
        count, types = rate.shape
        order = np.argsort(-rate, axis=1, kind="stable").T
        points, type_of = np.zeros((types + 1, count)), np.full((types + 1, count), NONE, dtype=np.int64)
        points[:-1], type_of[:-1] = rate[np.arange(count), order], order
        to, start = points[:-1, None, None], points[None, :, None]
        ahead = to > start * (1 + _TIE)
        rise, behind = np.where(ahead, to - start, 1.0), np.where(ahead, 0.0, np.inf)
        return cls(order=order, type_of=type_of, rate=points, rise=rise, behind=behind)


@dataclass(frozen=True, kw_only=True, eq=False)
class Kinds:
    """Jobs grouped by their rates: a job's rates are ``scale`` times those of its kind, whose fastest rate is 1.

    Attributes
    ----------
    rate : [C, K]. ``kind`` : [J]. ``scale`` : [J], steps/s; 0 for jobs that cannot run.
    """

    rate: Float
    kind: Int
    scale: Float

    @cached_property
    def points(self) -> Points:
        """Points shared by the hulls of all prices."""
        return Points.of(self.rate)

    @classmethod
    def of(cls, problem: Problem) -> Kinds:
        """Group the jobs of a problem."""
        scale = problem.fastest
        relative = np.round(problem.rate / np.where(scale > 0, scale, 1.0)[:, None], 15)
        # Sorted by a hash, equal for equal rows; a collision only splits one kind in two.
        key = np.zeros(problem.jobs)
        for k in range(problem.types):
            key += math.sqrt(k + 2.0) * relative[:, k]
        order = np.argsort(key)
        rows = relative[order]
        begins = np.ones(problem.jobs, dtype=bool)
        begins[1:] = (rows[1:] != rows[:-1]).any(axis=1)
        kind = np.empty(problem.jobs, dtype=np.int64)
        kind[order] = np.cumsum(begins) - 1
        return cls(rate=rows[begins], kind=kind, scale=scale)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Needs:
    """Needed relative rates of all jobs, sorted within their kinds, with running sums: many prices are tried on one.

    Attributes
    ----------
    key : [J], rising, 2 kind + rate. ``begin`` : [C], first job of each kind.
    gpus : [J + 1], GPUs of the jobs before. ``work`` : [J + 1], GPUs times rate.
    """

    key: Float
    begin: Int
    gpus: Float
    work: Float

    @classmethod
    def of(cls, kinds: Kinds, need: Float, gpus: Int) -> Needs:
        """Sort relative rates ``need`` [J] in [0, 1]."""
        key = 2.0 * kinds.kind + need
        order = np.argsort(key)
        key, size = key[order], gpus[order].astype(np.float64)
        before, work = np.zeros(len(key) + 1), np.zeros(len(key) + 1)
        np.cumsum(size, out=before[1:])
        np.cumsum(size * need[order], out=work[1:])
        return cls(key=key, begin=np.searchsorted(key, 2.0 * np.arange(len(kinds.rate))), gpus=before, work=work)


@dataclass(frozen=True, kw_only=True, eq=False)
class LowerHull:
    """Lower convex hulls at one price of each type.

    Attributes
    ----------
    knot : [K + 1, C], relative rates of the corners, rising from 0, the last repeated. ``type_of`` : their types, first none.
    slope : [K, C], price of a unit of relative rate between corners. ``kind`` : [J].
    """

    knot: Float
    type_of: Int
    slope: Float
    kind: Int

    def cost(self, need: Float) -> Float:
        """[J], least price of relative rates ``need`` [J] in [0, 1]."""
        low, width, slope = self._segments
        part = np.maximum(need - low, 0.0)
        np.minimum(part, width, out=part)
        part *= slope
        out: Float = part.sum(axis=0)
        return out

    @cached_property
    def _segments(self) -> tuple[Float, Float, Float]:
        """[S, J] of the segments that any job has: lower end, width, slope."""
        width = self.knot[1:] - self.knot[:-1]
        some = width.any(axis=1)
        low, slope = self.knot[:-1][some], self.slope[some]
        return low.take(self.kind, axis=1), width[some].take(self.kind, axis=1), slope.take(self.kind, axis=1)

    def marginal(self, need: Float) -> Float:
        """[J], price of a little more rate than ``need``; infinite for jobs at their fastest."""
        at = self._segment(need * (1 + 1e-9) + 1e-15)
        out: Float = np.where(self._at_top(need), np.inf, self.slope[at, self.kind])
        return out

    def mix(self, need: Float) -> Float:
        """[J, K], shares of time that reach ``need`` at least price."""
        at, types = self._segment(need), len(self.slope)
        here, kinds = at * self.knot.shape[1] + self.kind, self.knot.shape[1]
        knot, type_of = self.knot.ravel(), self.type_of.ravel()
        low, high = knot[here], knot[here + kinds]
        part = np.clip((need - low) / np.where(high > low, high - low, 1.0), 0.0, 1.0)
        # The first column is idleness, which is no type.
        x, first = np.zeros(len(need) * (types + 1)), np.arange(1, len(need) * (types + 1) + 1, types + 1)
        x[first + type_of[here]] = 1.0 - part
        x[first + type_of[here + kinds]] += part
        return x.reshape(-1, types + 1)[:, 1:]

    def _segment(self, need: Float) -> Int:
        """[J], the segment that a rate lies on, the last for the fastest."""
        at = np.zeros(len(need), dtype=np.int64)
        for s in range(1, len(self.slope)):
            low, high = self.knot[s], self.knot[s + 1]
            # Beyond all rates where the segment has no width.
            at += need > np.where(high > low, low, np.inf).take(self.kind)
        return at

    def _at_top(self, need: Float) -> Bool:
        top: Bool = need >= self.knot[-1, self.kind] * (1 - 1e-9)
        return top


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class LowerHulls:
    """LowerHulls at P prices, side by side: arrays as an ``LowerHull`` has them, with an axis of prices before the kinds."""

    knot: Float
    type_of: Int
    slope: Float
    kind: Int

    @classmethod
    def at(cls, kinds: Kinds, type_price: Float) -> LowerHulls:
        """Wrap the points from (0, 0): the next corner is the one with the least slope, the fastest of equals.

        Parameters
        ----------
        type_price : [P, K], of a GPU for all of the time.
        """
        (prices, types), count = type_price.shape, len(kinds.rate)
        size, points = prices * count, kinds.points
        price = np.zeros((types + 1, prices, count))
        price[:-1] = type_price[:, points.order].transpose(1, 0, 2)
        slopes = np.maximum(price[:-1, None] - price[None, :], 0.0)  # [to, from, P, C]
        slopes /= points.rise
        slopes += points.behind
        slopes = slopes.reshape(types, -1)
        knot, slope = np.zeros((types + 1, size)), np.zeros((types, size))
        type_of = np.full((types + 1, size), NONE, dtype=np.int64)
        column, kind = np.arange(size), np.tile(np.arange(count), prices)
        at = np.full(size, types)
        for step in range(types):
            ways = slopes.take(at * size + column, axis=1)
            least = ways.min(axis=0)
            moves = least < np.inf
            if not moves.any():
                knot[step + 1 :], type_of[step + 1 :] = knot[step], type_of[step]
                break
            # The first of equals is the fastest.
            at = np.where(moves, (ways <= least * (1 + _TIE) + 1e-300).argmax(axis=0), at)
            there = at * count + kind
            knot[step + 1], type_of[step + 1] = points.rate.take(there), points.type_of.take(there)
            slope[step] = np.where(moves, least, 0.0)
        return cls(
            knot=knot.reshape(-1, prices, count),
            type_of=type_of.reshape(-1, prices, count),
            slope=slope.reshape(-1, prices, count),
            kind=kinds.kind,
        )

    def one(self, i: int) -> LowerHull:
        """The hull at one of the prices."""
        return LowerHull(knot=self.knot[:, i], type_of=self.type_of[:, i], slope=self.slope[:, i], kind=self.kind)

    def pick(self, rows: Int) -> LowerHulls:
        """Hulls at some of the prices."""
        knot, type_of, slope = self.knot[:, rows], self.type_of[:, rows], self.slope[:, rows]
        return LowerHulls(knot=knot, type_of=type_of, slope=slope, kind=self.kind)

    def with_more(self, more: LowerHulls) -> LowerHulls:
        """Add these hulls."""
        return LowerHulls(
            knot=np.concatenate([self.knot, more.knot], axis=1),
            type_of=np.concatenate([self.type_of, more.type_of], axis=1),
            slope=np.concatenate([self.slope, more.slope], axis=1),
            kind=self.kind,
        )

    def uses(self, needs: Needs) -> Float:
        """[P, K], GPUs of each type that all jobs use together at least price: what ``mix`` adds up to."""
        segments, prices, kinds = self.slope.shape
        at = np.empty(self.knot.shape, dtype=np.int64)
        at[0] = needs.begin  # all jobs of the kind, those at 0 too
        at[1:] = np.searchsorted(needs.key, self.knot[1:] + 2.0 * np.arange(kinds), side="right")
        before, work, low = needs.gpus[at], needs.work[at], self.knot[:-1]
        gpus, wide = before[1:] - before[:-1], self.knot[1:] - low
        part = (work[1:] - work[:-1] - low * gpus) / np.where(wide > 0, wide, np.inf)
        part = np.minimum(np.maximum(part, 0.0), gpus)
        # Cells [P, 1 + K] of prices and types, the first of each no type.
        cell = self.type_of + (1 + (segments + 1) * np.arange(prices))[:, None]
        size = prices * (segments + 1)
        out: Float = np.zeros(size)
        out += np.bincount(cell[:-1].ravel(), weights=(gpus - part).ravel(), minlength=size)
        out += np.bincount(cell[1:].ravel(), weights=part.ravel(), minlength=size)
        return out.reshape(prices, segments + 1)[:, 1:]
