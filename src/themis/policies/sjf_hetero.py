"""Shortest job first over GPU types: FIFO's objective in order of time left on the fastest type (Gavel §4.2)."""

from __future__ import annotations

from dataclasses import dataclass

from themis.gavel.problem import Problem, Shares
from themis.gavel.total import in_order, shortest_first
from themis.model.snapshot import Snapshot
from themis.policies.shares import SharePolicy, by_arrival


@dataclass(frozen=True, slots=True, kw_only=True)
class SjfHetero(SharePolicy):
    """Maximise ``sum (M - m) throughput / fastest`` in order of remaining time."""

    def allocate(self, snapshot: Snapshot, problem: Problem) -> Shares:
        """One linear program."""
        first = by_arrival(snapshot, problem)
        inner = shortest_first(
            Problem.of(problem.rate[first], problem.gpus[first], problem.workers), snapshot.job_left[first]
        )
        return in_order(problem, first[inner])
