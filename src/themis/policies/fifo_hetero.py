"""First in, first out over GPU types: throughput relative to the fastest type, earlier jobs weigh more (Gavel §4.2)."""

from __future__ import annotations

from dataclasses import dataclass

from themis.model.snapshot import Snapshot
from themis.optimize.shares.pairs import PairShares
from themis.optimize.shares.problem import Problem, Shares
from themis.policies.gavel.total import in_order, precedence
from themis.policies.shares import by_arrival
from themis.policies.sharing import PairPolicy, shared_total


@dataclass(frozen=True, slots=True, kw_only=True)
class FifoHetero(PairPolicy):
    """Maximise ``sum (M - m) throughput / fastest`` in order of arrival."""

    def allocate(self, snapshot: Snapshot, problem: Problem) -> Shares:
        """One linear program."""
        return in_order(problem, by_arrival(snapshot, problem))

    def paired(self, snapshot: Snapshot, problem: Problem) -> tuple[PairShares, float, float]:
        """The same sum over jobs and pairs."""
        return shared_total(snapshot, problem, precedence(by_arrival(snapshot, problem)))
