"""Pairs of jobs that are worth more than their prices: all pairs on all types are compared as arrays.

With prices of rates, time and GPUs a pair's surplus is what its two rates are worth less the time of the two and the GPUs, which
both use: gangs pair with gangs of their size. Half of it belongs to each of the two, so the table of surpluses is one table and
the same transposed.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from themis.model.units import Bool, Float, Int
from themis.optimize.shares.problem import Problem

_BLOCK = 256
"""Jobs that are compared with all others together."""

_KEPT = 8_000_000
"""Rates up to which the tables are kept between prices (64 MB); beyond, every block is looked up again."""

_LISTED, _FEW = 200, 0.125
"""Number of jobs from which pairs are listed, once at most this part of them is left."""

_WORTH_IT = 1e-12

_NOISE = 1e-6
"""Minimum relative excess of a unit of time's cost over its worth; smaller ones are rounding."""


def too_dear(gain: Float, cost: Float, part: float) -> Bool:
    """Mask of entries whose cost exceeds their gain by this part of the cost, and by more than rounding."""
    out: Bool = cost - gain > np.maximum(part * cost, _NOISE)
    return out


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class OpenPairs:
    """The pairs that are left where most are barred, each from both sides, by type and job.

    Attributes
    ----------
    job, other, kind : [E], places of the two, and the type. ``mine``, ``theirs`` : [E], their rates. ``gpus`` : [E], of the gang.
    start : [G], the first pair of each job and type.
    """

    job: Int
    other: Int
    kind: Int
    mine: Float
    theirs: Float
    gpus: Float
    start: Int

    @classmethod
    def of(cls, job: Int, other: Int, kind: Int, mine: Float, theirs: Float, gpus: Float) -> OpenPairs:
        """Pairs that are ordered by type and job."""
        new = np.append(True, (np.diff(job) != 0) | (np.diff(kind) != 0))[: len(job)]
        start = np.flatnonzero(new)
        return cls(job=job, other=other, kind=kind, mine=mine, theirs=theirs, gpus=gpus, start=start)

    def without(self, gone: Bool) -> OpenPairs:
        """The same without some, [E]."""
        left = ~gone
        mine, theirs, gpus = self.mine[left], self.theirs[left], self.gpus[left]
        return self.of(self.job[left], self.other[left], self.kind[left], mine, theirs, gpus)

    def best(self, worth: Float, price: Float, time: Float) -> tuple[Float, Int]:
        """[G], what the best pair of each job and type is worth more than its price, and which of the pairs it is."""
        surplus = self.mine * worth[self.job, self.kind] - time[self.job]
        surplus += self.theirs * worth[self.other, self.kind] - time[self.other]
        surplus -= self.gpus * price[self.kind]
        if not len(self.start):
            return np.zeros(0), np.zeros(0, dtype=np.int64)
        most = np.maximum.reduceat(surplus, self.start)
        group = np.repeat(np.arange(len(self.start)), np.diff(np.append(self.start, len(surplus))))
        at = np.flatnonzero(surplus == most[group])
        return most, at[np.unique(group[at], return_index=True)[1]]

    def gain_and_cost(self, worth: Float, price: Float, time: Float) -> tuple[Float, Float]:
        """[E], worth and cost of each pair."""
        gain = self.mine * worth[self.job] + self.theirs * worth[self.other]
        return gain, time[self.job] + time[self.other] + self.gpus * price[self.kind]


@dataclass(slots=True)
class Partners:
    """Jobs that may share GPUs, and their rates next to each other.

    Attributes
    ----------
    rate : Float[R, K], of each job alone; where it is 0 the job does not run on the type, nor in a pair. ``gpus`` : Float[R].
    model : Int[R], rows of the table of ``beside``, Float[A, A, K]. ``lonely`` : Bool[R], jobs that cannot pair with an
        equal job.
    """

    rate: Float
    gpus: Float
    model: Int
    beside: Float
    lonely: Bool
    open_: OpenPairs | None = None
    """The pairs that are not barred, once they are few of many."""
    _tables: dict[int, tuple[Float, Bool]] = field(default_factory=dict)

    @classmethod
    def of(cls, problem: Problem, model: Int, beside: Float, jobs: Int, lonely: Bool | None = None) -> Partners:
        """Partners of some jobs, with models ``model`` [J]; by default no job is its own partner."""
        alone = np.ones(len(jobs), dtype=bool) if lonely is None else lonely
        gpus = problem.gpus[jobs].astype(np.float64)
        return cls(rate=problem.rate[jobs], gpus=gpus, model=model[jobs], beside=beside, lonely=alone)

    def best(self, worth: Float, price: Float, time: Float) -> tuple[set[tuple[int, int, int]], Float]:
        """Best partner of each job on each type, where the pair is worth more than its price.

        Parameters
        ----------
        worth : [R] or [R, K], of a unit of rate. ``price`` : [K], of a GPU. ``time`` : [R], price of each job's time.

        Returns
        -------
        (place, place, type) of pairs, and [R] the largest surplus of each over its price, 0 where there is none.
        """
        jobs, types = self.rate.shape
        worth = np.broadcast_to(worth[:, None] if worth.ndim == 1 else worth, (jobs, types))
        found, most = set[tuple[int, int, int]](), np.zeros(jobs)
        if self.open_ is not None:
            value, best = self.open_.best(worth, price, time)
            np.maximum.at(most, self.open_.job[best], value)
            some = best[value > _WORTH_IT]
            one, two, kind = self.open_.job[some], self.open_.other[some], self.open_.kind[some]
            found.update(zip(np.minimum(one, two).tolist(), np.maximum(one, two).tolist(), kind.tolist()))
            return found, most
        for k in range(types):
            may = np.flatnonzero(self.rate[:, k] > 0)
            for at in range(0, len(may), _BLOCK):
                mine = may[at : at + _BLOCK]
                surplus = self._surplus(k, may, at, worth[:, k], time)
                best = surplus.argmax(axis=1)
                value = surplus[np.arange(len(mine)), best] - self.gpus[mine] * price[k]
                most[mine] = np.maximum(most[mine], value)
                good = value > _WORTH_IT
                first, second = mine[good], may[best[good]]
                pairs = zip(np.minimum(first, second).tolist(), np.maximum(first, second).tolist())
                found.update((a, b, k) for a, b in pairs)
        return found, most

    def close(self, worth: Float, price: Float, time: Float, part: float) -> bool:
        """Bar pairs that cost more than they are worth from now on (``too_dear``); false where the tables are not kept."""
        if len(self.rate) ** 2 * self.rate.shape[1] > _KEPT:
            return False
        if self.open_ is not None:
            gain, cost = self.open_.gain_and_cost(worth, price, time)
            self.open_ = self.open_.without(too_dear(gain, cost, part))
            return True
        for k, (forth, barred) in self._tables.items():
            may = np.flatnonzero(self.rate[:, k] > 0)
            gain = forth * worth[may, None]
            cost = time[may, None] + time[may] + self.gpus[may, None] * price[k]
            barred |= too_dear(gain + gain.T, cost, part)
        self._list()
        return True

    def _list(self) -> None:
        """Convert tables to a list, where few of many pairs are left."""
        kinds = [k for k in range(self.rate.shape[1]) if (self.rate[:, k] > 0).any()]
        if len(self.rate) <= _LISTED or set(kinds) != set(self._tables):
            return
        left = sum(int((~barred).sum()) for _, barred in self._tables.values())
        if left > _FEW * sum(barred.size for _, barred in self._tables.values()):
            return
        parts = []
        for k in kinds:
            may, (forth, barred) = np.flatnonzero(self.rate[:, k] > 0), self._tables[k]
            a, b = np.nonzero(~barred)
            parts.append((may[a], may[b], np.full(len(a), k), forth[a, b], forth[b, a], self.gpus[may[a]]))
        self.open_ = OpenPairs.of(*(np.concatenate(column) for column in zip(*parts)))
        self._tables.clear()

    def _surplus(self, k: int, may: Int, at: int, worth: Float, time: Float) -> Float:
        """[B, S], of the jobs of a block next to all that may run on the type, before the price of the GPU."""
        rows = slice(at, at + _BLOCK)
        mine = may[rows]
        if len(self.rate) ** 2 * self.rate.shape[1] <= _KEPT:
            if k not in self._tables:
                forth, _, barred = self._rates(k, may, 0, len(may))
                self._tables[k] = forth, barred
            table, bars = self._tables[k]
            forth, back, barred = table[rows], table[:, rows], bars[rows]
        else:
            forth, back, barred = self._rates(k, may, at, at + _BLOCK)
        out: Float = forth * worth[mine, None]
        out -= time[mine, None]
        half = back * worth[may, None]
        half -= time[may, None]
        out += half.T
        np.copyto(out, -np.inf, where=barred)
        return out

    def _rates(self, k: int, may: Int, start: int, end: int) -> tuple[Float, Float, Bool]:
        """[B, S] rates of some jobs next to all others, [S, B] of all others next to them, and [B, S] who cannot share."""
        table, mine = self.beside[:, :, k], may[start:end]
        forth = table[np.ix_(self.model[mine], self.model[may])]
        back = table[np.ix_(self.model[may], self.model[mine])]
        barred: Bool = (forth <= 0) | (back.T <= 0) | (self.gpus[mine, None] != self.gpus[may])
        own = np.flatnonzero(self.lonely[mine])
        barred[own, start + own] = True
        return forth, back, barred
