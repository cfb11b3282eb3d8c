"""SenseTime's Helios clusters, 2020: ``cluster_log.csv``, one row a Slurm job (Hu et al., SC'21).

Columns ``job_id, user, vc, gpu_num, cpu_num, node_num, state, submit_time, start_time, end_time, duration, queue``.
Left out are jobs without GPUs, which are half of the log, and jobs that never ran. CPUs and nodes are not kept.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

from themis.model.speed import ProfileBook
from themis.traces.csv_table import TableRow
from themis.traces.job_records import Parse, Record, TenantLog


@dataclass(frozen=True, slots=True, kw_only=True)
class Helios(TenantLog):
    """SenseTime's Helios trace, ``cluster_log.csv``.

    Attributes
    ----------
    state : keep only jobs that ended so, as in ``COMPLETED|CANCELLED``; empty keeps all.
    """

    state: str = ""

    name: ClassVar[str] = "helios"
    columns: ClassVar[tuple[str, ...]] = ("job_id", "user", "vc", "gpu_num", "state", "submit_time", "duration")
    id_column: ClassVar[str] = "job_id"
    wall_clock: ClassVar[bool] = True

    def parser(self, path: Path, book: ProfileBook) -> Parse:
        """Each row with GPUs and a duration."""
        wanted = {part.strip() for part in self.state.split("|") if part.strip()}

        def parse(row: TableRow) -> Record | str:
            gpus = row.whole("gpu_num", "a whole number of GPUs, 0 or more", low=0)
            duration = row.number("duration", "seconds, 0 or more", low=0.0)
            if not gpus:
                return "without GPUs"
            if not duration:
                return "never ran"
            if wanted and row.text("state") not in wanted:
                return f"state is not {self.state}"
            return Record(
                name=row.need("job_id", "the job's id"),
                user=row.need(self.tenant, f"the name of a {self.tenant}"),
                owner=row.need(self.group_by, f"the name of a {self.group_by}"),
                submit=row.wall_clock("submit_time"),
                gpus=gpus,
                duration=duration,
            )

        return parse
