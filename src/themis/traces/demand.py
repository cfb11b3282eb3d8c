"""GPUs that a workload would hold at each moment if no job ever waited: demand, to compare with a cluster.

Every job starts when its app arrives and takes its time on ``gpus_max`` reference GPUs at the best placement; a sweep's
rungs follow one another, brackets run side by side, and curve stopping ends jobs as in its dry run. Demand above
the capacity is what has to queue.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from themis.errors import InputError
from themis.model.speed import ProfileBook
from themis.model.units import Float, Seconds
from themis.model.workload import App, Workload, brackets_of
from themis.traces.mix import ReferenceRates
from themis.traces.profiles.models import DEFAULT_BOOK
from themis.traces.trace_summary import job_seconds, shares_run

BLOCKS = "▁▂▃▄▅▆▇█"


@dataclass(frozen=True, slots=True, kw_only=True)
class DemandCurve:
    """GPUs wanted over time.

    Attributes
    ----------
    edges : [B+1], seconds, equally far apart. ``gpus`` : [B], the mean within each stretch.
    peak : most GPUs at any moment.
    """

    edges: Float
    gpus: Float
    peak: float

    @property
    def mean(self) -> float:
        """Mean over the whole time."""
        return float(self.gpus.mean())

    def above(self, capacity: float) -> float:
        """Share of the time, in [0, 1] and as fine as the stretches, in which demand exceeds the GPUs."""
        return float((self.gpus > capacity).mean())


def demand(workload: Workload, book: ProfileBook = DEFAULT_BOOK, *, bins: int = 400) -> DemandCurve:
    """Demand from the first arrival to the last end, in ``bins`` stretches.

    Raises
    ------
    InputError : the workload has no apps.
    """
    if not workload.apps:
        raise InputError(f"workload {workload.name!r} has no apps, expected at least one.")
    rates = ReferenceRates(book)
    spells = np.array([spell for app in workload.apps for spell in _spells(app, rates)], dtype=np.float64)
    start, end, gpus = spells.T
    times, where = np.unique(np.concatenate([start, end]), return_inverse=True)
    change = np.zeros(len(times))
    np.add.at(change, where, np.concatenate([gpus, -gpus]))
    held = np.cumsum(change)
    # GPU-seconds up to each time are straight lines in between, so means over a stretch are exact.
    upto = np.concatenate([[0.0], np.cumsum(held[:-1] * np.diff(times))])
    edges = np.linspace(times[0], times[-1], bins + 1)
    return DemandCurve(
        edges=edges, gpus=np.diff(np.interp(edges, times, upto)) / np.diff(edges), peak=float(held.max())
    )


def sparkline(values: Float, width: int = 60) -> str:
    """The values as blocks, the highest a full one; each the mean of its share of them."""
    parts = [float(part.mean()) for part in np.array_split(np.asarray(values), min(width, len(values)))]
    top = max(parts)
    if top <= 0:
        return BLOCKS[0] * len(parts)
    return "".join(BLOCKS[min(len(BLOCKS) - 1, int(part / top * len(BLOCKS)))] for part in parts)


def _spells(app: App, rates: ReferenceRates) -> Iterator[tuple[Seconds, Seconds, int]]:
    """(start, end, GPUs) of each job, or of each rung of a sweep."""
    brackets = brackets_of(app.tuner)
    if not brackets:
        for job, share in zip(app.jobs, shares_run(app)):
            yield app.arrival, app.arrival + share * job_seconds(job, job.gpus_max, rates), job.gpus_max
        return
    most = max(job.gpus_max for job in app.jobs)
    step = sum(job.scale(job.regimes[0].batch) / rates(job.model, most) for job in app.jobs) / len(app.jobs)
    for bracket in brackets:
        at = app.arrival
        for rung in bracket.rungs:
            end = at + rung.steps * step
            yield at, end, rung.jobs * most
            at = end
