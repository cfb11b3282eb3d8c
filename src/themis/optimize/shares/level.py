"""The highest level at which every job gets the rate that it needs there: the engine behind most of Gavel's policies.

Max-min fairness, water filling, finish-time fairness, makespan and hierarchies all ask: jobs need rates R_j(t) that
rise with a level t; what is the largest t at which valid shares X reach them all? The program has a row for each job,
but only one for each pool that ties jobs together. Given a price for the GPUs of each pool (summing to 1 over the whole
cluster) the jobs decide alone, each on its lower hull, and

    C(p, R) = sum_j least price of R_j  <=  1        for every price p, if and only if R can be reached

so one price that makes R(t) cost more than 1 proves that t is too high. Two loops:

- inside, cutting planes find the price at which R(t) costs most, in as many dimensions as there are pools; their
  master program mixes the jobs' answers to the prices so far into the shares of least utilisation (Dantzig-Wolfe);
- outside, t falls to where that price says R(t) costs exactly 1 (Newton's step for a maximum of functions).

It ends when the mixed shares fit: t is then a bound by the price and reached by the shares. One program with a row for each
job, which HiGHS solves from its last basis, was no quicker for few jobs either (decision 36).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np
from scipy.optimize import brentq

from themis.errors import NotSolved
from themis.model.units import Bool, Float
from themis.optimize.matrix_game import MatrixGame
from themis.optimize.shares.distinct import Reached, highest
from themis.optimize.shares.lower_hull import Kinds, LowerHull, LowerHulls, Needs
from themis.optimize.shares.problem import Need, Problem

FITS = 1e-10
"""Relative overuse of a pool that counts as fitting; shares are scaled down by it."""

_SETTLED = 1e-8
"""Overuse that is taken where rounding ends the search before ``FITS``; the proven gap says so."""

_NOISE = 1e-12
"""Rounding in a cost: full pools may cost this much more than 1."""

_FREE = 1e-9
"""A pool with less than this share of the cluster's worth has price 0."""

_BETWEEN = np.array([0.1, 0.3, 0.6])
"""Interpolation fractions between the best price so far and the matrix game's price, which would overshoot."""

_KEPT = 8
"""Prices kept from one level to the next, in addition to those that the shares are mixed of."""

_PRICES, _LEVELS = 400, 60

DISTINCT = 200
"""Kinds of jobs from which programs over few jobs (``distinct``) are quicker, where half of the jobs are a kind of their own."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Level:
    """The highest level.

    Attributes
    ----------
    level : t, which no shares can exceed by the proof of ``price``, and which ``x`` reaches up to ``FITS``.
    x : Float[J, K], shares that reach R(t).
    price : Float[M], of one GPU; zeros where the ceiling was reached with GPUs to spare.
    marginal : gives Float[J], what a little more rate than R_j(t) would cost at ``price``; 0 where pools of price 0 have it,
        infinite for jobs at their fastest.
    solves : prices tried.
    ties : Bool[J], jobs with several cheapest ways at ``price``; None where it is not known.
    """

    level: float
    x: Float
    price: Float
    marginal: Callable[[], Float]
    solves: int
    ties: Bool | None = None


def highest_level(problem: Problem, need: Need, ceiling: float, floor: float = 0.0) -> Level:
    """The largest t in [floor, ceiling] at which shares exist that give every job ``need(t)``.

    Parameters
    ----------
    need : R(t) [J], continuous and not falling, at most ``problem.fastest`` for t <= ceiling. R(floor) can be reached.

    Raises
    ------
    NotSolved : the prices do not settle.
    """
    kinds = Kinds.of(problem)
    if len(kinds.rate) >= max(DISTINCT, problem.jobs / 2):
        try:
            return _of_distinct(problem, kinds, highest(problem, need, ceiling, floor))
        except NotSolved:
            pass  # below, where needs may leap and pools may be full at any level
    return _LevelSearch(problem, kinds).run(need, ceiling, floor)


def _of_distinct(problem: Problem, kinds: Kinds, found: Reached) -> Level:
    workers = problem.workers
    price = np.divide(found.share, workers, out=np.zeros(len(workers)), where=workers > 0)

    def marginal() -> Float:
        rate = problem.throughput(found.x)
        relative = np.divide(rate, kinds.scale, out=np.zeros(len(rate)), where=kinds.scale > 0)
        if not price.any():
            return np.where(relative >= 1 - 1e-9, np.inf, 0.0)
        return LowerHulls.at(kinds, price[None, problem.pool]).one(0).marginal(relative)

    return Level(level=found.level, x=found.x, price=price, marginal=marginal, solves=found.solves, ties=found.ties)


@dataclass(slots=True)
class _Price:
    """One price that was tried, with the jobs' hulls at it."""

    share: Float
    hull: LowerHull


@dataclass(slots=True)
class _LevelSearch:
    problem: Problem
    kinds: Kinds
    per_scale: Float = field(init=False)
    """[J], 1 / steps/s of the fastest type; 0 for jobs that cannot run."""
    share: Float = field(init=False)
    """[P, M], prices that were tried and are kept; ``at`` : the jobs' hulls at them."""
    at: LowerHulls = field(init=False)
    basis: list[int] = field(default_factory=list)
    """Basis of the last matrix game, among the prices that are kept."""
    solves: int = 0

    def __post_init__(self) -> None:
        scale = self.kinds.scale
        self.per_scale = np.divide(1.0, scale, out=np.zeros(len(scale)), where=scale > 0)

    def run(self, need: Need, ceiling: float, floor: float) -> Level:
        pools = len(self.problem.workers)
        usable = self.problem.workers > 0
        start = np.where(usable, self.problem.workers, 0.0)
        if not self.problem.active.any():
            nothing = np.zeros((self.problem.jobs, self.problem.types))
            return Level(
                level=ceiling,
                x=nothing,
                price=np.zeros(pools),
                marginal=lambda: np.full(self.problem.jobs, np.inf),
                solves=0,
            )
        self.share = np.vstack([start / start.sum(), np.eye(pools)[usable]])
        self.at = self._priced_at(self.share)
        level, binding, stands = ceiling, None, 0
        for _ in range(_LEVELS):
            relative = self._relative(need(level))
            over, x, dual = self._max_cost(relative)
            if over <= 1.0 + (_SETTLED if stands else FITS):
                return self._found(level, x / max(over, 1.0), relative, binding)
            lower = self._lower(need, dual, level, floor)
            if lower <= floor < level and over <= 1.0 + _SETTLED:
                # A pool that is full at any level, and only by rounding more than full, says nothing about this level.
                return self._found(level, x / over, relative, binding)
            if level <= floor and over > 1.0 + _SETTLED:
                raise NotSolved(
                    f"the rates that {self.problem.jobs} jobs need at the least level use {over:.3g} times the GPUs of a pool, "
                    "expected at most 1."
                )
            stands = stands + 1 if lower >= level else 0
            if stands > 1:
                # Needs that leap between one number and the next: a job long late with next to nothing left.
                lower = max(level - 2.0**stands * float(np.spacing(level)), floor)
            # At a level that stands, only rounding makes the rates cost more than 1: another price lowered the level.
            binding = dual if lower < level else binding or dual
            level = lower
        raise NotSolved(f"the level of {self.problem.jobs} jobs did not settle within {_LEVELS} steps.")

    def _found(self, level: float, x: Float, relative: Float, binding: _Price | None) -> Level:
        """The binding price lowered the level last: its cost rises with the level, which the maximum's may not."""
        top = np.where(relative >= 1 - 1e-9, np.inf, 0.0)
        if binding is None:
            price = np.zeros(len(self.problem.workers))
            return Level(level=level, x=x, price=price, marginal=lambda: top, solves=self.solves)
        return self._priced(level, x, relative, binding.share)

    def _priced(self, level: float, x: Float, relative: Float, share: Float) -> Level:
        kinds, pool = self.kinds, self.problem.pool
        price = self._per_gpu(np.where(share > _FREE, share, 0.0))

        def marginal() -> Float:
            return LowerHulls.at(kinds, price[None, pool]).one(0).marginal(relative)

        return Level(level=level, x=x, price=price, marginal=marginal, solves=self.solves)

    def _relative(self, rate: Float) -> Float:
        out: Float = np.minimum(np.maximum(rate * self.per_scale, 0.0), 1.0)
        return out

    def _per_gpu(self, share: Float) -> Float:
        workers = self.problem.workers
        out: Float = share / np.where(workers > 0, workers, 1.0)
        return out

    def _priced_at(self, share: Float) -> LowerHulls:
        """The jobs' hulls at prices [P, M], each given as the share of the cluster's worth in each pool."""
        return LowerHulls.at(self.kinds, self._per_gpu(share)[:, self.problem.pool])

    def _uses(self, at: LowerHulls, needs: Needs) -> Float:
        """[P, M], utilisation of each pool if all jobs answer to a price; what that costs is its product with the price."""
        in_pool = self.problem.pool[:, None] == np.arange(len(self.problem.workers))
        return self._per_gpu(at.uses(needs) @ in_pool)

    def _max_cost(self, relative: Float) -> tuple[float, Float, _Price]:
        """(Least utilisation so far, its shares, the price at which these rates cost most or enough to lower the level)."""
        needs = Needs.of(self.kinds, relative, self.problem.gpus)
        share, at = self.share, self.at
        used = self._uses(at, needs)
        value = (share * used).sum(axis=1)
        master = MatrixGame(used, self.basis)
        repeated = False
        for _ in range(_PRICES):
            self.solves += 1
            over, weight, dual = master.solve()
            best = int(np.argmax(value))
            cost = float(value[best])
            close = over - cost <= FITS or (repeated and over - cost <= _SETTLED)
            if over <= 1.0 + FITS or close or (cost > 1.0 + FITS and over - cost <= 0.3 * (cost - 1.0)):
                x = self._mixed(at, weight, relative) if over <= 1.0 + _SETTLED else np.zeros(0)
                mixed = [i for i in master.basis if i >= 0]
                kept = sorted({*mixed, *np.argsort(-value, kind="stable")[:_KEPT].tolist()})
                self.share, self.at = share[kept], at.pick(np.array(kept))
                self.basis = [kept.index(i) if i >= 0 else i for i in master.basis]
                return over, x, _Price(share=share[best], hull=at.one(best))
            repeated = bool((np.abs(share - dual) <= 1e-13).all(axis=1).any())
            more = np.vstack([dual, share[best] + _BETWEEN[:, None] * (dual - share[best])])
            there = self._priced_at(more)
            used = self._uses(there, needs)
            share, at = np.vstack([share, more]), at.with_more(there)
            value = np.append(value, (more * used).sum(axis=1))
            master.add(used)
        raise NotSolved(f"prices of {len(self.problem.workers)} pools did not settle within {_PRICES} tries.")

    def _mixed(self, at: LowerHulls, weight: Float, relative: Float) -> Float:
        x = np.zeros((self.problem.jobs, self.problem.types))
        for i in np.flatnonzero(weight > 0).tolist():
            x += weight[i] * at.one(i).mix(relative)
        return x / float(weight.sum())

    def _lower(self, need: Need, price: _Price, level: float, floor: float) -> float:
        """The level at which the rates cost exactly 1 at a price, clipped to between the floor and the level."""
        gpus = self.problem.gpus.astype(np.float64)

        def beyond(t: float) -> float:
            return float(price.hull.cost(self._relative(need(t))) @ gpus) - 1.0 - _NOISE

        ends = {floor: beyond(floor), level: beyond(level)}
        if ends[floor] >= 0.0:
            return floor
        if ends[level] <= 0.0:
            return level
        root = brentq(
            lambda t: ends[t] if t in ends else beyond(t), floor, level, xtol=1e-18 * level, maxiter=1000, rtol=1e-14
        )
        return float(root)
