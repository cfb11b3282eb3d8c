"""First in, first out over GPU types: throughput relative to the fastest type, earlier jobs weigh more (Gavel §4.2)."""

from __future__ import annotations

from dataclasses import dataclass

from themis.gavel.problem import Problem, Shares
from themis.gavel.total import in_order
from themis.model.snapshot import Snapshot
from themis.policies.shares import SharePolicy, by_arrival


@dataclass(frozen=True, slots=True, kw_only=True)
class FifoHetero(SharePolicy):
    """Maximise ``sum (M - m) throughput / fastest`` in order of arrival."""

    def allocate(self, snapshot: Snapshot, problem: Problem) -> Shares:
        """One linear program."""
        return in_order(problem, by_arrival(snapshot, problem))
