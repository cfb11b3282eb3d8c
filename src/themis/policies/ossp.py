"""Open-shop scheduling for makespan: Shockwave's baseline for efficiency, without fairness (NSDI'23, §8.2).

Rounds are planned so that the lower bound of the makespan of what is left, max(sum of GPU-seconds / GPUs, longest job), falls
most; of equals the job with most left goes first. Knows forecasts as Shockwave does.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from themis.errors import InputError
from themis.fairness.forecasts.rules import Forecaster, Rule
from themis.model.answers import Solved
from themis.model.snapshot import Snapshot
from themis.model.units import Seconds
from themis.policies.api import Cadence, Granularity, Workbench
from themis.policies.planned import Effort, View, solved


@dataclass(frozen=True, slots=True, kw_only=True)
class Ossp:
    """Least makespan.

    Attributes
    ----------
    round_s : length of a round. ``window`` : rounds planned ahead, 1 to 1000. ``backfill`` : use GPUs free in mid-round
        immediately.
    forecast : see ``themis.fairness.forecasts.rules``; greedy makes it reactive (Shockwave, figure 4).
    """

    round_s: Seconds = 120.0
    window: int = 120
    backfill: bool = True
    forecast: Rule = Rule.POSTERIOR

    claims: ClassVar[frozenset[str]] = frozenset()
    needs: ClassVar[frozenset[str]] = frozenset({"ahead"})
    level: ClassVar[Granularity] = Granularity.JOB

    def __post_init__(self) -> None:
        if not 1 <= self.window <= 1000:
            raise InputError(f"policy ossp: window is {self.window}, expected 1 to 1000 rounds.")

    @property
    def pace(self) -> Cadence:
        """Rounds."""
        return Cadence(self.round_s, backfill=self.backfill)

    @property
    def forecaster(self) -> Forecaster:
        """The forecasts that it plans on."""
        return Forecaster(rule=self.forecast)

    def __call__(self, snapshot: Snapshot, bench: Workbench) -> Solved:
        """The plan of least H, the longest jobs first; the proof is in seconds of H, negated."""
        view = View.of(snapshot, self.round_s)
        capacity = int(snapshot.machine_gpus.sum())
        window = view.window(self.window, weight=np.zeros(len(view.rows)), pull=1.0, capacity=capacity)
        # The jobs that may turn out longest go first; where two would keep changing places, the running one stays.
        return solved(snapshot, view, window, due=-view.ahead.risk_s, stay=True, effort=Effort(seconds=bench.seconds))
