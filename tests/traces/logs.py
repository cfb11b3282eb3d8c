"""Helpers of the tests of readers."""

from __future__ import annotations

from pathlib import Path

import pytest

from themis.errors import TraceError
from themis.model.units import Locality
from themis.model.workload import App, Job
from themis.traces.formats import load_workload
from themis.traces.profiles.models import DEFAULT_BOOK


def write(folder: Path, name: str, text: str) -> str:
    """Write a file and return its path."""
    path = folder / name
    path.write_text(text, encoding="utf-8")
    return str(path)


def seconds(job: Job) -> float:
    """How long a job takes on its GPUs at the best placement, by the book's own rates."""
    return sum(
        r.steps
        * r.pace
        * job.scale(r.batch)
        / DEFAULT_BOOK.rate(job.model, r.batch, "gpu", job.gpus_max, Locality.SLOT)
        for r in job.regimes
    )


def only(apps: tuple[App, ...]) -> Job:
    """The job of the only app."""
    assert len(apps) == 1
    assert len(apps[0].jobs) == 1
    return apps[0].jobs[0]


def assert_fault(path: str, *, line: int, column: str, value: str, **options: object) -> None:
    """Reading the file complains about this cell."""
    with pytest.raises(TraceError) as caught:
        load_workload(path, **options)  # type: ignore[arg-type]
    error = caught.value
    assert (error.line, error.column, error.value) == (line, column, value)
    assert Path(path).name in error.file
