"""Space sharing: pairs of jobs with gangs of one size that run on the same GPUs. Gavel §3.1.

Of n jobs there are n(n+1)/2 combinations; hardly any is in an optimum. Combinations are generated: the program begins
with jobs alone, its prices say what a pair would have to be worth, and the best pairs enter until none is worth its
price, which proves the optimum over all of them. Rates of pairs are looked up by model, so no table over pairs of jobs
exists at any time; prices are compared a block of rows at a time.

Jobs that are equal (rates, model, GPUs and need) are one class with a multiplicity. Shares of a class are allocated to
its jobs in the end, so that each runs as long as the other. Where needs differ, classes of jobs that differ only in
their needs come first: their optimum is a bound, since it ignores that a job's time is limited, and allocated by need
it is mostly reached.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field, replace

import numpy as np
from scipy.optimize import brentq
from scipy.sparse import coo_array

from themis.errors import InputError, NotSolved
from themis.model.units import NONE, Bool, Float, Int
from themis.optimize.column_generation import ColumnProgram, Optimum
from themis.optimize.shares.classes import allocate
from themis.optimize.shares.partners import Partners, too_dear
from themis.optimize.shares.problem import Need, Problem

GAP = 1e-9
"""Relative gap at which pairs are no longer generated."""

_ROUGH = 0.5
"""A level that is too high falls by a known proof once its bound has at most this part of the way left to 1."""

_FINE = 0.15
"""The same where prices are rough anyway, of many classes: the next level is the nearer."""

_STIFF, _LESS_STIFF = 0.05, 0.01
"""Minimum shortfall of a class per unit of excess level, as a part of its need: with few classes, with many."""

_AHEAD, _LEAST_AHEAD = 0.25, 1e-6
"""Step over which the slope of the needs is taken, as a part of the level's last relative step, and its minimum."""

_FURTHER = 4.0
"""Factor by which a feasible guessed level is raised."""

MANY, FIRST = 200, 5
"""Classes from which interior points are quicker than a simplex method from nothing, and rough solves to begin with."""

_SURELY = 1e-6
"""Relative: a level that rough prices prove to be too high by less is left to exact ones."""

_THIN = 1e-12
"""Time below which a column does not run."""

_ROUNDS, _STEPS = 400, 60


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class PairRates:
    """Measured rates of models that share GPUs.

    Attributes
    ----------
    model : Int[J], each job's model, or -1 for jobs that never share (models that were not measured). Jobs of one model have as
        many GPUs, if that changes their rates; gangs of unequal size never share, whatever the rates are.
    rate : Float[A, A, K], steps/s of a job of the first model while one of the second runs on the same GPUs; 0 = they cannot.
    """

    model: Int
    rate: Float

    def __post_init__(self) -> None:
        models = self.rate.shape[0]
        if self.rate.shape[:2] != (models, models) or (self.model >= models).any():
            raise InputError(
                f"pair rates have shape {self.rate.shape} and models up to {self.model.max(initial=NONE)}, "
                "expected a square of as many models as there are."
            )
        if not np.isfinite(self.rate).all() or (self.rate < 0).any():
            raise InputError("a rate of a pair is not a number >= 0; 0 says that the two cannot share GPUs.")

    def only(self, rows: Int) -> PairRates:
        """Restriction to these jobs."""
        return replace(self, model=self.model[rows])

    def fastest(self, problem: Problem) -> Float:
        """[J], best rate of each job, alone or paired."""
        best = np.where(self.rate > 0, self.rate, 0.0).max(axis=(1, 2), initial=0.0)
        shared = best[self.model] if len(best) else np.zeros(problem.jobs)
        out: Float = np.maximum(problem.fastest, np.where(self.model >= 0, shared, 0.0))
        return out


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class PairShares:
    """Time shares of jobs and pairs.

    Attributes
    ----------
    combos : Int[C, 2], rows of jobs, the second -1 for a job alone. ``x`` : Float[C, K].
    throughput : Float[J]. ``bound`` : level that no shares can exceed. ``columns`` : (class or pair, type) generated.
    late : Bool[J], jobs whose deadline is given up. None where there are no deadlines. ``cut`` : what is not proven to be best;
        empty where all is.
    """

    combos: Int
    x: Float
    throughput: Float
    bound: float
    columns: int
    late: Bool | None = None
    cut: str = ""


def highest_level_paired(problem: Problem, pairs: PairRates, need: Need, ceiling: float, alike: Float) -> PairShares:
    """The largest level at which shares of jobs and pairs give every job ``need(level)``.

    Parameters
    ----------
    need : [J], 0 at level 0, rising and convex, above 0 for jobs that can run. Linear needs take one program, others
        Newton's steps between programs.
    ceiling : where the search begins; not below the optimum.
    alike : [J, F], further columns that the needs depend on: jobs that agree in them are equal.

    Raises
    ------
    NotSolved : columns or levels do not settle.
    """
    coarse = Classes.of(problem, pairs, np.zeros((problem.jobs, 0)))
    program = PairProgram(problem, pairs, coarse, rough=FIRST)
    level, _ = settle(program, lambda t: coarse.mean(need(t)), ceiling)
    classes = Classes.of(problem, pairs, alike)
    if len(classes.first) > len(coarse.first):
        combos, x = allocate(coarse.members, program.masses(), problem.types, need(level))
        program = PairProgram(problem, pairs, classes, seeds=classes.columns(combos, x))
        level, _ = settle(program, lambda t: classes.mean(need(t)), level)
    combos, x = allocate(classes.members, program.masses(), problem.types)
    return PairShares(
        combos=combos, x=x, throughput=paired_throughput(problem, pairs, combos, x), bound=level, columns=program.size
    )


def paired_throughput(problem: Problem, pairs: PairRates, combos: Int, x: Float) -> Float:
    """[J], effective throughput of shares of jobs and pairs."""
    out = np.zeros(problem.jobs)
    alone = combos[:, 1] == NONE
    np.add.at(out, combos[alone, 0], (problem.rate[combos[alone, 0]] * x[alone]).sum(axis=1))
    first, second = combos[~alone, 0], combos[~alone, 1]
    for me, other in ((first, second), (second, first)):
        np.add.at(out, me, (pairs.rate[pairs.model[me], pairs.model[other]] * x[~alone]).sum(axis=1))
    return out


def settle(
    program: PairProgram, need: Need, ceiling: float, guess: tuple[float, float] | None = None
) -> tuple[float, list[Prices]]:
    """Lower the level until it is reached: each time to the level at which needs cost the worth of all capacity.

    Parameters
    ----------
    need : [C], mean rate of each class's jobs at a level; rises, and what it is at level 0 can be reached.
    guess : levels between which the one that is sought is thought to be. The search begins there, with the needs' slope between
        them, and not at the ceiling, where most jobs may be at their best. Nothing is proven by it.

    Returns
    -------
    The level, and the prices that lowered it to there, none where it did not fall: the last prove that it cannot be exceeded.
    """
    proofs: list[Prices] = []
    level, ahead = ceiling, 1.0
    if guess is not None and 0.0 < guess[1] < ceiling:
        level, ahead = guess[1], 1.0 - guess[0] / guess[1]
    stiff = _STIFF if len(program.classes.first) <= MANY else _LESS_STIFF
    known = level == ceiling
    for _ in range(_STEPS):
        wanted = need(level)
        fall = (wanted - need(level * (1.0 - ahead))) / ahead
        if (
            program.solve(wanted, np.maximum(fall, (1.0 if known and ahead == 1.0 else stiff) * wanted))
            >= 1.0 - 2 * GAP
        ):
            if known:
                return level, proofs
            # What was guessed can be had, and perhaps more.
            level, ahead = min(_FURTHER * level, ceiling), 1.0 - 1.0 / _FURTHER
            known = level == ceiling
            continue
        proofs.append(prices := program.prices)
        worth = prices.worth * program.classes.count

        def beyond(t: float) -> float:
            return float(worth @ need(t)) - prices.total  # noqa: B023

        before, highest = level, level if known else ceiling
        if beyond(0.0) >= 0.0:
            level = 0.0
        elif beyond(highest) <= 0.0:
            level = highest
        else:
            level = float(brentq(beyond, 0.0, highest, xtol=1e-300, rtol=1e-14, maxiter=1000))
        known = True
        ahead = min(max(_AHEAD * abs(1.0 - level / max(before, 1e-300)), _LEAST_AHEAD), 0.9)
    raise NotSolved(
        f"the level of {len(program.classes.first)} classes of jobs with pairs did not settle within {_STEPS} steps."
    )


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Prices:
    """Duals of a program's constraints at its optimum, each >= 0.

    Attributes
    ----------
    worth : [C], of a unit of rate of a job of each class. ``time`` : [C], of all the time of such a job. ``gpu`` : [K].
    total : worth of all capacity: an upper bound of the rates of any shares.
    """

    worth: Float
    time: Float
    gpu: Float
    total: float


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Classes:
    """Jobs that can run, grouped: ``members[c]`` are rows of jobs, ``first[c]`` one of them, ``count[c]`` how many."""

    members: tuple[Int, ...]
    first: Int
    count: Float

    @classmethod
    def of(cls, problem: Problem, pairs: PairRates, alike: Float) -> Classes:
        able = np.flatnonzero(problem.active)
        key = np.column_stack([problem.rate, problem.gpus, pairs.model, alike])[able]
        _, kind = np.unique(key, axis=0, return_inverse=True)
        order = np.argsort(kind.reshape(-1), kind="stable")
        count = np.bincount(kind.reshape(-1))
        members = tuple(np.split(able[order], np.cumsum(count)[:-1]))
        return cls(members=members, first=np.array([m[0] for m in members], dtype=np.int64), count=count.astype(float))

    def mean(self, value: Float) -> Float:
        """[C], mean of a job's value over each class."""
        start = np.concatenate([[0], np.cumsum(self.count[:-1])]).astype(np.int64)
        out: Float = np.add.reduceat(value[np.concatenate(self.members)], start) / self.count
        return out

    def kind(self, jobs: int) -> Int:
        """[J], the class of each job; that of the first for jobs that cannot run."""
        out = np.zeros(jobs, dtype=np.int64)
        out[np.concatenate(self.members)] = np.repeat(np.arange(len(self.first)), self.count.astype(np.int64))
        return out

    def columns(self, combos: Int, x: Float) -> list[tuple[int, int, int]]:
        """(class, class, type) of the pairs of jobs that run."""
        kind = {int(j): c for c, jobs in enumerate(self.members) for j in jobs}
        at, k = np.nonzero((x > 0) & (combos[:, 1] != NONE)[:, None])
        found = {(*sorted((kind[i], kind[j])), type_) for (i, j), type_ in zip(combos[at].tolist(), k.tolist())}
        return sorted((a, b, type_) for a, b, type_ in found)


@dataclass(slots=True)
class PairProgram:
    """Masses of time of classes and pairs of classes; rows: time and rate of every class, GPUs of every pool."""

    problem: Problem
    pairs: PairRates
    classes: Classes
    seeds: list[tuple[int, int, int]] = field(default_factory=list)
    rough: int = 0
    """Number of rough solves at first, whose prices lower a level that is far too high as well as exact ones do."""
    prices: Prices = field(init=False)
    program: ColumnProgram = field(init=False)
    index: list[tuple[int, int, int]] = field(default_factory=list)
    known: set[tuple[int, int, int]] = field(default_factory=set)
    sharers: Int = field(init=False)
    """Classes with jobs that may share GPUs."""
    partners: Partners = field(init=False)
    optimum: Optimum = field(init=False)

    def __post_init__(self) -> None:
        c, pools = len(self.classes.first), len(self.problem.workers)
        high = np.concatenate([self.classes.count, np.full(c, np.inf), self.problem.workers])
        low = np.concatenate([np.full(c, -np.inf), np.zeros(c), np.full(pools, -np.inf)])
        self.program = ColumnProgram(low, high, interior=c > MANY)
        self.rough = self.rough if c > MANY else 0
        first = self.classes.first
        self.sharers = np.flatnonzero(self.pairs.model[first] >= 0)
        lonely = self.classes.count[self.sharers] < 2
        self.partners = Partners.of(self.problem, self.pairs.model, self.pairs.rate, first[self.sharers], lonely)

    @property
    def size(self) -> int:
        """Number of columns without the level."""
        return len(self.index)

    def solve(self, wanted: Float, fall: Float | None = None) -> float:
        """The part of the wanted rates that every class reaches, at most 1; where it is below 1, ``prices`` prove it.

        Parameters
        ----------
        wanted : [C], mean rate of each class's jobs.
        fall : [C], in which proportion classes go without where not all can be had; as they want by default. The nearer
            it is to the slope of the needs, the nearer is the next level to the one that is reached.
        """
        c, count = len(self.classes.first), self.classes.count
        scale = self.problem.fastest[self.classes.first]
        fall = wanted if fall is None else fall
        rows, values = np.arange(c, 2 * c, dtype=np.int64), count * fall / scale
        if self.size:
            self.program.change_column(0, rows, values)
        else:
            height = 2 * c + len(self.problem.workers)
            self.program.add(-np.ones(1), coo_array((values, (rows, np.zeros(c, int))), shape=(height, 1)).tocsc())
            alone = np.argwhere(self.problem.rate[self.classes.first] > 0)
            self._add([(int(i), NONE, int(k)) for i, k in alone] + (self.seeds or self._first()))
        self.program.change_low(rows, count * wanted / scale)
        steep = float(np.divide(fall, wanted, out=np.zeros(c), where=wanted > 0).max(initial=0.0))
        while self.rough and fall is not wanted:
            self.rough -= 1
            try:
                duals = self.program.solve_roughly().duals
            except NotSolved:
                break  # exact prices do not need it
            found, loose = self._prove(duals, wanted, None)
            worth = self.prices.worth * count
            below, unit = float(worth @ wanted) - self.prices.total, float(worth @ fall)
            if found:
                self._add(found)
            if below * steep > _SURELY * unit and loose <= _FINE * below:
                return 1.0 - below * steep / unit
            if not found:
                break
        self.rough = 0
        for _ in range(_ROUNDS):
            self.optimum = self.program.solve()
            without = -self.optimum.objective
            found, loose = self._prove(self.optimum.duals, wanted, without)
            # Stop at the requested level, which is already a bound. Far from it a rough bound suffices.
            done = without * steep <= GAP
            if done or loose <= max(GAP / steep, _ROUGH * (without - loose)) or not (found or self.program.tighten()):
                return 1.0 - without * steep
            if found:
                self._add(found)
        raise NotSolved(f"pairs of {c} classes of jobs did not settle within {_ROUNDS} rounds.")

    def _prove(self, duals: Float, wanted: Float, without: float | None) -> tuple[list[tuple[int, int, int]], float]:
        """Pairs that are worth more than these prices, and what the bound of ``prices``, which are set, is above the prices' own.

        ``without`` : what the wanted rates lack at the optimum that the prices belong to; None if they belong to none.
        """
        c, first, count = len(self.classes.first), self.classes.first, self.classes.count
        worth = np.maximum(-duals[c : 2 * c], 0.0) / self.problem.fastest[first]
        time, pools = np.maximum(duals[:c], 0.0), np.maximum(duals[2 * c :], 0.0)
        gpu = pools[self.problem.pool]
        if without is None:
            alone = worth[:, None] * self.problem.rate[first] - self.problem.gpus[first, None] * gpu
            time = np.maximum(time, alone.max(axis=1))
        found, surplus = self._price(worth, time, gpu)
        # Half of a pair's surplus on the price of each one's time makes every pair worth its price at most: a bound.
        loose, time = 0.5 * float(surplus @ count), time + 0.5 * surplus
        total = float(time @ count + pools @ self.problem.workers)
        if without is not None:
            total = float(worth @ (count * wanted)) - without + loose
        self.prices = Prices(worth=worth, time=time, gpu=gpu, total=total)
        return found, loose

    def _first(self) -> list[tuple[int, int, int]]:
        """Initial columns for many classes: each one's partner on each type with the largest sum of relative rates."""
        if not self.rough:
            return []
        free = np.zeros(len(self.classes.first))
        return self._price(1.0 / self.problem.fastest[self.classes.first], free, free[: self.problem.types])[0]

    def close(self, prices: Prices, dear: float) -> None:
        """Leave out of all further programs what costs more than it is worth at prices that prove the level reached.

        Shares that keep the level use none of it. ``dear`` : minimum excess of its cost, as a part of its price.
        """
        if not self.partners.close(prices.worth[self.sharers], prices.gpu, prices.time[self.sharers], dear):
            return
        a, b, k = np.array(self.index, dtype=np.int64).T
        mine, theirs, gpus = self._rates(a, b, k)
        two = b != NONE
        gain = prices.worth[a] * mine
        cost = prices.time[a] + gpus * prices.gpu[k]
        gain[two] += prices.worth[b[two]] * theirs
        cost[two] += prices.time[b[two]]
        may = np.append(False, too_dear(gain, cost, dear) & (self.optimum.x[1:] <= 0.0))
        gone = self.program.drop(may)[1:]
        self.index = [column for column, out in zip(self.index, gone.tolist()) if not out]
        self.optimum = replace(self.optimum, x=self.optimum.x[np.append(True, ~gone)])

    def shares(self) -> tuple[Int, Float]:
        """Combos [C, 2] and their time x [C, K] as ``allocate`` gives them, where every class is one job."""
        mass = self.optimum.x[1:]
        some = np.flatnonzero(mass > _THIN)
        columns = np.array(self.index, dtype=np.int64).reshape(-1, 3)[some]
        _, first, place = np.unique(
            columns[:, 0] * (len(self.classes.first) + 1) + columns[:, 1], return_index=True, return_inverse=True
        )
        order = np.argsort(first)
        rank = np.empty(len(order), dtype=np.int64)
        rank[order] = np.arange(len(order))
        x = np.zeros((len(order), self.problem.types))
        x[rank[place], columns[:, 2]] = mass[some]
        job = np.append(self.classes.first, NONE)
        return job[columns[first[order], :2]], np.minimum(x, 1.0)

    def masses(self) -> Iterator[tuple[int, int, Float]]:
        """(class, other class or -1, total time [K]) of the columns that run."""
        together: dict[tuple[int, int], Float] = {}
        for (a, b, k), mass in zip(self.index, self.optimum.x[1:].tolist()):
            if mass > _THIN:
                together.setdefault((a, b), np.zeros(self.problem.types))[k] += mass
        for (a, b), mass_of in together.items():
            yield a, b, mass_of

    def _price(self, worth: Float, time: Float, gpu: Float) -> tuple[list[tuple[int, int, int]], Float]:
        """Best pair of each class on each type that is worth more than its price, and the class's largest surplus [C]."""
        some = self.sharers
        found, most = self.partners.best(worth[some], gpu, time[some])
        surplus = np.zeros(len(self.classes.first))
        surplus[some] = most
        return sorted({(int(some[a]), int(some[b]), k) for a, b, k in found} - self.known), surplus

    def _add(self, columns: list[tuple[int, int, int]]) -> None:
        c = len(self.classes.first)
        scale = self.problem.fastest[self.classes.first]
        a, b, k = np.array(columns, dtype=np.int64).T
        at, two = np.arange(len(a)), b != NONE
        partner, (mine, theirs, gpus) = b[two], self._rates(a, b, k)
        rows = np.concatenate([a, partner, c + a, c + partner, 2 * c + self.problem.pool[k]])
        values = np.concatenate(
            [np.ones(len(a)), np.ones(len(partner)), mine / scale[a], theirs / scale[partner], gpus]
        )
        matrix = coo_array(
            (values, (rows, np.concatenate([at, at[two], at, at[two], at]))),
            shape=(2 * c + len(self.problem.workers), len(a)),
        )
        self.program.add(np.zeros(len(a)), matrix.tocsc())  # tocsc sums the two halves of a pair of one class
        self.index += columns
        self.known.update(columns)

    def _rates(self, a: Int, b: Int, k: Int) -> tuple[Float, Float, Float]:
        """Rates and GPUs of columns: rate of the first job, of the second if there is one, and GPUs."""
        first, two = self.classes.first, b != NONE
        model = self.pairs.model[first]
        mine = self.problem.rate[first[a], k]
        mine[two] = self.pairs.rate[model[a[two]], model[b[two]], k[two]]
        theirs = self.pairs.rate[model[b[two]], model[a[two]], k[two]]
        return mine, theirs, self.problem.gpus[first[a]].astype(np.float64)
