"""Water filling over jobs and pairs: Gavel §4.3 with §3.1's space sharing; flat, it is the lexicographic max-min.

All levels rise until some job cannot follow; the others continue, as in ``filling``. Stuck jobs are found by the
prices that prove a level, for in all shares that do not fall behind it

- a job whose rate is worth something has just the rate that it has;
- time goes only into jobs and pairs that earn their price, so no job is faster than the best of those that it is in.

At least one job is stuck in every round, mostly a pool's users. Needs may differ from job to job; classes are of jobs that are
equal otherwise, and are split only where they cannot be allocated by need.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace

import numpy as np
from scipy.optimize import brentq

from themis.errors import NotSolved
from themis.model.units import NONE, Bool, Float, Int
from themis.optimize.shares.classes import allocate
from themis.optimize.shares.filling import Growth, flat
from themis.optimize.shares.level import highest_level
from themis.optimize.shares.pairs import (
    FIRST,
    GAP,
    MANY,
    Classes,
    PairProgram,
    PairRates,
    PairShares,
    Prices,
    paired_throughput,
    settle,
)
from themis.optimize.shares.partners import OpenPairs, too_dear
from themis.optimize.shares.problem import Need, Problem

_PRESSING = 1e-7
"""Threshold relative to the largest dual among jobs that still rise; anything below is rounding."""

_DEAR = 1e-3
"""A job or pair that costs this much more than it is worth, relatively, is in no shares that keep the level."""

_LOOSE = 1e-8
"""Relative slack that is added to an earlier proof's bound at the start of the next level's search, for rounding."""

_MORE = 1.5
"""Factor by which sharing may raise a level; a guess."""

_BLOCK = 256


def water_fill_paired(problem: Problem, pairs: PairRates, unit: Float) -> PairShares:
    """Shares of jobs and pairs with the lexicographically largest sorted amounts; ``bound`` is of the least amount.

    Parameters
    ----------
    unit : Float[J], rate that counts as an amount of 1; > 0 for jobs that can run.

    Raises
    ------
    NotSolved : columns or levels do not settle.
    """
    found, first = fill_paired(problem, pairs, unit, flat(np.ones(problem.jobs)))
    return replace(found, bound=float(first[problem.active].min())) if problem.active.any() else found


def fill_paired(problem: Problem, pairs: PairRates, unit: Float, grow: Growth) -> tuple[PairShares, Float]:
    """Let all jobs grow from nothing until none can.

    Parameters
    ----------
    unit : Float[J], rate that counts as an amount of 1; > 0 for jobs that can run.
    grow : who grows how fast; ``filling.flat`` or a hierarchy.

    Returns
    -------
    Shares, whose ``bound`` is the highest level up to which all grow as they should, and [J], the amounts there.

    Raises
    ------
    NotSolved : columns or levels do not settle, or a round stops no job.
    """
    amount, first = np.zeros(problem.jobs), None
    if not problem.active.any():
        none = np.zeros((0, problem.types))
        return PairShares(combos=np.zeros((0, 2), np.int64), x=none, throughput=amount, bound=0.0, columns=0), amount
    search, safe, stuck = _ClassSearch(problem, pairs), np.where(problem.active, unit, 1.0), ~problem.active
    top = np.where(problem.active, pairs.fastest(problem) / safe, 0.0)
    while not stuck.all():
        fill, ceiling = grow(amount, np.where(stuck, 0.0, np.maximum(top - amount, 0.0)))
        level, proof = search.run(lambda t: (amount + fill(t)) * safe, ceiling)  # noqa: B023
        amount = amount + fill(level)
        first = (level, amount) if first is None else first
        rises = ~stuck
        if proof is not None:
            pressing = rises * safe * proof.prices.worth[proof.kind]
            rises &= pressing <= _PRESSING * pressing.max()
            if proof.classes is search.classes:
                search.program.close(proof.prices, _DEAR)
            at, program = np.unique(proof.kind[rises]), search.program
            if proof.classes is search.classes and program.partners.open_ is not None:
                left = _fastest_open(problem, proof, at, program.sharers, program.partners.open_)
            else:
                left = _fastest_left(problem, pairs, proof, at)
            top = np.where(rises, np.minimum(top, left[proof.kind] / safe), top)
        rises &= amount < top * (1.0 - GAP)
        if (rises == ~stuck).all():
            raise NotSolved(f"water filling over {problem.jobs} jobs and their pairs: no job is stuck at {level}.")
        stuck = ~rises
        # A level is reached up to GAP: the next round's demand is feasible.
        amount = amount * (1.0 - 3 * GAP)
    assert first is not None
    combos, x, columns = search.combos, search.x, search.program.size
    throughput = paired_throughput(problem, pairs, combos, x)
    return PairShares(combos=combos, x=x, throughput=throughput, bound=first[0], columns=columns), first[1]


@dataclass(frozen=True, slots=True, eq=False)
class _Proof:
    """Prices that prove a level, and their subject: ``kind`` [J] is each job's class."""

    classes: Classes
    kind: Int
    prices: Prices


@dataclass(slots=True)
class _ClassSearch:
    """Levels over classes of jobs that differ only in their needs.

    A program over such classes forgets that each job has limited time: what it proves holds; what it reaches holds if
    every class can be allocated by need. Where one cannot, the jobs that would need more time than there is are split off.
    """

    problem: Problem
    pairs: PairRates
    worth: list[Float] = field(default_factory=list)
    """[J], of a unit of rate by each proof so far; ``total`` : what all rates are worth at most."""
    total: list[float] = field(default_factory=list)
    last: float | None = None
    """The level before."""
    classes: Classes = field(init=False)
    kind: Int = field(init=False)
    program: PairProgram = field(init=False)
    combos: Int = field(init=False)
    x: Float = field(init=False)

    def __post_init__(self) -> None:
        self.classes = Classes.of(self.problem, self.pairs, np.zeros((self.problem.jobs, 0)))
        self.kind = self.classes.kind(self.problem.jobs)
        self.program = PairProgram(self.problem, self.pairs, self.classes, rough=FIRST)

    def run(self, need: Need, level: float) -> tuple[float, _Proof | None]:
        """The highest level from here down, and what proves it, if it fell; ``combos`` and ``x`` reach it."""
        proof, level, fresh = None, self._known(need, level), False
        while True:
            level, proofs = settle(self.program, lambda t: self.classes.mean(need(t)), level, self._guess(need, level))
            for prices in proofs:
                proof = _Proof(self.classes, self.kind, prices)
                self.worth.append(np.where(self.problem.active, prices.worth[self.kind], 0.0))
                self.total.append(prices.total * (1.0 + _LOOSE))
            self.last = level
            short = self._allocate(need(level))
            if not short.any():
                return level, proof
            if len(self.classes.first) == self.problem.active.sum() and not fresh:
                # Each job has its own rows, so only rounding can make it fall short.
                fresh = True
                self.program.program.refresh()
                continue
            self._split(short)

    def _guess(self, need: Need, ceiling: float) -> tuple[float, float] | None:
        """Levels between which that of many classes may be: first from jobs without pairs, then from the round before."""
        if len(self.classes.first) <= MANY:
            return None
        if self.last is not None:
            return 0.0, self.last
        fastest = self.problem.fastest
        try:
            alone = highest_level(self.problem, lambda t: np.minimum(need(t), fastest), ceiling).level
        except NotSolved:
            return None  # it is but a guess
        return alone, _MORE * alone

    def _known(self, need: Need, level: float) -> float:
        """True where the proofs so far, which hold for all shares, show that the level is reached, up to rounding."""
        if not self.worth:
            return level
        worth, total = np.stack(self.worth), np.array(self.total)

        def beyond(t: float) -> float:
            return float((worth @ need(t) - total).max())

        if beyond(0.0) >= 0.0 or beyond(level) <= 0.0:
            return level
        return float(brentq(beyond, 0.0, level, xtol=1e-300, rtol=1e-10, maxiter=1000))

    def _allocate(self, asked: Float) -> Bool:
        """Allocate classes by need; [J], jobs that get less than they need, or exceed their time."""
        some = self.classes.mean(asked)[self.kind] > 0
        if len(self.classes.first) == self.problem.active.sum():
            self.combos, self.x = self.program.shares()
        else:
            masses = self.program.masses()
            self.combos, self.x = allocate(self.classes.members, masses, self.problem.types, np.where(some, asked, 1.0))
        time = np.zeros(self.problem.jobs + 1)
        np.add.at(time, self.combos, self.x.sum(axis=1)[:, None])
        got = paired_throughput(self.problem, self.pairs, self.combos, self.x)
        out: Bool = (time[:-1] > 1.0 + 2 * GAP) | (asked - got > 4 * GAP * (asked + self.problem.fastest))
        return out & self.problem.active

    def _split(self, apart: Bool) -> None:
        """Make classes of these jobs, and continue from the columns that run."""
        before, running = (
            self.classes,
            [(a, b, k) for a, b, mass in self.program.masses() for k in np.flatnonzero(mass)],
        )
        self.classes = Classes.of(self.problem, self.pairs, np.column_stack([self.kind, apart]))
        if len(self.classes.first) == len(before.first):
            raise NotSolved(f"{len(before.first)} classes of jobs with pairs reach a level that their jobs do not.")
        self.kind = self.classes.kind(self.problem.jobs)
        parts = [np.unique(self.kind[members]).tolist() for members in before.members]
        seeds = {
            (min(i, j), max(i, j), int(k))
            for a, b, k in running
            if b != NONE
            for i in parts[a]
            for j in parts[b]
            if i != j or self.classes.count[i] > 1
        }
        self.program = PairProgram(self.problem, self.pairs, self.classes, seeds=sorted(seeds))


def _fastest_open(problem: Problem, proof: _Proof, at: Int, sharers: Int, pairs: OpenPairs) -> Float:
    """Same as ``_fastest_left`` with all other pairs closed: no shares that keep the levels so far use the others."""
    worth, time, gpu = proof.prices.worth[sharers], proof.prices.time[sharers], proof.prices.gpu
    best = _fastest_alone(problem, proof, at)
    gain, cost = pairs.gain_and_cost(worth, gpu, time)
    paid = ~too_dear(gain, cost, _DEAR)
    paired = np.zeros(len(best))
    np.maximum.at(paired, sharers[pairs.job[paid]], pairs.mine[paid])
    best[at] = np.maximum(best, paired)[at]
    return best


def _fastest_alone(problem: Problem, proof: _Proof, at: Int) -> Float:
    """[C], best rate of a job of these classes alone that is worth its price; 0 if there is none."""
    first, prices = proof.classes.first, proof.prices
    alone, best = problem.rate[first], np.zeros(len(first))
    cost = prices.time[:, None] + problem.gpus[first].astype(np.float64)[:, None] * prices.gpu
    paid = (alone > 0) & ~too_dear(prices.worth[:, None] * alone, cost, _DEAR)
    best[at] = np.where(paid, alone, 0.0).max(axis=1, initial=0.0)[at]
    return best


def _fastest_left(problem: Problem, pairs: PairRates, proof: _Proof, at: Int) -> Float:
    """[C], best rate of a job of these classes, alone or in a pair, that is worth its price; 0 if there is none."""
    first, count, prices = proof.classes.first, proof.classes.count, proof.prices
    model, gpus, worth, time = pairs.model[first], problem.gpus[first].astype(np.float64), prices.worth, prices.time
    alone, best = problem.rate[first], _fastest_alone(problem, proof, at)
    for k in range(problem.types):
        may, table = np.flatnonzero((model >= 0) & (alone[:, k] > 0)), pairs.rate[:, :, k]
        mine = np.intersect1d(at, may)
        for some in np.split(mine, range(_BLOCK, len(mine), _BLOCK)):
            forth, back = table[np.ix_(model[some], model[may])], table[np.ix_(model[may], model[some])].T
            gain = worth[some][:, None] * forth + worth[may][None, :] * back
            cost = time[some][:, None] + time[may][None, :] + gpus[some][:, None] * prices.gpu[k]
            left = ~too_dear(gain, cost, _DEAR) & (back > 0) & (gpus[some][:, None] == gpus[may])
            left &= (some[:, None] != may[None, :]) | (count[some] > 1)[:, None]
            best[some] = np.maximum(best[some], np.where(left, forth, 0.0).max(axis=1, initial=0.0))
    return best
