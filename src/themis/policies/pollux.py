"""Pollux (OSDI'21) as its artifact has it: the power mean of speedups, each over the job's fair share of GPUs.

    maximise  (1/n sum_j w_j (f_j(r_j) G_j(r_j) / G_j(fair))^p)^(1/p),  p = -1,  fair = ceil(GPUs / n)

G_j(r) is the goodput that the job would have on r GPUs now, by what is known of it. f charges a change of GPUs by the starts that a
job had: max(age - starts x start, 0) / (age + start) (the artifact's form of Pollux §4.2.1). A job whose curve is learned may have
twice the GPUs that it ran on so far (§4.1). The sum is solved exactly or with a proven bound over all gang sizes that pack
(``policies.gang_sizes``), gangs of three over two machines of four among them, in place of the artifact's genetic search over
placements.

Differs: a machine may hold parts of several gangs that are on two; a job that waits is charged no start, because it pays one
whenever it begins.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from themis.errors import InputError
from themis.model.snapshot import Snapshot
from themis.model.units import Float
from themis.policies.gang_sizes import LEAST, GangSizes, Options, Rows, goodput, restart_factor, weights

NOTHING = 0.01
"""Speedup that no GPUs count as, and the least that any change counts as."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Pollux(GangSizes):
    """Fair speedups, by a power mean.

    Attributes
    ----------
    p : power, at most 1; lower is fairer. 0 is Nash's product.
    """

    p: float = -1.0
    splits: ClassVar[bool] = True

    def __post_init__(self) -> None:
        if not -20 <= self.p <= 1:
            raise InputError(f"pollux: p is {self.p}, expected a power from -20 to 1.")

    def value(self, s: Snapshot, options: Options, rows: Rows) -> Float:
        """Weighted power of the speedup, its sign such that more is better."""
        fair = -(-int(s.machine_gpus.sum()) // max(len(s.job_id), 1))
        with np.errstate(divide="ignore", invalid="ignore"):
            speedup = goodput(s, rows, *options) / _of_fair_share(s, rows, fair)[:, None]
        speedup = np.maximum(np.nan_to_num(speedup, posinf=0.0) * restart_factor(s, rows), NOTHING)
        speedup[:, 0] = NOTHING
        value: Float = np.log(speedup) if self.p == 0 else np.sign(self.p) * speedup**self.p
        return weights(s, rows)[:, None] * value


def _of_fair_share(s: Snapshot, rows: Rows, fair: int) -> Float:
    """[J], goodput on the fair share, of the type where it is largest."""
    kinds = np.arange(len(s.gpu_types))
    sizes = np.full(len(kinds), fair)
    out: Float = np.maximum(goodput(s, rows, sizes, kinds).max(axis=1), LEAST)
    return out
