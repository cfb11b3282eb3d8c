"""Elastic finish: proportional fairness of speedups, weighted towards jobs with little work left, for jobs that scale.

    maximise  sum_j w_j log(f_j(r_j) G_j(r_j) / G_j(1)),  sum_j r_j <= GPUs,  w_j = (k_j / n)^beta

G_j(r) is the goodput of job j on r GPUs now: a gang may change each round, so what it would do later is decided then (decision
125). k_j is its rank by the time that it has left on one GPU: 1 for the longest, n for the shortest. beta = 0 is Nash's fairness
(Pollux' for p = 0), a large beta shortest remaining service first. f charges a change of GPUs of a running job with its start,
written off over 1 to 5 minutes; a job that waits pays it in any case. No GPUs count as a speedup of 0.01. Jobs of one size are jobs
with one option. The jobs of an app share its weight.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from themis.errors import InputError
from themis.model.snapshot import Snapshot
from themis.model.units import Float, Seconds
from themis.policies.gang_sizes import GangSizes, Options, Rows, alone_s, goodput, goodput_of_one, weights

NOTHING = 0.01
"""Speedup that no GPUs count as."""
WRITTEN_OFF = (60.0, 300.0)
"""Seconds, fewest and most, over which a start is written off."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ElasticFinish(GangSizes):
    """Fair speedups, short jobs first.

    Attributes
    ----------
    beta : 0 to 100; larger finishes short jobs sooner and long ones later.
    """

    beta: float = 1.0

    def __post_init__(self) -> None:
        if not 0 <= self.beta <= 100:
            raise InputError(f"elastic_finish: beta is {self.beta}, expected a number from 0 to 100.")

    def value(self, s: Snapshot, options: Options, rows: Rows) -> Float:
        """Weighted logarithm of the speedup, starts included."""
        with np.errstate(divide="ignore"):
            value = np.log(goodput(s, rows, *options) / goodput_of_one(s, rows)[:, None] * self._kept(s, rows))
        value[:, 0] = np.log(NOTHING)
        one = alone_s(s, rows)
        rank = np.empty(len(one))
        rank[np.lexsort((s.job_id[rows.job], -one))] = np.arange(1, len(one) + 1)
        return (weights(s, rows) * (rank / max(len(one), 1)) ** self.beta)[:, None] * value

    def _kept(self, s: Snapshot, rows: Rows) -> Float:
        """[J, C], part of the time in which a gang trains: less where a running job must start again."""
        start: Seconds = s.restart_s
        over = np.clip(rows.seconds, *WRITTEN_OFF)
        over[~np.isfinite(rows.seconds)] = WRITTEN_OFF[1]
        cost = (start + s.speeds.checkpoint_s[s.job_config[rows.job]])[:, None]
        kept = np.maximum(over - cost, 1.0) / over
        kept[~rows.runs] = 1.0
        kept[np.arange(len(rows.job)), rows.now] = 1.0
        return kept
