"""Philly's original log, ``cluster_job_log``: a JSON list of jobs with their attempts (Jeon et al., ATC'19).

    {"status", "vc", "jobid", "user", "submitted_time", "attempts": [
        {"start_time", "end_time", "detail": [{"ip", "gpus": ["gpu0", ...]}]}]}

A job's duration is the sum of its attempts, its GPUs those of the last attempt that names any. Left out are jobs
without GPUs, jobs without a timed attempt, and jobs that were still running when the log was taken, whose last attempt
has no end. Times are wall clock as logged: the hour that the end of summer time repeats is not corrected.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

from themis.errors import InputError, TraceError
from themis.model.speed import ProfileBook
from themis.model.units import Seconds
from themis.traces.bundle import Glimpse
from themis.traces.csv_table import OnFault, TableRow, opened
from themis.traces.job_records import Parse, Record, TenantLog

_BLANK = " \t\r\n,"
_MISSING = ("", "None", "null")


@dataclass(frozen=True, slots=True, kw_only=True)
class PhillyLog(TenantLog):
    """Microsoft's Philly trace in its own JSON, ``cluster_job_log``.

    Attributes
    ----------
    status : keep only jobs that ended so, as in ``Pass|Killed``; empty keeps all.
    """

    status: str = ""

    name: ClassVar[str] = "philly_log"
    columns: ClassVar[tuple[str, ...]] = ("jobid", "vc", "user", "submitted_time", "attempts")
    id_column: ClassVar[str] = "jobid"
    wall_clock: ClassVar[bool] = True

    @classmethod
    def recognises(cls, header: tuple[str, ...]) -> bool:
        """Never: the file has no header."""
        return False

    @classmethod
    def fits(cls, seen: Glimpse) -> bool:
        """True if a file that looks like this is of this format."""
        return seen.head.lstrip().startswith("[") and '"attempts"' in seen.head

    def rows(self, path: Path, on_fault: OnFault) -> Iterator[TableRow]:
        """Each job as cells, its attempts as ``attempts[0].start_time`` and so on, ``gpus`` being their number."""
        with opened(path) as file:
            text = file.read()
        for line, job in _objects(text, str(path)):
            try:
                yield TableRow(str(path), line, _flat(job))
            except (AttributeError, TypeError, KeyError):
                expected = "a job with jobid, vc, user, submitted_time, and attempts as a list"
                on_fault(TraceError(file=str(path), line=line, column="job", value=str(job)[:80], expected=expected))

    def parser(self, path: Path, book: ProfileBook) -> Parse:
        """Each job with a timed attempt."""
        wanted = {part.strip() for part in self.status.split("|") if part.strip()}

        def parse(row: TableRow) -> Record | str:
            if wanted and row.text("status") not in wanted:
                return f"status is not {self.status}"
            gpus = _gpus(row)
            if not gpus:
                return "without GPUs"
            duration = _duration(row)
            if isinstance(duration, str):
                return duration
            return Record(
                name=row.need("jobid", "the job's id"),
                user=row.need(self.tenant, f"the hash of a {self.tenant}"),
                owner=row.need(self.group_by, f"the hash of a {self.group_by}"),
                submit=row.wall_clock("submitted_time"),
                gpus=gpus,
                duration=duration,
            )

        return parse


def _gpus(row: TableRow) -> int:
    counts = (row.whole(f"attempts[{i}].gpus", "a list of GPUs", low=0) for i in reversed(range(_attempts(row))))
    return next((gpus for gpus in counts if gpus), 0)


def _duration(row: TableRow) -> Seconds | str:
    attempts = _attempts(row)
    if attempts and row.text(f"attempts[{attempts - 1}].end_time") in _MISSING:
        return "still running at the log's end"
    total = 0.0
    for i in range(attempts):
        start, end = f"attempts[{i}].start_time", f"attempts[{i}].end_time"
        if row.text(start) in _MISSING or row.text(end) in _MISSING:
            continue
        spent = row.wall_clock(end) - row.wall_clock(start)
        if spent < 0:
            row.fail(end, f"a time at or after the attempt's start, {row.text(start)}")
        total += spent
    return total or "without a timed attempt"


def _attempts(row: TableRow) -> int:
    return int(row.cells["attempts"])


def _flat(job: Any) -> dict[str, str]:
    cells = {key: _text(job.get(key)) for key in ("jobid", "vc", "user", "submitted_time", "status")}
    attempts = job["attempts"]
    cells["attempts"] = str(len(attempts))
    for i, attempt in enumerate(attempts):
        for key in ("start_time", "end_time"):
            cells[f"attempts[{i}].{key}"] = _text(attempt.get(key))
        cells[f"attempts[{i}].gpus"] = str(sum(len(machine["gpus"]) for machine in attempt.get("detail") or ()))
    return cells


def _text(value: object) -> str:
    return "" if value is None else str(value)


def _objects(text: str, name: str) -> Iterator[tuple[int, Any]]:
    """Yield (line, job): one object at a time, so that each has its line number."""
    decoder, at, line = json.JSONDecoder(), text.find("[") + 1, 1
    counted = 0
    if not at or text[: at - 1].strip():
        raise InputError(f"{name}, line 1: expected a JSON list of jobs, beginning with '['.")
    while True:
        while at < len(text) and text[at] in _BLANK:
            at += 1
        line += text.count("\n", counted, at)
        counted = at
        if text[at : at + 1] == "]":
            return
        try:
            job, at = decoder.raw_decode(text, at)
        except json.JSONDecodeError as error:
            raise InputError(f"{name}, line {error.lineno}: not valid JSON ({error.msg}).") from None
        yield line, job
