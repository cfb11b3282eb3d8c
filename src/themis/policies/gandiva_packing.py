"""Gandiva (OSDI'18) as Gavel compares with it (§7): where demand exceeds supply, single-GPU jobs are paired at random."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from themis.model.answers import Proof, Solved
from themis.model.snapshot import Snapshot
from themis.model.units import Seconds
from themis.optimize.shares.pairs import PairShares, paired_throughput
from themis.policies.api import Cadence, Granularity, Workbench
from themis.policies.gavel.baselines import gandiva_packing
from themis.policies.shares import problem_of
from themis.policies.sharing import pair_rates, share_of


@dataclass(frozen=True, slots=True, kw_only=True)
class GandivaPacking:
    """Every job, or random pair of jobs, has its part of every type; pairs are formed where they do more than one job alone.

    Attributes
    ----------
    round_s : length of a round, seconds.
    """

    round_s: Seconds = 360.0

    claims: ClassVar[frozenset[str]] = frozenset()
    needs: ClassVar[frozenset[str]] = frozenset()
    level: ClassVar[Granularity] = Granularity.JOB

    @property
    def pace(self) -> Cadence:
        """Rounds; GPUs beyond all entitlements do not idle while a job waits."""
        return Cadence(self.round_s, 0.0)

    def __call__(self, snapshot: Snapshot, bench: Workbench) -> Solved:
        """Shares of jobs and of pairs."""
        problem = problem_of(snapshot)
        pairs = pair_rates(snapshot, problem)
        # Hashed by id: as jobs come and go, the others keep their places in the order.
        key = np.array([_unit_hash(snapshot.seed, j) for j in snapshot.job_id.tolist()])
        combos, x = gandiva_packing(problem, pairs, key)
        total = float(paired_throughput(problem, pairs, combos, x).sum())
        found = PairShares(combos=combos, x=x, throughput=np.zeros(0), bound=total, columns=len(combos))
        return Solved(
            answer=share_of(snapshot, problem, found, self.round_s),
            proof=Proof(objective=total, bound=total, method=type(self).__name__),
        )


def _unit_hash(seed: int, job: int) -> float:
    """A number in [0, 1) that depends on both arguments alone."""
    digest = hashlib.blake2b(f"{seed}/{job}".encode(), digest_size=8).digest()
    return int.from_bytes(digest, "big") / 2**64
