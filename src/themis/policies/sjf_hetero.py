"""Shortest job first over GPU types: FIFO's objective in order of time left on the fastest type (Gavel §4.2)."""

from __future__ import annotations

from dataclasses import dataclass

from themis.model.snapshot import Snapshot
from themis.model.units import Int
from themis.optimize.shares.pairs import PairShares
from themis.optimize.shares.problem import Problem, Shares
from themis.policies.gavel.total import in_order, precedence, shortest_first
from themis.policies.shares import by_arrival
from themis.policies.sharing import PairPolicy, shared_total


@dataclass(frozen=True, slots=True, kw_only=True)
class SjfHetero(PairPolicy):
    """Maximise ``sum (M - m) throughput / fastest`` in order of remaining time."""

    def allocate(self, snapshot: Snapshot, problem: Problem) -> Shares:
        """One linear program."""
        return in_order(problem, _by_time_left(snapshot, problem))

    def paired(self, snapshot: Snapshot, problem: Problem) -> tuple[PairShares, float, float]:
        """The same sum over jobs and pairs."""
        return shared_total(snapshot, problem, precedence(_by_time_left(snapshot, problem)))


def _by_time_left(s: Snapshot, problem: Problem) -> Int:
    """[J], jobs from the one with least time left alone on its fastest type; of equals the first to arrive."""
    first = by_arrival(s, problem)
    inner = shortest_first(Problem.of(problem.rate[first], problem.gpus[first], problem.workers), s.job_left[first])
    return first[inner]
