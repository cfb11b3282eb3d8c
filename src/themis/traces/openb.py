"""Alibaba's GPU cluster of 2023, "openb": a list of pods (Weng et al., ATC'23).

Columns ``name, num_gpu, gpu_milli, gpu_spec, qos, pod_phase, creation_time, deletion_time, scheduled_time``, times in
seconds; others are ignored. A pod runs from when it was scheduled to when it was deleted. Left out are pods without
GPUs and pods that were never scheduled. The log has no users: each class of service (``qos``) is one.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar, Literal

from themis.model.speed import ProfileBook
from themis.model.units import Seconds
from themis.traces.csv_table import TableRow, read_rows
from themis.traces.job_records import GroupedLog, Parse, Record


@dataclass(frozen=True, slots=True, kw_only=True)
class Openb(GroupedLog):
    """Alibaba's GPU trace of 2023 ("openb"), a list of pods.

    Attributes
    ----------
    shared : what becomes of pods that asked for a part of a GPU, which Themis does not share: ``whole`` gives them one
        for as long, ``work`` gives them one for that part of the time, ``drop`` leaves them out.
    censored : what becomes of pods that were running when the log ended: kept as long as they had run, or dropped.
    gpu_types : keep ``gpu_spec``, for a cluster with the same types; else any GPU will do.
    """

    shared: Literal["whole", "work", "drop"] = "whole"
    censored: Literal["keep", "drop"] = "keep"
    gpu_types: bool = True

    name: ClassVar[str] = "openb"
    columns: ClassVar[tuple[str, ...]] = (
        "name",
        "num_gpu",
        "gpu_milli",
        "gpu_spec",
        "qos",
        "pod_phase",
        "creation_time",
        "deletion_time",
        "scheduled_time",
    )
    id_column: ClassVar[str] = "name"

    def parser(self, path: Path, book: ProfileBook) -> Parse:
        """Each pod with GPUs that ran."""
        ended = _last_deletion(path) if self.censored == "drop" else None

        def parse(row: TableRow) -> Record | str:
            gpus = row.whole("num_gpu", "a whole number of GPUs, 0 or more", low=0)
            milli = row.number("gpu_milli", "thousandths of a GPU, 0 to 1000", low=0.0)
            if milli > 1000:
                row.fail("gpu_milli", "thousandths of a GPU, 0 to 1000")
            if not gpus or not milli:
                return "without GPUs"
            if not row.text("scheduled_time"):
                return "never scheduled"
            if milli < 1000 and self.shared == "drop":
                return "part of a GPU"
            if row.text("pod_phase") == "Running" and ended is not None and row.text("deletion_time") == ended:
                return "still running at the log's end"
            duration = _duration(row)
            if not duration:
                return "deleted as it was scheduled"
            return Record(
                name=row.need("name", "the pod's name"),
                user=row.need("qos", "a class of service"),
                submit=row.number("creation_time", "seconds from the trace's start, 0 or more", low=0.0),
                gpus=gpus,
                duration=duration * milli / 1000.0 if self.shared == "work" else duration,
                gpu_types=_types(row) if self.gpu_types else (),
            )

        return parse


def _duration(row: TableRow) -> Seconds:
    start = row.number("scheduled_time", "seconds from the trace's start, 0 or more", low=0.0)
    end = row.number("deletion_time", "seconds from the trace's start, 0 or more", low=0.0)
    if end < start:
        row.fail("deletion_time", f"a time at or after scheduled_time, {row.text('scheduled_time')}")
    return end - start


def _types(row: TableRow) -> tuple[str, ...]:
    return tuple(dict.fromkeys(part.strip() for part in row.text("gpu_spec").split("|") if part.strip()))


def _last_deletion(path: Path) -> str:
    """The end of the log; the second reader reports malformed numbers."""
    times = (row.text("deletion_time") for row in read_rows(path, required=("deletion_time",), on_fault=lambda _: None))
    return max((text for text in times if text.isdigit()), key=int, default="")
