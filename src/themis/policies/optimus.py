"""Optimus (EuroSys'18) as the Themis paper ran it (§6.1): highest throughput scaling first.

    throughput of the app with the next GPU / its throughput without

An app that has nothing scales infinitely, so every app gets a gang before any gets two; of these the one that has received
least GPU time per unit of weight comes first, so that apps take turns where there are fewer GPUs than apps. Throughput is in
reference GPUs, at the span that the offer has for the gang: a GPU beyond the machine counts for what it brings. For steps of
more than one GPU the ratio is taken per GPU (its root). Leaves out parameter servers, and fitting speeds while jobs run.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from themis.model.answers import Solved
from themis.model.snapshot import Snapshot
from themis.policies.baseline import Baseline
from themis.policies.stepwise import by_gain


@dataclass(frozen=True, slots=True, kw_only=True)
class Optimus(Baseline):
    """Largest ratio of throughputs first, one GPU or smallest gang at a time."""

    turns: ClassVar[bool] = True

    def grant(self, snapshot: Snapshot) -> Solved:
        """Fill by gain in log throughput."""
        s = snapshot
        gang = s.speeds.effective(s.job_config, s.job_gpu_type, s.job_held, s.job_locality)
        held = np.bincount(s.job_app, weights=gang, minlength=s.apps).tolist()

        def log_throughput(a: int, gangs: Sequence[float]) -> float:
            throughput = held[a] + sum(gangs)
            return math.log(throughput) if throughput > 0 else -math.inf

        return by_gain(s, log_throughput, self.placement)
