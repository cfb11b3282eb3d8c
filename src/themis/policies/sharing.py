"""Space sharing for Gavel's policies (§3.1): time shares of jobs and of pairs of jobs on the GPUs of one gang.

Which pairs can share, and how fast, is what profiles say of the jobs as they train now (``Profile.beside``). Gangs share with
gangs of their size, and keep the share of their speed that profiles give for one GPU.
"""

from __future__ import annotations

from abc import abstractmethod
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from themis.errors import InputError
from themis.model.answers import CUT, Proof, Solved, TimeShare
from themis.model.snapshot import Snapshot
from themis.model.units import NONE, Float, Int, Seconds
from themis.optimize.shares.pairs import PairRates, PairShares, highest_level_paired, paired_throughput
from themis.optimize.shares.problem import Need, Problem
from themis.policies.api import Workbench
from themis.policies.gavel.pair_totals import best_total_paired
from themis.policies.shares import SharePolicy, problem_of


@dataclass(frozen=True, slots=True, kw_only=True)
class PairPolicy(SharePolicy):
    """A policy over time shares that can also share GPUs between pairs of jobs; what its objective leaves over then stays idle.

    Attributes
    ----------
    sharing : two jobs with gangs of one size may share GPUs where profiles know their speeds in pairs (§3.1).
    """

    sharing: bool = False

    chooses_types: ClassVar[bool] = True

    def __post_init__(self) -> None:
        if self.sharing and not self.aware:
            raise InputError(
                "sharing is true while aware is false; pairs need the rates of each type, so set aware=true."
            )

    @abstractmethod
    def paired(self, snapshot: Snapshot, problem: Problem) -> tuple[PairShares, float, float]:
        """Solve the policy's problem over jobs and pairs: shares, objective, and its bound."""

    def __call__(self, snapshot: Snapshot, bench: Workbench) -> Solved:
        """Shares of every job, or of jobs and pairs, on every type."""
        problem = problem_of(snapshot) if self.sharing else None
        if problem is None or not problem.active.any():
            return SharePolicy.__call__(self, snapshot, bench)
        found, objective, bound = self.paired(snapshot, problem)
        sign = -1.0 if self.smaller_is_better else 1.0
        return Solved(
            answer=share_of(snapshot, problem, found, self.round_s),
            proof=Proof(
                objective=sign * objective,
                bound=sign * bound,
                method=f"{CUT}: {found.cut}" if found.cut else type(self).__name__,
                late=snapshot.job_id[np.flatnonzero(found.late)]
                if found.late is not None
                else np.zeros(0, dtype=np.int64),
            ),
        )


def pair_rates(s: Snapshot, problem: Problem) -> PairRates:
    """Rates of pairs of configurations in gangs of one size, in the problem's reference GPUs; unpaired ones never share."""
    beside, here = s.speeds.beside, set(s.job_config.tolist())
    known = [(one, other, k) for one, other, k in beside if (other, one, k) in beside and {one, other} <= here]
    configs = np.unique(np.array([one for one, *_ in known], dtype=np.int64))
    share = np.zeros((len(configs), len(configs), problem.types))
    if known:
        one, other, k = np.array(known).T
        at = np.searchsorted(configs, one), np.searchsorted(configs, other), k
        share[at] = [beside[pair] for pair in known]
    # A row for each configuration and size that may be in a pair: models without measured pairs take no room.
    paired = np.flatnonzero(np.isin(s.job_config, configs))
    rows, of = np.unique(np.column_stack([s.job_config, problem.gpus])[paired], axis=0, return_inverse=True)
    alone = np.zeros((len(rows), problem.types))
    np.maximum.at(alone, of.reshape(-1), problem.rate[paired])
    config, size = np.searchsorted(configs, rows[:, 0]), rows[:, 1]
    rate = share[np.ix_(config, config)] * alone[:, None, :] * (size[:, None] == size)[:, :, None]
    model = np.full(problem.jobs, NONE)
    model[paired] = of.reshape(-1)
    return PairRates(model=model, rate=np.where((rate > 0) & (rate.transpose(1, 0, 2) > 0), rate, 0.0))


def shared_total(
    s: Snapshot,
    problem: Problem,
    weight: Float,
    cost: Float | None = None,
    *,
    relative: bool = True,
    least: Float | None = None,
) -> tuple[PairShares, float, float]:
    """The largest sum of weighted throughputs over jobs and pairs: shares, objective, its bound.

    Parameters
    ----------
    weight : [J]. ``cost`` : [K], divides throughputs on a type. ``relative`` : throughputs are counted by the fastest type's.
    least : [J], throughput that every job must get.
    """
    pairs = pair_rates(s, problem)
    worth = weight / np.where(problem.active, problem.fastest, 1.0) if relative else weight
    found = best_total_paired(problem, pairs, worth, cost, least=least)
    per_cost = found.x if cost is None else found.x / cost
    return found, float(worth @ paired_throughput(problem, pairs, found.combos, per_cost)), found.bound


def shared_level(s: Snapshot, problem: Problem, unit: Float) -> PairShares:
    """The highest level at which jobs and pairs give every job ``level x unit``; ``unit`` is [J], > 0 for jobs that run."""
    pairs, able = pair_rates(s, problem), problem.active
    safe = np.where(able, unit, 0.0)
    ceiling = float((pairs.fastest(problem)[able] / unit[able]).min())
    need: Need = lambda t: t * safe  # noqa: E731
    return highest_level_paired(problem, pairs, need, ceiling, safe[:, None])


def share_of(s: Snapshot, problem: Problem, found: PairShares, round_s: Seconds) -> TimeShare:
    """The answer: job ids instead of rows, without the last rounding errors."""
    runs = (found.x > 0).any(axis=1)
    rows, x = found.combos[runs], np.clip(found.x[runs], 0.0, 1.0)
    total = np.zeros(problem.jobs + 1)
    np.add.at(total, rows, x.sum(axis=1)[:, None])
    used = np.bincount(problem.pool, weights=problem.gpus[rows[:, 0]] @ x, minlength=len(problem.workers))
    over = np.divide(used, problem.workers, out=np.zeros(len(used)), where=problem.workers > 0)
    x = x / max(float(total[: problem.jobs].max(initial=0.0)), float(over.max(initial=0.0)), 1.0)
    ids: Int = np.append(s.job_id, NONE)
    return TimeShare(combos=ids[rows], gpus=problem.gpus[rows[:, 0]], x=x, round_s=round_s)
