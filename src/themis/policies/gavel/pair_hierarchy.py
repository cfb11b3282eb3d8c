"""Hierarchies of entities with pairs of jobs on one GPU: Gavel §4.3 with §3.1's space sharing.

What fills a hierarchy is normalised effective throughput, which each job has, also in a pair. So a pair
belongs to no entity: each of its jobs counts in its own entity with its own rate, and jobs of different entities may
share a GPU (decision 16). The rules are those of ``hierarchy``, the filling that of ``pair_filling``.
"""

from __future__ import annotations

import numpy as np

from themis.model.units import Float
from themis.optimize.shares.pair_filling import fill_paired
from themis.optimize.shares.pairs import PairRates, PairShares
from themis.optimize.shares.problem import Problem
from themis.policies.gavel.finish_time_shares import JobsProgress
from themis.policies.gavel.hierarchy import Entity, growth
from themis.policies.gavel.max_min import normalised_unit


def hierarchical_paired(
    problem: Problem, pairs: PairRates, root: Entity, weight: Float, progress: JobsProgress | None = None
) -> tuple[PairShares, float]:
    """Fill the hierarchy over jobs and pairs.

    Parameters
    ----------
    weight : [J], of jobs within their entity; > 0. ``progress`` : needed where an entity's rule is finish_time_fairness.

    Returns
    -------
    Shares, and as objective what they reach of their ``bound``: the most normalised throughput of all jobs up to which the
    hierarchy's rules are met to the letter, as in ``hierarchical``.

    Raises
    ------
    NotSolved : columns or levels do not settle.
    """
    unit = np.where(problem.active, normalised_unit(problem), 1.0)
    found, first = fill_paired(problem, pairs, unit, growth(root, weight, unit, progress))
    some = first > 0
    part = float((found.throughput[some] / (first * unit)[some]).min(initial=1.0))
    return found, part * found.bound
