"""Gandiva (OSDI'18) as Gavel compares with it (§7): where demand exceeds supply, single-GPU jobs are paired at random."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from themis.gavel.baselines import gandiva_packing
from themis.gavel.pairs import PairShares, paired_throughput
from themis.model.answers import Proof, Solved
from themis.model.snapshot import Snapshot
from themis.model.units import Seconds
from themis.policies.api import Level, Pace, Workbench
from themis.policies.shares import problem_of
from themis.policies.sharing import pair_rates, share_of


@dataclass(frozen=True, slots=True, kw_only=True)
class GandivaPacking:
    """Every job, or random pair of jobs, has its part of every type; drawn anew whenever jobs come or go.

    Attributes
    ----------
    round_s : length of a round, seconds.
    """

    round_s: Seconds = 360.0

    claims: ClassVar[frozenset[str]] = frozenset()
    needs: ClassVar[frozenset[str]] = frozenset()
    level: ClassVar[Level] = Level.JOB

    @property
    def pace(self) -> Pace:
        """Rounds."""
        return Pace(self.round_s, 0.0, True)

    def __call__(self, snapshot: Snapshot, bench: Workbench) -> Solved:
        """Shares of jobs and of pairs."""
        problem = problem_of(snapshot)
        pairs = pair_rates(snapshot, problem)
        combos, x = gandiva_packing(problem, pairs, np.random.default_rng([snapshot.seed, snapshot.version]))
        total = float(paired_throughput(problem, pairs, combos, x).sum())
        found = PairShares(combos=combos, x=x, throughput=np.zeros(0), bound=total, columns=len(combos))
        return Solved(
            answer=share_of(snapshot, problem, found, self.round_s),
            proof=Proof(objective=total, bound=total, method=type(self).__name__),
        )
