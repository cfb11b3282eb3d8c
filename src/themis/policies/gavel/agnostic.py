"""Policies that do not know that types differ: the same objectives on flat rates. Gavel §7's baselines.

A job's rate is the workers' mean rate of the types that it may use, whichever it gets; what it gets is then spread
over the types equally, so that no type is favoured by accident.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from themis.model.units import Float
from themis.optimize.shares.problem import Problem


def flattened(problem: Problem) -> Problem:
    """The problem with every job at its mean rate on all types that it may use; a barred type counts 0."""
    mean = problem.equal_rate()
    return replace(problem, rate=np.where(problem.rate > 0, mean[:, None], 0.0))


def spread(problem: Problem, x: Float) -> Float:
    """[J, K], the same time for every job, on each type as all jobs that may use the same types have it together.

    Where all jobs may use all types, that is in proportion to the workers.
    """
    able = problem.rate > 0
    masks, group = np.unique(able, axis=0, return_inverse=True)
    group = group.reshape(-1)
    if len(masks) == 1 and len(problem.workers) == problem.types:
        part = np.broadcast_to(problem.workers / problem.workers.sum(), x.shape)
        return np.where(able, x.sum(axis=1, keepdims=True) * part, 0.0)
    used = np.zeros((len(masks), problem.types))
    np.add.at(used, group, problem.gpus[:, None] * x)
    part = used / np.maximum(used.sum(axis=1, keepdims=True), 1e-300)
    return np.where(able, x.sum(axis=1, keepdims=True) * part[group], 0.0)
