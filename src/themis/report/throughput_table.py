"""Throughputs that jobs of a run measured: a fold from an event log to a table of throughputs (Gavel §3.3).

A stretch lies between two reports of one attempt, and gives a number of steps in a number of seconds, alone or with one
neighbour that stayed on the job's GPUs. Stretches of equal model, batch, type, gang, placement and partner are pooled:
all their steps over all their seconds. Leaves out stretches across a change of neighbour or batch size, and those that
end in a crash.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass

from themis.model.events import (
    AppSubmitted,
    Grant,
    JobProgress,
    JobReached,
    JobStarted,
    JobStopped,
    LossReported,
    MachineJoined,
    MachineResized,
    Revoke,
)
from themis.model.log import Record
from themis.model.units import Locality, Seconds
from themis.model.workload import Job
from themis.report.accounts.held_leases import MachineGpus
from themis.traces.profiles.throughputs import Alone, Beside, Throughputs

_TOGETHER = (Locality.SLOT, Locality.MACHINE)
_SHORTEST: Seconds = 1.0
"""Shorter stretches say little: reports are rounded."""

Key = tuple[str, str, int, int, bool, tuple[str, int] | None]


@dataclass(slots=True)
class _Attempt:
    """A job on its GPUs: start and steps of the current stretch, its partner, and the time of the last change."""

    grant: Grant
    since: Seconds = 0.0
    steps: float = 0.0
    partner: tuple[str, int] | None = None
    until: Seconds = 0.0


def measured(records: Iterable[tuple[Seconds, Record]]) -> Throughputs:
    """The table of a log's records; empty where no job trained long enough."""
    fold = _Fold()
    for time, record in records:
        fold.take(time, record)
    return fold.table()


class _Fold:
    def __init__(self) -> None:
        self.jobs: list[Job] = []
        self.machines = MachineGpus()
        self.on: dict[int, _Attempt] = {}
        self.steps: dict[int, float] = {}
        self.done: dict[Key, tuple[float, Seconds]] = {}
        self.failed: set[int] = set()

    def take(self, time: Seconds, record: Record) -> None:
        match record:
            case MachineJoined() | MachineResized():
                self.machines.add(record)
            case AppSubmitted():
                self.jobs += record.app.jobs
            case Grant():
                self.on[record.job] = _Attempt(grant=record)
                self._neighbours(time, record)
            case JobStarted():
                if (attempt := self._of(record.job, record.attempt)) is not None:
                    self._begin(attempt, time, self.steps.get(record.job, 0.0))
            case Revoke():
                if record.cause == "failed":
                    self.failed.add(record.job)
            case JobProgress() | LossReported() | JobReached() | JobStopped():
                self._report(time, record)
            case _:
                pass

    def _report(self, time: Seconds, record: JobProgress | LossReported | JobReached | JobStopped) -> None:
        job, attempt = record.job, self._of(record.job, record.attempt)
        if attempt is not None:
            crashed = isinstance(record, JobStopped) and job in self.failed
            if time <= attempt.until and not crashed:
                self._count(attempt, time - attempt.since, record.steps)
            self._begin(attempt, time, record.steps)
        self.steps[job] = record.steps
        if isinstance(record, JobStopped | JobReached):
            self.failed.discard(job)
            gone = self.on.pop(job, None)
            if gone is not None:
                self._neighbours(time, gone.grant)

    def _begin(self, attempt: _Attempt, time: Seconds, steps: float) -> None:
        attempt.since, attempt.steps, attempt.until = time, steps, math.inf
        attempt.partner = self._partner(attempt)

    def _count(self, attempt: _Attempt, seconds: Seconds, steps: float) -> None:
        job = self.jobs[attempt.grant.job]
        batch = _batch(job, attempt.steps)
        if seconds < _SHORTEST or steps <= attempt.steps or _batch(job, steps - 1e-6) != batch:
            return
        gpus = attempt.grant.gpus
        key = (
            self.machines.gpu_type(gpus[0]),
            job.model,
            batch,
            len(gpus),
            Locality(attempt.grant.locality) in _TOGETHER,
            attempt.partner,
        )
        before, took = self.done.get(key, (0.0, 0.0))
        self.done[key] = before + (steps - attempt.steps) * job.scale(batch), took + seconds

    def _of(self, job: int, number: int) -> _Attempt | None:
        attempt = self.on.get(job)
        return attempt if attempt is not None and attempt.grant.attempt == number else None

    def _neighbours(self, time: Seconds, grant: Grant) -> None:
        """A job joined or left these GPUs: stretches under way there count only if they end at this instant."""
        for job, attempt in self.on.items():
            if job != grant.job and not set(grant.gpus).isdisjoint(attempt.grant.gpus):
                attempt.until = min(attempt.until, time)

    def _partner(self, attempt: _Attempt) -> tuple[str, int] | None:
        for job, other in self.on.items():
            if other is not attempt and not set(other.grant.gpus).isdisjoint(attempt.grant.gpus):
                spec = self.jobs[job]
                return spec.model, _batch(spec, self.steps.get(job, 0.0))
        return None

    def table(self) -> Throughputs:
        together: dict[str, dict[Alone, float]] = {}
        apart: dict[str, dict[Alone, float]] = {}
        beside: dict[str, dict[Beside, float]] = {}
        for (kind, model, batch, gpus, near, partner), (steps, seconds) in sorted(self.done.items(), key=repr):
            if partner is not None:
                if gpus == 1:
                    beside.setdefault(kind, {})[model, batch, *partner] = steps / seconds
            else:
                (together if near else apart).setdefault(kind, {})[model, batch, gpus] = steps / seconds
        known = {
            kind: {key: rate for key, rate in pairs.items() if (key[0], key[1], 1) in together.get(kind, {})}
            for kind, pairs in beside.items()
        }
        return Throughputs(
            together=together, apart=apart, beside={kind: pairs for kind, pairs in known.items() if pairs}
        )


def _batch(job: Job, steps: float) -> int:
    """Batch size of a job after this many steps."""
    end = 0.0
    for regime in job.regimes:
        end += regime.steps
        if steps < end - 1e-9:
            return regime.batch
    return job.regimes[-1].batch
