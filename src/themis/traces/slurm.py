"""Slurm's accounting, as ``sacct --parsable2`` prints it: your own cluster's trace.

    sacct --allusers --allocations --parsable2 --starttime 2024-01-01 \\
        --format JobID,User,Account,Partition,Submit,Start,End,Elapsed,State,AllocTRES,ReqTRES,NNodes > jobs.txt

Needs ``JobID, User, Submit, Elapsed`` (or ``ElapsedRaw``), and ``AllocTRES`` or ``ReqTRES``; others are optional, and
unknown ones are ignored. GPUs are ``gres/gpu=N`` of what was allocated, else of what was asked for; a type, as in
``gres/gpu:v100=N``, is kept. Left out are job steps (``17.batch``), jobs without GPUs and jobs that never ran. Time
that a suspended job stood still counts as Slurm counts it. Clocks are taken as printed, without a zone.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar, Literal

from themis.model.speed import ProfileBook
from themis.model.units import Seconds
from themis.traces.bundle import Glimpse
from themis.traces.csv_table import Dialect, TableRow
from themis.traces.job_records import GroupedLog, Parse, Record

_ELAPSED = re.compile(r"(?:(\d+)-)?(?:(\d+):)?(\d+):(\d+)(?:\.\d+)?")
_GPU = re.compile(r"gres/gpu(?::([^=,]+))?=([^,]*)")


@dataclass(frozen=True, slots=True, kw_only=True)
class Slurm(GroupedLog):
    """Slurm's accounting, the output of ``sacct --parsable2``.

    Attributes
    ----------
    tenant : what a user of the workload is; ``group_by`` : whose submissions ``gap_s`` groups.
    partition : keep only this partition's jobs; empty keeps all.
    state : keep only jobs that ended so, as in ``COMPLETED|TIMEOUT``; empty keeps all.
    censored : what becomes of jobs that are still running: kept as long as they had run, or dropped.
    gpu_types : keep the types that Slurm names, for a cluster with the same names; else any GPU will do.
    """

    tenant: Literal["user", "account", "partition"] = "user"
    group_by: Literal["user", "account", "partition"] = "user"
    partition: str = ""
    state: str = ""
    censored: Literal["keep", "drop"] = "keep"
    gpu_types: bool = True

    name: ClassVar[str] = "slurm"
    columns: ClassVar[tuple[str, ...]] = ("JobID", "User", "Submit")
    dialect: ClassVar[Dialect] = Dialect(delimiter="|", quoted=False)
    id_column: ClassVar[str] = "JobID"
    wall_clock: ClassVar[bool] = True

    @classmethod
    def fits(cls, seen: Glimpse) -> bool:
        """True if a file that looks like this is of this format."""
        return set(cls.columns) <= {part.strip() for part in seen.first_line.split("|")}

    def parser(self, path: Path, book: ProfileBook) -> Parse:
        """Each job that held GPUs."""
        wanted = {part.strip().upper() for part in self.state.split("|") if part.strip()}

        def parse(row: TableRow) -> Record | str:
            name = row.need("JobID", "the job's id")
            if "." in name:
                return "job steps"
            gpus, types = _gpus(row)
            if not gpus:
                return "without GPUs"
            duration = _elapsed(row)
            if not duration:
                return "never ran"
            state = row.text("State").split(" ")[0].upper()
            if wanted and state not in wanted:
                return f"state is not {self.state}"
            if self.partition and row.text("Partition") != self.partition:
                return f"partition is not {self.partition}"
            if self.censored == "drop" and state in ("RUNNING", "SUSPENDED"):
                return "still running"
            return Record(
                name=name,
                user=row.need(self.tenant.capitalize(), f"the {self.tenant}'s name"),
                owner=row.need(self.group_by.capitalize(), f"the {self.group_by}'s name"),
                submit=row.wall_clock("Submit"),
                gpus=gpus,
                duration=duration,
                gpu_types=types if self.gpu_types else (),
            )

        return parse


def _gpus(row: TableRow) -> tuple[int, tuple[str, ...]]:
    """GPUs and their types; a plain count next to typed ones is their sum."""
    column = "AllocTRES" if row.text("AllocTRES") else "ReqTRES"
    if "AllocTRES" not in row.cells and "ReqTRES" not in row.cells:
        row.fail("AllocTRES", "a column AllocTRES or ReqTRES; add it to sacct's --format")
    total, typed = 0, {}
    for kind, text in _GPU.findall(row.text(column)):
        if not text.isdigit():
            row.fail(column, "whole numbers of GPUs, as in gres/gpu:v100=2")
        if kind:
            typed[kind] = int(text)
        else:
            total = int(text)
    return total or sum(typed.values()), tuple(kind for kind, gpus in typed.items() if gpus)


def _elapsed(row: TableRow) -> Seconds:
    if row.text("ElapsedRaw"):
        return row.number("ElapsedRaw", "seconds, 0 or more", low=0.0)
    match = _ELAPSED.fullmatch(row.text("Elapsed"))
    if match is None:
        row.fail("Elapsed", "a time like 1-02:03:04 ([DD-]HH:MM:SS)")
    days, hours, minutes, seconds = (int(part or 0) for part in match.groups())
    return ((days * 24 + hours) * 60 + minutes) * 60.0 + seconds
