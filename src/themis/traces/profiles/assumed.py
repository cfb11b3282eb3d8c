"""Speeds that a workload's jobs depend on, and the unmeasured ones among them.

A speed is that of a model at a batch size, of a gang on a GPU type. ``Profile.is_assumed`` says which are assumed; here they
are listed for an app, so that the log can hold them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from themis.model.cluster import Reach, places
from themis.model.events import AssumedSpeed
from themis.model.speed import ProfileBook
from themis.model.units import GpuSeconds, Locality, Seconds
from themis.model.workload import App, Job


class Assumptions:
    """The assumed speeds of apps by a book; answers are remembered."""

    def __init__(self, book: ProfileBook) -> None:
        self.book = book
        self._known: dict[tuple[str, int, str, int], bool] = {}

    def of(self, app: App, gpu_types: Sequence[str]) -> tuple[AssumedSpeed, ...]:
        """Unmeasured speeds that the app depends on, each once, in order of its jobs."""
        found: dict[AssumedSpeed, None] = {}
        for speed in speeds_of(app.jobs, gpu_types):
            if speed not in self._known:
                profile = self.book.profiles.get(speed[0])
                self._known[speed] = profile is not None and profile.is_assumed(speed[2], speed[1], speed[3])
            if self._known[speed]:
                found[AssumedSpeed(*speed)] = None
        return tuple(found)


def speeds_of(jobs: Sequence[Job], gpu_types: Sequence[str]) -> dict[tuple[str, int, str, int], None]:
    """(model, batch size, GPU type, GPUs) of the smallest and the largest gang of each job, each once, in order."""
    return {
        (model, batch, kind, gpus): None
        for job in jobs
        for model, batch in job.configs
        for kind in gpu_types
        if not job.gpu_types or kind in job.gpu_types
        for gpus in dict.fromkeys((job.gpus_min, job.gpus_max))
    }


def alone(book: ProfileBook, app: App, reach: Mapping[str, Reach]) -> tuple[GpuSeconds, Seconds] | None:
    """GPU-seconds of an app's work, and seconds of its longest job, each by its fastest gang on the best place there is.

    ``reach`` : of the machines (``model.cluster.reaches``).

    As believed when it comes: of a job whose program decides, all at its first batch size. None where a job has no speed.
    """
    work = longest = 0.0
    found: dict[tuple[str, int, int, int, tuple[str, ...]], tuple[float, int]] = {}
    for job in app.jobs:
        seconds = gpu_seconds = 0.0
        for regime in job.expected_regimes:
            key = (job.model, regime.batch, job.gpus_min, job.gpus_max, job.gpu_types)
            if key not in found:
                found[key] = _fastest(book, *key, reach)
            rate, gpus = found[key]
            if rate <= 0:
                return None
            takes = regime.steps * job.scale(regime.batch) / rate
            seconds += takes
            gpu_seconds += takes * gpus
        work += gpu_seconds
        longest = max(longest, seconds)
    return work, longest


def _fastest(
    book: ProfileBook, model: str, batch: int, low: int, high: int, only: tuple[str, ...], reach: Mapping[str, Reach]
) -> tuple[float, int]:
    """Steps/s and GPUs of the fastest gang; where no machine can hold one, as if placed best."""
    may = [kind for kind in reach if not only or kind in only]
    there = [(kind, *place) for kind in may for place in places(low, high, reach[kind])]
    there = there or [(kind, high, Locality.SLOT) for kind in may]
    return max(((book.rate(model, batch, kind, gpus, place), gpus) for kind, gpus, place in there), default=(0.0, high))
