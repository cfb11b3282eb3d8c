"""Gandiva-fair (EuroSys'20): every job's share of every type, then trades of fast GPUs against slow ones."""

from __future__ import annotations

from dataclasses import dataclass

from themis.gavel.baselines import gandiva_fair
from themis.gavel.problem import Problem, Shares
from themis.model.snapshot import Snapshot
from themis.policies.shares import SharePolicy, weights


@dataclass(frozen=True, slots=True, kw_only=True)
class GandivaFair(SharePolicy):
    """Proportional shares that are traded to everybody's gain."""

    def allocate(self, snapshot: Snapshot, problem: Problem) -> Shares:
        """By trades."""
        return gandiva_fair(problem, weights(snapshot))
