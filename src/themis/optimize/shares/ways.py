"""All ways for a job to reach a rate: one type and idleness, or a mixture of two types.

When GPUs have prices the cheapest way lies on the job's lower convex hull (``lower_hull``). Where no two jobs are
equal, comparing all mixtures of two points, arrays over the jobs, takes a fraction of the time that wrapping hulls
takes.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import combinations

import numpy as np

from themis.model.units import Bool, Float, Int
from themis.optimize.shares.problem import Problem

TIE = 1e-12


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Ways:
    """Pairs of points for all jobs; a point is a type, or idleness, which comes last and has rate 0.

    Attributes
    ----------
    rate : [K + 1, J], relative to the job's fastest type. ``scale`` : [J], steps/s of that type; 0 for jobs that cannot run.
    gpus : [J].
    first, second : [Q], points of each pair; the first K pairs are of idleness and one type.
    per_rise : [Q, J], 1 / (rate of the second - rate of the first). ``able`` : [Q, J], pairs that can be mixed.
    pool : [K + 1], the pool of each point; that of idleness is one more than there are.
    """

    rate: Float
    scale: Float
    gpus: Float
    first: Int
    second: Int
    per_rise: Float
    able: Bool
    pool: Int

    @classmethod
    def of(cls, problem: Problem) -> Ways:
        """All pairs of a problem's types."""
        types, scale = problem.types, problem.fastest
        rate = np.zeros((types + 1, problem.jobs))
        np.divide(problem.rate.T, scale, out=rate[:-1], where=scale > 0)
        pairs = [(types, k) for k in range(types)] + list(combinations(range(types), 2))
        first, second = np.array(pairs, dtype=np.int64).T
        rise = rate[second] - rate[first]
        able = (np.abs(rise) > TIE) & (rate[second] > 0)
        able[types:] &= rate[first[types:]] > 0
        per_rise = np.divide(1.0, rise, out=np.zeros(rise.shape), where=able)
        return cls(
            rate=rate,
            scale=scale,
            gpus=problem.gpus.astype(np.float64),
            first=first,
            second=second,
            per_rise=per_rise,
            able=able,
            pool=np.append(problem.pool, len(problem.workers)),
        )

    def of_points(self, price: Float) -> Float:
        """[K + 1], prices of the points, from those of the pools."""
        return np.append(price, 0.0)[self.pool]

    def only(self, rows: Int) -> Ways:
        """The same for some of the jobs."""
        return Ways(
            rate=self.rate[:, rows],
            scale=self.scale[rows],
            gpus=self.gpus[rows],
            first=self.first,
            second=self.second,
            per_rise=self.per_rise[:, rows],
            able=self.able[:, rows],
            pool=self.pool,
        )

    def relative(self, rate: Float) -> Float:
        """[J], rates relative to the fastest, in [0, 1]."""
        out: Float = np.divide(rate, self.scale, out=np.zeros(len(rate)), where=self.scale > 0)
        return np.clip(out, 0.0, 1.0, out=out)

    def mixes(self, need: Float) -> Mixes:
        """All ways to reach relative rates ``need`` [J] exactly."""
        types = len(self.rate) - 1
        part = need - self.rate[self.first]
        part *= self.per_rise
        may = self.able & (part <= 1.0 + TIE)
        may[types:] &= (part[types:] > TIE) & (part[types:] < 1.0 - TIE)
        np.clip(part, 0.0, 1.0, out=part)
        return Mixes(ways=self, need=need, part=part, bar=np.where(may, 0.0, np.inf))


@dataclass(frozen=True, kw_only=True, eq=False)
class Mixes:
    """The ways to reach given rates.

    Attributes
    ----------
    need : [J], relative. ``part`` : [Q, J], time on the second point; the rest is on the first. ``bar`` : [Q, J], infinite
        where a pair does not reach the rate.
    """

    ways: Ways
    need: Float
    part: Float
    bar: Float

    def costs(self, price: Float) -> Float:
        """[Q, J], price of each way for one GPU of the gang, at prices [M] of the pools' GPUs."""
        price = self.ways.of_points(price)
        first, second = price[self.ways.first, None], price[self.ways.second, None]
        out: Float = self.part * (second - first)
        out += first
        out += self.bar
        return out

    @property
    def reach(self) -> Bool:
        """[Q, J], ways that reach the rate."""
        out: Bool = self.bar == 0.0
        return out

    def sizes(self) -> Float:
        """[J], about how many GPUs each job uses."""
        out: Float = self.ways.gpus * np.maximum(self.need, TIE)
        return out

    def gains(self, way: Int, job: Int) -> Float:
        """Gains of jobs from these ways: all 0, as only reaching the rate counts."""
        return np.zeros(len(way))

    def only(self, rows: Int) -> Mixes:
        """The same for some of the jobs."""
        return Mixes(ways=self.ways.only(rows), need=self.need[rows], part=self.part[:, rows], bar=self.bar[:, rows])

    def chosen(self, way: Int) -> Chosen:
        """One way for each job."""
        return Chosen(mixes=self, way=way, part=self.part[way, np.arange(len(way))])


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Chosen:
    """One way for each job: ``way`` [J], and ``part`` [J], the share of its time on the pair's second point."""

    mixes: Mixes
    way: Int
    part: Float

    def only(self, rows: Int) -> Chosen:
        """The same for some of the jobs."""
        return Chosen(mixes=self.mixes.only(rows), way=self.way[rows], part=self.part[rows])

    def gain(self) -> float:
        """Total gain of the chosen ways."""
        return float(self.mixes.gains(self.way, np.arange(len(self.way))).sum())

    def shares(self) -> Float:
        """[J, K]."""
        x = np.zeros((len(self.way), len(self.mixes.ways.rate)))
        self.add_to(x, np.arange(len(self.way)), 1.0)
        return x[:, :-1]

    def usage(self, some: Bool | None = None) -> Float:
        """[M], GPUs of each pool that the jobs, or ``some`` [J] of them, use."""
        ways = self.mixes.ways
        pools, gpus = int(ways.pool[-1]), ways.gpus if some is None else ways.gpus * some
        late = self.part * gpus
        out = np.bincount(ways.pool[ways.second[self.way]], late, pools + 1)
        out += np.bincount(ways.pool[ways.first[self.way]], gpus - late, pools + 1)
        return np.asarray(out[:-1], dtype=np.float64)

    def add_to(self, x: Float, rows: Int, weight: Float | float) -> None:
        """Add the shares of some jobs to ``x`` [J, K + 1], in place."""
        ways, way = self.mixes.ways, self.way[rows]
        x[rows, ways.second[way]] += weight * self.part[rows]
        x[rows, ways.first[way]] += weight * (1.0 - self.part[rows])

    def support(self, price: Float) -> tuple[Float, Float]:
        """Slope and cost [J] at the needed rates of a line below the cost of every way to a lower rate.

        The ways are the cheapest at ``price`` [M]. Costs are convex, so the line on one side proves the other side, too.
        """
        price = self.mixes.ways.of_points(price)
        ways, at = self.mixes.ways, np.arange(len(self.way))
        first, second = ways.first[self.way], ways.second[self.way]
        slope = (price[second] - price[first]) * ways.per_rise[self.way, at]
        cost = price[first] + self.part * (price[second] - price[first])
        corner = np.flatnonzero((self.part >= 1.0 - 1e-9) & (first == len(price) - 1))
        top = second[corner]
        rise = ways.rate[top, corner] - ways.rate[:, corner]
        steep = np.divide(price[top] - price[:, None], rise, out=np.full(rise.shape, -np.inf), where=rise > TIE).max(
            axis=0, initial=-np.inf
        )
        slope[corner] = np.where(ways.scale[corner] > 0, np.maximum(steep, 0.0), 0.0)
        return slope * ways.gpus, cost * ways.gpus
