"""Throughput per cost subject to deadlines (Gavel §4.2).

Where not all deadlines can be kept, as many as possible are, of equally many those with most slack; jobs whose
deadline is given up are named in the proof and get what the objective gives them. Differs from the paper: jobs aim at a
round before their deadline, as far as that costs no other job's deadline.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import ClassVar

import numpy as np

from themis.errors import counted
from themis.model.snapshot import Snapshot
from themis.model.units import Float, Seconds
from themis.optimize.shares.level import highest_level
from themis.optimize.shares.pairs import PairShares
from themis.optimize.shares.problem import Problem, Shares
from themis.policies.gavel.pair_deadlines import earlier_paired, keep_deadlines_paired
from themis.policies.gavel.pair_totals import cost_ratio_paired
from themis.policies.gavel.total import cost_adjusted, cost_ratio, keep_deadlines
from themis.policies.min_cost import check_prices, costs, read_prices
from themis.policies.sharing import PairPolicy, pair_rates, shared_total


@dataclass(frozen=True, slots=True, kw_only=True)
class MinCostSlo(PairPolicy):
    """Maximise throughput per cost while jobs keep their deadlines.

    Attributes
    ----------
    cost, printed, spare : as of ``min_cost``.
    """

    cost: str = ""
    printed: bool = False
    spare: bool = False
    prices: dict[str, float] = field(init=False, repr=False, compare=False)

    chooses_types: ClassVar[bool] = False  # costs are of GPU types

    def __post_init__(self) -> None:
        PairPolicy.__post_init__(self)
        object.__setattr__(self, "prices", read_prices(self.cost))

    def check_types(self, gpu_types: Sequence[str]) -> None:
        """Check that every price is of a type in the cluster."""
        check_prices(self.prices, gpu_types)

    def allocate(self, snapshot: Snapshot, problem: Problem) -> Shares:
        """Decide on deadlines first, then on the objective."""
        required = required_rate(snapshot)
        kept = keep_deadlines(problem, required).kept
        least = _earlier(problem, np.where(kept, required, 0.0), required_rate(snapshot, self.round_s))
        # Deadlines that only just fit are relaxed by a billionth, lest rounding make the program infeasible.
        cheapest = cost_ratio if self.printed else cost_adjusted
        found = cheapest(problem, costs(self.prices, snapshot), least * (1 - 1e-9))
        return replace(found, late=(required > 0) & ~kept)

    def paired(self, snapshot: Snapshot, problem: Problem) -> tuple[PairShares, float, float]:
        """The same over jobs and pairs: two that share a GPU pay for it once, and may both be in time."""
        pairs, cost = pair_rates(snapshot, problem), costs(self.prices, snapshot)
        required = required_rate(snapshot)
        choice = keep_deadlines_paired(problem, pairs, required)
        kept, count = choice.kept, int(choice.kept.sum())
        cut = f"{counted(count, 'deadline')} kept, {choice.most} not ruled out" if choice.most > count else ""
        least = earlier_paired(problem, pairs, np.where(kept, required, 0.0), required_rate(snapshot, self.round_s))
        if self.printed:
            found, objective = cost_ratio_paired(problem, pairs, cost, least)
            bound = objective
        else:
            found, objective, bound = shared_total(snapshot, problem, np.ones(problem.jobs), cost, least=least)
        return replace(found, late=(required > 0) & ~kept, cut=cut), objective, bound


def _earlier(problem: Problem, least: Float, early: Float) -> Float:
    """[J], as far from the least rates towards those of a round earlier as all can go together.

    Rounds are whole: who is promised just enough ends up to a round late.
    """
    top = np.where(least > 0, np.maximum(least, np.minimum(early, problem.fastest)), 0.0)

    def need(level: float) -> Float:
        return np.minimum(least + level * (top - least), top)

    return need(highest_level(problem, need, 1.0).level) if least.any() else least


def required_rate(s: Snapshot, margin: Seconds = 0.0) -> Float:
    """[J], throughput from now on that meets the deadline this many seconds early; 0 without one, infinite after it."""
    time = s.app_deadline[s.job_app] - s.now - margin
    with np.errstate(divide="ignore", invalid="ignore"):
        out: Float = np.where(time > 0, s.job_left / time, np.where(np.isfinite(time), np.inf, 0.0))
    return np.where(np.isnan(out), 0.0, out)
