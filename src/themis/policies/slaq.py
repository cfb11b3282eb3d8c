"""SLAQ (SoCC'17) as the Themis paper ran it (§6.1): highest loss decrease with the allocation first.

A job that takes i steps more within its lease lowers its loss by

    a / (b done + 1) - a / (b (done + i) + 1),    i = min(lease / seconds per step, steps left)

which falls with every GPU that it already got, so GPU after GPU goes where the loss falls most. Loss curves are known,
as the Themis paper's simulator assumes; losses are compared as they are, without SLAQ's normalisation, as its text
says. Leaves out fitting the curves.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

from themis.model.answers import Solved
from themis.model.snapshot import Snapshot
from themis.policies.baseline import Baseline
from themis.policies.stepwise import by_gain, start_order


@dataclass(frozen=True, slots=True, kw_only=True)
class Slaq(Baseline):
    """Largest decrease of loss in a lease first, one GPU or smallest gang at a time."""

    turns: ClassVar[bool] = True

    def grant(self, snapshot: Snapshot) -> Solved:
        """Fill by decrease of the apps' summed losses."""
        s = snapshot
        jobs: dict[int, list[int]] = {}
        height: list[float] = (s.job_loss_a / (s.job_loss_b * s.job_done + 1)).tolist()
        # How fast loss falls and how far, relative to its height: per reference GPU in a lease, and in all.
        pace = s.job_loss_b / (s.job_loss_b * s.job_done + 1) / s.job_serial
        fall, most = (pace * s.lease_s).tolist(), (pace * s.job_left).tolist()

        def decrease(a: int, gangs: Sequence[float]) -> float:
            if a not in jobs:
                jobs[a] = start_order(s, a).tolist()
            return math.fsum(height[j] * (1 - 1 / (1 + min(fall[j] * e, most[j]))) for j, e in zip(jobs[a], gangs))

        return by_gain(s, decrease, self.placement)
