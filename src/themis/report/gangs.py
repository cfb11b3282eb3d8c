"""Gangs of elastic jobs over time: GPUs, goodput, statistical efficiency, batch size, and seconds that starts took.

A fold over leases and reports of steps. A piece ends where the job reports its steps or its lease ends, so its goodput is what was
done, not what was believed. Batch size and efficiency follow from the noise and step times that an adaptive job reported last
(``model.goodput``); of other jobs they are not known. Jobs with one gang size have no rows.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np

from themis.model.events import GoodputReported, JobProgress, JobReached, JobStopped
from themis.model.goodput import Adaptive, Goodput, StepTimes, efficiency
from themis.model.units import Seconds
from themis.model.workload import App
from themis.report.accounts.held_leases import HeldLease

MOST = 20_000
"""Pieces kept of a run, the first ones; the page says so where there are more."""


class Piece(NamedTuple):
    """A stretch of training. ``start`` to ``end`` : seconds of the run. ``start_s`` : seconds that its gang took to start before.

    ``goodput`` : steps per second, of an adaptive job steps at its base batch size. ``batch``, ``efficiency`` : NaN where unknown.
    A gang that was stopped before it trained has an empty stretch.
    """

    job: int
    start: Seconds
    end: Seconds
    gpus: int
    start_s: Seconds
    goodput: float
    efficiency: float
    batch: float


@dataclass(slots=True)
class _Elastic:
    """An elastic job so far; ``lease`` : its last, from the start of its training on."""

    adaptive: Adaptive | None
    lease: HeldLease | None = None
    since: Seconds = 0.0
    steps: float = 0.0
    noise: float = math.nan
    times: dict[str, StepTimes] = field(default_factory=dict)


@dataclass(slots=True)
class Gangs:
    """The fold."""

    jobs: dict[int, _Elastic] = field(default_factory=dict)
    pieces: list[Piece] = field(default_factory=list)

    def submit(self, first: int, app: App) -> None:
        """An app arrived; its first job has this number."""
        for j, job in enumerate(app.jobs, start=first):
            if job.adaptive is not None or job.gpus_min < job.gpus_max:
                self.jobs[j] = _Elastic(job.adaptive)

    def train(self, time: Seconds, lease: HeldLease) -> None:
        """A gang trains from now on."""
        if (job := self.jobs.get(lease.job)) is not None:
            job.lease, job.since = lease, time

    def report(self, time: Seconds, event: GoodputReported | JobProgress | JobReached | JobStopped) -> None:
        """A gang says how many steps are done."""
        job = self.jobs.get(event.job)
        if job is None or job.lease is None or job.lease.attempt != event.attempt:
            return
        end = job.lease.end(time)
        if end > job.since and event.steps > job.steps:
            restart_s = job.lease.restart_s(time) if job.since == job.lease.started else 0.0
            done = (event.steps - job.steps) / (end - job.since)
            self._add(Piece(event.job, job.since, end, job.lease.gpus, restart_s, done, *self._batch(job)))
            job.since, job.steps = end, event.steps
        if isinstance(event, GoodputReported):
            job.noise, job.times[event.gpu_type] = event.noise, StepTimes.of(event.times)

    def revoke(self, lease: HeldLease) -> None:
        """A lease ended; what its gang did is in a report that follows."""
        if lease.job in self.jobs and math.isnan(lease.started):
            end, nan = lease.ended, math.nan
            self._add(Piece(lease.job, end, end, lease.gpus, lease.restart_s(end), 0.0, nan, nan))

    def _batch(self, job: _Elastic) -> tuple[float, float]:
        """(Efficiency, batch size) by the last report."""
        if job.adaptive is None or job.lease is None or not job.times:
            return math.nan, math.nan
        of, gpus = job.adaptive, job.lease.gpus
        best = Goodput(batches=of, times=tuple(job.times.items())).best(job.lease.gpu_type, job.noise, gpus)
        batch = gpus * float(best.local[gpus]) * (float(best.accumulations[gpus]) + 1.0)
        return float(efficiency(np.array(batch), of.base, job.noise)), batch

    def _add(self, piece: Piece) -> None:
        if len(self.pieces) < MOST:
            self.pieces.append(piece)
