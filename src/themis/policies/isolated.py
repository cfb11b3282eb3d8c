"""Isolated: every app has its weighted 1/N of the cluster for itself; the yardstick of finish-time fairness.

A time share: an app's fraction of the GPUs goes to its jobs by work left, so that they would end together, each at
most all of the time. Gangs that do not fit an app's share take turns over the rounds. Whole rounds and restarts keep it
from giving everybody quite a 1/N, so it claims nothing.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from themis.model.answers import Solved, TimeShare
from themis.model.snapshot import Snapshot
from themis.model.units import NONE, Float, Int, Seconds
from themis.placement.packing import most_gpus
from themis.policies.api import Cadence, Granularity, Workbench


@dataclass(frozen=True, slots=True, kw_only=True)
class Isolated:
    """A private 1/N for each app, realised in rounds."""

    round_s: Seconds = 360.0
    spare: bool = True
    """GPUs that no private share claims in a round go to jobs that wait; false: the bare yardstick, where they idle."""

    claims: ClassVar[frozenset[str]] = frozenset()
    needs: ClassVar[frozenset[str]] = frozenset()
    level: ClassVar[Granularity] = Granularity.JOB

    @property
    def pace(self) -> Cadence:
        """Rounds."""
        return Cadence(self.round_s, spare=self.spare)

    def __call__(self, snapshot: Snapshot, bench: Workbench) -> Solved:
        """x[j, k]: the app's share of type k, split over its jobs."""
        s = snapshot
        in_service = np.bincount(s.machine_type, weights=s.machine_gpus, minlength=len(s.gpu_types))
        share = s.app_weight / s.app_weight.sum() * in_service.sum()
        gpus, most = np.zeros(s.jobs, dtype=np.int64), most_gpus(s)
        x = np.zeros((s.jobs, len(s.gpu_types)))
        for a in range(s.apps):
            at = slice(int(s.job_ptr[a]), int(s.job_ptr[a + 1]))
            each = _water_fill(s.job_left[at], most[at].astype(float), float(share[a]))
            gpus[at] = np.clip(np.ceil(each - 1e-9), s.job_gpus_min[at], most[at])
            on = s.job_allowed[at] * in_service
            x[at] = (each / gpus[at])[:, None] * on / np.maximum(on.sum(axis=1, keepdims=True), 1e-9)
        x = np.clip(x, 0.0, 1.0)
        # Apps that may use some types only can ask more of these than there is: there they all get less, alike.
        x *= np.minimum(in_service / np.maximum(gpus @ x, 1e-9), 1.0)
        combos: Int = np.stack([s.job_id, np.full(s.jobs, NONE)], axis=1)
        return Solved(answer=TimeShare(combos=combos, gpus=gpus, x=x, round_s=self.round_s))


def _water_fill(left: Float, most: Float, gpus: float) -> Float:
    """Split ``gpus`` in proportion to work left, nobody above its most; fractional."""
    out = np.zeros(len(left))
    open_ = np.ones(len(left), dtype=bool)
    while open_.any() and gpus > 1e-12:
        fair = gpus * left / max(float(left[open_].sum()), 1e-12)
        full = open_ & (fair >= most)
        if not full.any():
            out[open_] = fair[open_]
            break
        out[full] = most[full]
        gpus -= float(most[full].sum())
        open_ &= ~full
    return out
