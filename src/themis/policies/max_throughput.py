"""Most throughput in total (Gavel §4.2), each job's counted relative to its fastest type."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from themis.model.snapshot import Snapshot
from themis.optimize.shares.pairs import PairShares
from themis.optimize.shares.problem import Problem, Shares
from themis.policies.gavel.total import best_total, relative
from themis.policies.sharing import PairPolicy, shared_total


@dataclass(frozen=True, slots=True, kw_only=True)
class MaxThroughput(PairPolicy):
    """Maximise the sum of throughputs.

    Attributes
    ----------
    printed : sum rates as they are, as the paper prints it; models with quick steps then win.
    """

    printed: bool = False

    def allocate(self, snapshot: Snapshot, problem: Problem) -> Shares:
        """One linear program."""
        return best_total(problem, problem.rate if self.printed else relative(problem))

    def paired(self, snapshot: Snapshot, problem: Problem) -> tuple[PairShares, float, float]:
        """The same sum over jobs and pairs."""
        return shared_total(snapshot, problem, np.ones(problem.jobs), relative=not self.printed)
