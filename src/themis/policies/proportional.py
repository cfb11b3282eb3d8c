"""Proportional: every job has its weighted share of every GPU type, no solver (Gavel §3.1's X_equal and X_isolated)."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from themis.model.snapshot import Snapshot
from themis.optimize.shares.problem import Problem, Shares
from themis.policies.gavel.max_min import least
from themis.policies.shares import SharePolicy, weights


@dataclass(frozen=True, slots=True, kw_only=True)
class Proportional(SharePolicy):
    """``X[j, k] = w_j / sum w N_k / gpus_j``, at most all of the time."""

    def allocate(self, snapshot: Snapshot, problem: Problem) -> Shares:
        """Shares by formula."""
        weight = weights(snapshot)
        share = np.where(problem.active, weight, 0.0)
        x = np.outer(share / max(float(share.sum()), 1e-300) / problem.gpus, problem.workers) * (problem.rate > 0)
        x = x / np.maximum(x.sum(axis=1, keepdims=True), 1.0)
        value = least(problem, weight, x)
        return Shares(x=x, objective=value, bound=value, price=np.zeros(len(problem.workers)))
