"""Microsoft's Philly trace, as two public tables of jobs (Jeon et al., ATC'19; CC BY 4.0).

- ``PhillyApps``: ``app_id, vc, submit_s, num_gpus, duration_s``; jobs already grouped into apps.
- ``PhillyJobs``: ``vc, submit_s, num_gpus, duration_s``, other columns ignored; each job an app, or grouped here.

A job is rigid and ran ``duration_s`` on ``num_gpus`` GPUs; each virtual cluster (vc) is a user. The trace's own JSON
is read by ``themis.traces.philly_log``.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import count
from pathlib import Path
from typing import ClassVar

from themis.model.speed import ProfileBook
from themis.traces.csv_table import TableRow
from themis.traces.job_records import GroupedLog, JobLog, Parse, Record


@dataclass(frozen=True, slots=True, kw_only=True)
class PhillyApps(JobLog):
    """Jobs grouped by ``app_id``: bags that all run to the end, arriving with their first job."""

    name: ClassVar[str] = "philly_apps"
    columns: ClassVar[tuple[str, ...]] = ("app_id", "vc", "submit_s", "num_gpus", "duration_s")

    def parser(self, path: Path, book: ProfileBook) -> Parse:
        """Each row a job of the app that it names."""
        position = count()

        def parse(row: TableRow) -> Record:
            app = "app" + row.need("app_id", "the number of an app")
            return _record(row, f"{app}-{next(position):05d}", app)

        return parse


@dataclass(frozen=True, slots=True, kw_only=True)
class PhillyJobs(GroupedLog):
    """Jobs without apps, named by their place in the file."""

    name: ClassVar[str] = "philly_jobs"
    columns: ClassVar[tuple[str, ...]] = ("vc", "submit_s", "num_gpus", "duration_s")

    @classmethod
    def recognises(cls, header: tuple[str, ...]) -> bool:
        """True if a file with these columns is of this format."""
        return set(cls.columns) <= set(header) and "app_id" not in header

    def parser(self, path: Path, book: ProfileBook) -> Parse:
        """Each row a job."""
        position = count()
        return lambda row: _record(row, f"p{next(position):06d}", "")


def _record(row: TableRow, name: str, app: str) -> Record:
    return Record(
        name=name,
        app=app,
        user=row.need("vc", "the name of a virtual cluster"),
        submit=row.number("submit_s", "seconds from the trace's start, 0 or more", low=0.0),
        gpus=row.whole("num_gpus", "a whole number of GPUs, 1 or more", low=1),
        duration=row.number("duration_s", "seconds above 0", low=0.0, above=True),
    )
