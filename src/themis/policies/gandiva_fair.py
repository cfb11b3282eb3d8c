"""Gandiva-fair (EuroSys'20): every job's share of every type, then trades of fast GPUs against slow ones."""

from __future__ import annotations

from dataclasses import dataclass

from themis.model.snapshot import Snapshot
from themis.optimize.shares.problem import Problem, Shares
from themis.policies.gavel.baselines import gandiva_fair
from themis.policies.shares import SharePolicy, weights


@dataclass(frozen=True, slots=True, kw_only=True)
class GandivaFair(SharePolicy):
    """Proportional shares that are traded to everybody's gain.

    Attributes
    ----------
    tickets_by_size : a job's tickets are its GPUs, as Shockwave's comparison runs it (NSDI'23, §8.5): every job gets the
        same part of the time, large gangs more GPUs.
    """

    tickets_by_size: bool = False

    def allocate(self, snapshot: Snapshot, problem: Problem) -> Shares:
        """Allocate by trades."""
        tickets = weights(snapshot) * (problem.gpus if self.tickets_by_size else 1.0)
        return gandiva_fair(problem, tickets)
