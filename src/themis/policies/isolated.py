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
from themis.policies.api import Cadence, Granularity, Workbench
from themis.policies.placement.packing import most_gpus


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
        most = most_gpus(s)
        each = _water_fill(s.job_left, most.astype(float), s.job_app, share)
        gpus: Int = np.clip(np.ceil(each - 1e-9), s.job_gpus_min, most).astype(np.int64)
        on = s.job_allowed * in_service
        x = (each / gpus)[:, None] * on / np.maximum(on.sum(axis=1, keepdims=True), 1e-9)
        x = np.clip(x, 0.0, 1.0)
        # Apps that may use only some types can demand more of these than exist: there they all get equally less.
        x *= np.minimum(in_service / np.maximum(gpus @ x, 1e-9), 1.0)
        combos: Int = np.stack([s.job_id, np.full(s.jobs, NONE)], axis=1)
        return Solved(answer=TimeShare(combos=combos, gpus=gpus, x=x, round_s=self.round_s))


def _water_fill(left: Float, most: Float, app: Int, gpus: Float) -> Float:
    """Split each app's GPUs over its jobs in proportion to work left, no job above its most; fractional.

    Parameters
    ----------
    left, most : [J], GPU seconds and GPUs. ``app`` : [J], rising. ``gpus`` : [A].
    """
    out, gpus = np.zeros(len(left)), gpus.copy()
    at = np.flatnonzero(gpus[app] > 1e-12)
    while len(at):
        of = app[at]
        first = np.flatnonzero(np.diff(of, prepend=NONE))
        number = np.repeat(np.arange(len(first)), np.diff(np.append(first, len(at))))
        # A zero before each app's jobs: sums then cover only the apps' jobs, to the last bit.
        total = np.add.reduceat(np.insert(left[at], first, 0.0), first + np.arange(len(first)))
        fair = gpus[of] * left[at] / np.maximum(total, 1e-12)[number]
        full = fair >= most[at]
        filled = np.bincount(number, weights=np.where(full, most[at], 0.0))
        done = np.bincount(number, weights=full) == 0
        out[at] = np.where(full, most[at], np.where(done[number], fair, 0.0))
        gpus[of[first]] -= filled
        at = at[~full & ~done[number] & (gpus[of] > 1e-12)]
    return out
