"""Sets of deadlines that can be kept together where jobs may share GPUs in pairs: Gavel §4.2 with §3.1.

As many as possible, of equally many those with most slack. Rates that can be had together, alone or in pairs, are a convex
set. Prices bound it: at prices of GPUs and of time, no rates are worth more than all capacity. Among sets of deadlines
that no price so far rules out an integer program finds the largest, in which pairs do not occur; whether its rates can
be had, pairs are generated to tell, and if not, the prices that say so are one row more. The first set so found that
can be had is the largest; where that takes too long it is the best set known, with the program's bound.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from themis.model.units import Bool, Float
from themis.optimize import MixedIntegerProgram, solve
from themis.optimize.shares.pairs import GAP, Classes, PairProgram, PairRates, settle
from themis.optimize.shares.problem import Problem
from themis.policies.gavel.pair_totals import priced_total
from themis.policies.gavel.total import Kept

_TIES = 1e-2
"""Weight of the total slack relative to one deadline."""

_PROVEN = 0.999 - _TIES
"""Gap of a value that proves a number of deadlines."""

_SURE = 1e-6

_PROGRAMS = 200
"""Number of programs, per number of jobs, that are tried for a set before the best so far is taken, with its gap."""


def keep_deadlines_paired(problem: Problem, pairs: PairRates, required: Float, nodes: int = 20_000) -> Kept:
    """Keep as many deadlines as possible; which of equally many is not proven.

    The number is the largest where that is soon proven: where all can be kept, for a dozen jobs, and mostly where few are given
    up. Else ``most`` of the answer says how many are not ruled out.

    Parameters
    ----------
    required : [J], throughput from now on that meets the job's deadline; 0 without one, infinite when it has passed.
    nodes : most of the tree that an integer program over deadlines searches.
    """
    fastest = pairs.fastest(problem)
    impossible = required > fastest * (1 + 1e-9)
    asked = (required > 0) & ~impossible
    kept, at, most = np.zeros(problem.jobs, dtype=bool), np.flatnonzero(asked), 0
    if len(at):
        kept[at], most = _Choice(problem.only(at), pairs.only(at), np.minimum(required, fastest)[at], nodes).best()
    return Kept(kept=kept, impossible=impossible, most=most)


def earlier_paired(problem: Problem, pairs: PairRates, least: Float, early: Float) -> Float:
    """[J], as far from the least rates, which can be had together, towards those of a round earlier as all can go together."""
    at = np.flatnonzero(least > 0)
    if not len(at):
        return least
    some, mine, base = problem.only(at), pairs.only(at), least[at] * (1.0 - 3 * GAP)
    rise = np.maximum(np.minimum(early[at], pairs.fastest(problem)[at]) - least[at], 0.0)
    classes = Classes.of(some, mine, np.column_stack([base, rise]))
    level, _ = settle(PairProgram(some, mine, classes), lambda t: classes.mean(base + t * rise), 1.0)
    out = least.copy()
    out[at] = base + level * rise
    return out


@dataclass(slots=True)
class _Choice:
    """Jobs with deadlines, their required throughputs, and known results on sets of them.

    Attributes
    ----------
    price : [J] each, of keeping a job's deadline. ``most`` : of each, what the deadlines of no set that can be kept exceed.
    """

    problem: Problem
    pairs: PairRates
    least: Float
    nodes: int
    price: list[Float] = field(default_factory=list)
    most: list[float] = field(default_factory=list)

    def best(self) -> tuple[Bool, int]:
        """The kept deadlines, and the number of those not ruled out."""
        everybody = np.ones(self.problem.jobs, dtype=bool)
        if self._fits(everybody):
            return everybody, self.problem.jobs
        slack = 1.0 - self.least / self.pairs.fastest(self.problem) + 1e-3
        value = 1.0 + _TIES * slack / slack.sum()
        # The linear relaxation: no job is worth more than its deadline, so part of a deadline counts as a part.
        relaxed, worth, total = priced_total(
            self.problem, self.pairs, value / self.least, np.zeros(self.problem.jobs), self.least
        )
        self._add(worth * self.least, total)
        most = int(relaxed.bound + _SURE)
        chosen = self._rounded(np.minimum(relaxed.throughput / self.least, 1.0), most)
        for _ in range(max(_PROGRAMS // self.problem.jobs, 1)):
            if chosen.sum() >= most:
                break
            candidate, bound = self._candidate(value)
            most = min(most, int(bound + _SURE))
            if candidate.sum() > chosen.sum() and self._fits(candidate):
                chosen = candidate
        return chosen, most

    def _fits(self, chosen: Bool) -> bool:
        """True if these deadlines can be kept together; if not, the prices that say so are noted."""
        at = np.flatnonzero(chosen)
        some, pairs, need = self.problem.only(at), self.pairs.only(at), self.least[at]
        classes = Classes.of(some, pairs, need[:, None])
        program = PairProgram(some, pairs, classes)
        if program.solve(classes.mean(need)) >= 1.0 - 2 * GAP:
            return True
        price = np.zeros(self.problem.jobs)
        price[at] = program.prices.worth[classes.kind(len(at))] * need
        self._add(price, program.prices.total)
        # The integer program's tolerance may take what just does not fit; without one of them it is another set.
        self._add(chosen.astype(np.float64), chosen.sum() - 1.0)
        return False

    def _add(self, price: Float, most: float) -> None:
        scale = float(price.max())
        self.price.append(np.maximum(price, 0.0) / scale)
        self.most.append(most * (1 + 10 * GAP) / scale)

    def _rounded(self, part: Float, most: int) -> Bool:
        """As many deadlines as fit of those that the relaxed program keeps or nearly keeps, the nearest first."""
        order = np.argsort(-part, kind="stable")
        # Mostly all that are wholly kept fit, and some more.
        low, high, middle = 0, most, max(int((part >= 1.0 - 10 * GAP).sum()), 1)
        while low < high:
            chosen = np.zeros(len(part), dtype=bool)
            chosen[order[:middle]] = True
            low, high = (middle, high) if self._fits(chosen) else (low, middle - 1)
            middle = (low + high + 1) // 2
        out = np.zeros(len(part), dtype=bool)
        out[order[:low]] = True
        # A job after the first one that does not fit may still fit.
        for j in order[low + 1 :][: _PROGRAMS // len(part)].tolist():
            if out.sum() >= most:
                break
            more = out.copy()
            more[j] = True
            out = more if self._fits(more) else out
        return out

    def _candidate(self, value: Float) -> tuple[Bool, float]:
        """The most valuable set that no price so far rules out, and how many deadlines none can exceed."""
        jobs, rows = self.problem.jobs, len(self.price)
        found = solve(
            MixedIntegerProgram(
                gain=value,
                low=np.zeros(jobs),
                high=np.ones(jobs),
                whole=np.ones(jobs, dtype=bool),
                row_low=np.full(rows, -np.inf),
                row_high=np.array(self.most),
                start=jobs * np.arange(rows + 1, dtype=np.int64),
                column=np.tile(np.arange(jobs), rows),
                value=np.concatenate(self.price),
            ),
            gap=_PROVEN,
            nodes=self.nodes,
            accept=np.inf,
        )
        chosen: Bool = found.x > 0.5
        return chosen, found.bound
