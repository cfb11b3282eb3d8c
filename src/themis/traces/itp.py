"""Microsoft's ITP clusters, 2021: ten CSV files of jobs, one a cluster (ElasticFlow, ASPLOS'23; MIT licence).

Columns ``job_id, submission_time, duration, num_gpu``, times in seconds from a start that all files share. Reads one
file, a folder of them, or ``raw-traces.tar.gz`` itself. The log has no users: each cluster is one, named by its file.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

from themis.model.speed import ProfileBook
from themis.traces.bundle import Glimpse, stem, texts
from themis.traces.csv_table import OnFault, TableRow, rows_of
from themis.traces.job_records import GroupedLog, Parse, Record


@dataclass(frozen=True, slots=True, kw_only=True)
class Itp(GroupedLog):
    """Microsoft's ITP clusters, one CSV a cluster; a file, a folder or the published archive."""

    name: ClassVar[str] = "itp"
    columns: ClassVar[tuple[str, ...]] = ("job_id", "submission_time", "duration", "num_gpu")
    id_column: ClassVar[str] = "job_id"

    @classmethod
    def fits(cls, seen: Glimpse) -> bool:
        """True if a folder or archive that looks like this is of this format."""
        return seen.member("cluster[0-9]*.csv") is not None

    def rows(self, path: Path, on_fault: OnFault) -> Iterator[TableRow]:
        """The rows of every cluster."""
        for name, lines in texts(path, "*.csv"):
            yield from rows_of(lines, name, required=self.columns, on_fault=on_fault)

    def parser(self, path: Path, book: ProfileBook) -> Parse:
        """Each row a job of the cluster that the file is named after."""
        return _record


def _record(row: TableRow) -> Record:
    cluster = stem(row.file)
    return Record(
        name=f"{cluster}/{row.need('job_id', 'the id of the job')}",
        user=cluster,
        submit=row.number("submission_time", "seconds from the trace's start, 0 or more", low=0.0),
        gpus=row.whole("num_gpu", "a whole number of GPUs, 1 or more", low=1),
        duration=row.number("duration", "seconds above 0", low=0.0, above=True),
    )
