"""Sia (SOSP'23) as its artifact has it: a gang of one GPU type for each job, by a binary program over configurations.

    minimise  sum_j sum_c X_jc (f_jc G_jc)^p + lambda (n - sum_jc X_jc),  p = -1/2,  lambda = 1.1

G_jc is the goodput with configuration c over the job's smallest. f charges a change of GPUs: max(age - starts d, 0) / (age + d) for
a start of d seconds, 1 while the job is younger than d. Configurations: powers of two within a machine, and whole machines, of each
type. HiGHS solves it; the relaxation's bound is in the proof.

Differs: powers are not rounded to two decimals nor cut at 3,000; a job that waits is charged no start.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from themis.errors import InputError
from themis.model.snapshot import Snapshot
from themis.model.units import Float
from themis.policies.gang_sizes import GangSizes, Options, Rows, goodput, restart_factor, weights

LEAST = 1e-4
"""Least goodput that a change counts as, over the job's smallest: a power of it stays finite."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Sia(GangSizes):
    """Goodputs over each job's smallest, by a power.

    Attributes
    ----------
    p : power, below 0. ``idle`` : what a job without GPUs costs, above 0.
    """

    p: float = -0.5
    idle: float = 1.1

    def __post_init__(self) -> None:
        if not -20 <= self.p < 0:
            raise InputError(f"sia: p is {self.p}, expected a power from -20 to below 0.")
        if not 0 < self.idle < 1e6:
            raise InputError(f"sia: idle is {self.idle}, expected a cost above 0.")

    def value(self, s: Snapshot, options: Options, rows: Rows) -> Float:
        """The cost with the other sign."""
        found = goodput(s, rows, *options)
        may = np.isfinite(rows.seconds) & (found > 0)
        may[:, 0] = False
        least = np.where(may, found, np.inf).min(axis=1, initial=np.inf)
        start = s.restart_s + s.speeds.checkpoint_s[s.job_config[rows.job]]
        young = s.now - s.app_arrival[s.job_app[rows.job]] < start
        factor = np.where(young[:, None], 1.0, restart_factor(s, rows))
        with np.errstate(invalid="ignore"):
            ratio = np.where(may, factor * found / least[:, None], 1.0)
        value = -(np.maximum(ratio, LEAST) ** self.p)
        value[:, 0] = -self.idle
        out: Float = weights(s, rows)[:, None] * value
        return out
