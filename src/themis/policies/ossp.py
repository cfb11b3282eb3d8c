"""Open-shop scheduling for makespan: Shockwave's baseline for efficiency, without fairness (NSDI'23, §8.2).

Rounds are planned so that the lower bound of the makespan of what is left, max(sum of GPU-seconds / GPUs, longest job), falls
most; of equals the job with most left goes first. Knows forecasts as Shockwave does.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from themis.errors import InputError
from themis.model.answers import Solved
from themis.model.snapshot import Snapshot
from themis.model.units import Seconds
from themis.planning.window import window_of
from themis.policies.api import Level, Pace, Workbench
from themis.policies.planned import View, solved


@dataclass(frozen=True, slots=True, kw_only=True)
class Ossp:
    """Least makespan.

    Attributes
    ----------
    round_s : length of a round. ``window`` : rounds planned ahead, 1 to 1000. ``backfill`` : use GPUs free in mid-round at once.
    """

    round_s: Seconds = 120.0
    window: int = 120
    backfill: bool = True

    claims: ClassVar[frozenset[str]] = frozenset()
    needs: ClassVar[frozenset[str]] = frozenset({"ahead"})
    level: ClassVar[Level] = Level.JOB

    def __post_init__(self) -> None:
        if not 1 <= self.window <= 1000:
            raise InputError(f"policy ossp: window is {self.window}, expected 1 to 1000 rounds.")

    @property
    def pace(self) -> Pace:
        """Rounds."""
        return Pace(self.round_s, backfill=self.backfill)

    def __call__(self, snapshot: Snapshot, bench: Workbench) -> Solved:
        """The plan of least H, the longest jobs first; the proof is in seconds of H, negated."""
        view = View.of(snapshot, self.round_s)
        nothing = np.zeros(len(view.rows))
        window = window_of(
            view.ahead, view.gpus, weight=nothing, skipped=view.start_s, started=view.started, rounds=self.window,
            round_s=self.round_s, pull=1.0, capacity=int(snapshot.machine_gpus.sum()),
        )  # fmt: skip
        # Due is a job the earlier, the more it has left: nobody has slack, and the longest go first.
        return solved(snapshot, view, window, due=-view.ahead.left_s, gap=1e-3, nodes=2000, scale=1.0)
