"""The highest level at which every job gets the rate that it needs there: the engine behind most of Gavel's policies.

Max-min fairness, water filling, finish-time fairness, makespan and hierarchies all ask: jobs need rates R_j(t) that
rise with a level t; what is the largest t at which valid shares X reach them all? The program has a row for each job,
but only one for each pool that ties jobs together. Given a price for the GPUs of each pool (summing to 1 over the whole
cluster) the jobs decide alone, each on its ``envelope``, and

    C(p, R) = sum_j least price of R_j  <=  1        for every price p, if and only if R can be reached

so one price that makes R(t) cost more than 1 proves that t is too high. Two loops:

- inside, cutting planes find the price at which R(t) costs most, in as many dimensions as there are pools; their
  master program mixes the jobs' answers to the prices so far into the shares of least utilisation (Dantzig-Wolfe);
- outside, t falls to where that price says R(t) costs exactly 1 (Newton's step for a maximum of functions).

It ends when the mixed shares fit: t is then a bound by the price and reached by the shares. Where jobs are few, one
program over all of them (``direct``) takes the place of the inner loop, and of both where needs are straight lines.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np
from scipy.optimize import brentq

from themis.errors import NotSolved
from themis.gavel.direct import CELLS, LeastUse
from themis.gavel.envelope import Envelope, Kinds, Needs, uses
from themis.gavel.problem import Line, Need, Problem
from themis.model.units import NONE, Float
from themis.solvers.mixture import Mixture

FITS = 1e-10
"""Relative overuse of a pool that counts as fitting; shares are scaled down by it."""

_SETTLED = 1e-8
"""Overuse that is taken where rounding ends the search before ``FITS``; the proven gap says so."""

_NOISE = 1e-12
"""Rounding in a cost: what full pools cost may come out so much above 1."""

_FREE = 1e-9
"""A pool with less than this share of the cluster's worth has price 0."""

_CROWDED = 0.75
"""GPUs wanted over GPUs there from which few jobs come to their end: below, the search from above takes fewer programs."""

_PRICES, _LEVELS = 400, 60


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Level:
    """The highest level.

    Attributes
    ----------
    level : t, which no shares can exceed by the proof of ``price``, and which ``x`` reaches but for ``FITS``.
    x : Float[J, K], shares that reach R(t).
    price : Float[M], of one GPU; zeros where the ceiling was reached with GPUs to spare.
    marginal : gives Float[J], what a little more rate than R_j(t) would cost; infinite for jobs at their fastest.
    solves : prices tried.
    """

    level: float
    x: Float
    price: Float
    marginal: Callable[[], Float]
    solves: int


def highest_level(problem: Problem, need: Need, ceiling: float, floor: float = 0.0) -> Level:
    """The largest t in [floor, ceiling] at which shares exist that give every job ``need(t)``.

    Parameters
    ----------
    need : R(t) [J], continuous and not falling, at most ``problem.fastest`` for t <= ceiling. R(floor) can be reached.

    Raises
    ------
    NotSolved : the prices do not settle.
    """
    return _Search(problem).run(need, ceiling, floor)


@dataclass(slots=True)
class _Price:
    """One price that was tried, with the jobs' envelopes at it."""

    share: Float
    envelope: Envelope


@dataclass(slots=True)
class _Search:
    problem: Problem
    kinds: Kinds = field(init=False)
    per_scale: Float = field(init=False)
    """[J], 1 / steps/s of the fastest type; 0 for jobs that cannot run."""
    tried: list[_Price] = field(default_factory=list)
    direct: LeastUse | None = None
    solves: int = 0

    def __post_init__(self) -> None:
        few = np.count_nonzero(self.problem.rate) <= CELLS
        self.kinds = Kinds.single(self.problem) if few else Kinds.of(self.problem)
        if few and self.problem.active.any():
            self.direct = LeastUse(self.problem, self.kinds.scale)
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
        if self.direct is not None and isinstance(need, Line) and (found := self._straight(need, ceiling)) is not None:
            return found
        if self.direct is None:
            self._try(start / start.sum())
            for m in np.flatnonzero(usable):
                self._try(np.eye(pools)[m])
        level, binding, stands = ceiling, NONE, False
        for _ in range(_LEVELS):
            relative = self._relative(need(level))
            over, x, dearest = self._least_use(relative) if self.direct else self._dearest(relative)
            if over <= 1.0 + (_SETTLED if stands else FITS):
                return self._found(level, x / max(over, 1.0), relative, binding)
            lower = self._lower(need, dearest, level, floor)
            level, binding, stands = lower, dearest, lower >= level
        raise NotSolved(f"the level of {self.problem.jobs} jobs did not settle within {_LEVELS} steps.")

    def _found(self, level: float, x: Float, relative: Float, binding: int) -> Level:
        """The binding price is the one that lowered the level last: it rises with the level, as the dearest may not."""
        top = np.where(relative >= 1 - 1e-9, np.inf, 0.0)
        if binding == NONE:
            price = np.zeros(len(self.problem.workers))
            return Level(level=level, x=x, price=price, marginal=lambda: top, solves=self.solves)
        return self._priced(level, x, relative, self.tried[binding].share)

    def _priced(self, level: float, x: Float, relative: Float, share: Float) -> Level:
        kinds, pool = self.kinds, self.problem.pool

        def marginal() -> Float:
            return Envelope.at(kinds, self._per_gpu(share)[pool]).marginal(relative)

        price = self._per_gpu(np.where(share > _FREE, share, 0.0))
        return Level(level=level, x=x, price=price, marginal=marginal, solves=self.solves)

    def _straight(self, need: Line, ceiling: float) -> Level | None:
        """One program for needs in straight lines, and another whenever some have come to their end by the level found."""
        assert self.direct is not None
        if self.problem.gpus.sum() < _CROWDED * self.problem.workers.sum():
            return None
        self.solves += 1
        per = self.per_scale
        found = self.direct.highest(need.base * per, need.slope * per, self._relative(need.top))
        if found is None or found.bound > ceiling:
            return None
        over = float(self._per_gpu(self.problem.usage(found.x)).max())
        if found.bound - found.level > FITS * found.bound or over > 1.0 + FITS:
            return None
        return self._priced(found.bound, found.x / max(over, 1.0), self._relative(need(found.bound)), found.worth)

    def _relative(self, rate: Float) -> Float:
        out: Float = np.minimum(np.maximum(rate * self.per_scale, 0.0), 1.0)
        return out

    def _per_gpu(self, share: Float) -> Float:
        workers = self.problem.workers
        out: Float = share / np.where(workers > 0, workers, 1.0)
        return out

    def _try(self, share: Float) -> int:
        """Note a price, given as the share of the cluster's worth in each pool."""
        self.tried.append(
            _Price(share=share, envelope=Envelope.at(self.kinds, self._per_gpu(share)[self.problem.pool]))
        )
        return len(self.tried) - 1

    def _cost(self, i: int, relative: Float) -> float:
        return float(self.tried[i].envelope.cost(relative) @ self.problem.gpus)

    def _uses(self, prices: list[_Price], needs: Needs) -> Float:
        """[P, M], utilisation of each pool if all jobs answer to a price; what that costs is its product with the price."""
        by_type = uses([price.envelope for price in prices], needs)
        in_pool = self.problem.pool[:, None] == np.arange(len(self.problem.workers))
        out: Float = (by_type @ in_pool) / np.where(self.problem.workers > 0, self.problem.workers, 1.0)
        return out

    def _least_use(self, relative: Float) -> tuple[float, Float, int]:
        """The same as ``_dearest``, in one program."""
        assert self.direct is not None
        self.solves += 1
        over, x, share = self.direct.solve(relative)
        return over, x, self._try(share) if over > 1.0 + FITS else NONE

    def _dearest(self, relative: Float) -> tuple[float, Float, int]:
        """The price at which these rates cost most, or one that is dear enough: (least utilisation so far, its shares, i)."""
        pools = len(self.problem.workers)
        needs = Needs.of(self.kinds, relative, self.problem.gpus)
        used, shares = self._uses(self.tried, needs), np.array([price.share for price in self.tried])
        values = (shares * used).sum(axis=1).tolist()
        master = Mixture(used)
        best, repeated = int(np.argmax(values)), False
        for _ in range(_PRICES):
            self.solves += 1
            over, weight, worth = master.solve()
            dear = values[best]
            close = over - dear <= FITS or (repeated and over - dear <= _SETTLED)
            if over <= 1.0 + FITS or close or (dear > 1.0 + FITS and over - dear <= 0.3 * (dear - 1.0)):
                x = self._mixed(weight, relative) if over <= 1.0 + _SETTLED else np.zeros(0)
                return over, x, best
            i = self._try(worth)
            repeated = bool((np.abs(shares - worth) <= 1e-13).all(axis=1).any())
            shares = np.vstack([shares, worth])
            use = self._uses(self.tried[i:], needs)[0]
            values.append(float(worth @ use))
            if values[i] > values[best]:
                best = i
            master.add(use)
        raise NotSolved(f"prices of {pools} pools did not settle within {_PRICES} tries.")

    def _mixed(self, weight: Float, relative: Float) -> Float:
        x = np.zeros((self.problem.jobs, self.problem.types))
        for i in np.flatnonzero(weight > 0):
            x += weight[i] * self.tried[i].envelope.mix(relative)
        return x / float(weight.sum())

    def _lower(self, need: Need, i: int, level: float, floor: float) -> float:
        """Where the rates cost exactly 1 at price i, or the floor."""
        if self._cost(i, self._relative(need(floor))) >= 1.0 + _NOISE:
            return floor
        root = brentq(
            lambda t: self._cost(i, self._relative(need(t))) - 1.0 - _NOISE,
            floor,
            level,
            xtol=1e-18 * level,
            maxiter=1000,
            rtol=1e-14,
        )
        return float(root)
