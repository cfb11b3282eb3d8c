"""Space sharing for Gavel's policies (§3.1): time shares of jobs and of pairs of single-GPU jobs on one GPU.

Which pairs can share, and how fast, is what profiles say of the jobs as they train now (``Profile.beside``).
"""

from __future__ import annotations

import numpy as np

from themis.gavel.pairs import PairRates, PairShares, highest_level_paired
from themis.gavel.problem import Need, Problem
from themis.model.answers import TimeShare
from themis.model.snapshot import Snapshot
from themis.model.units import NONE, Float, Int, Seconds


def pair_rates(s: Snapshot, problem: Problem) -> PairRates:
    """Rates of configurations beside each other, in the problem's reference GPUs; gangs never share."""
    configs, model = np.unique(s.job_config, return_inverse=True)
    row = {int(c): m for m, c in enumerate(configs)}
    rate = np.zeros((len(configs), len(configs), problem.types))
    for (one, other, k), share in s.speeds.beside.items():
        if one in row and other in row:
            rate[row[one], row[other], k] = share * s.speeds.scale[one, k, 1]
    rate = np.where((rate > 0) & (rate.transpose(1, 0, 2) > 0), rate, 0.0)
    return PairRates(model=np.where(problem.gpus == 1, model.reshape(-1), NONE), rate=rate)


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
