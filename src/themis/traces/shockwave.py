"""Shockwave's traces: Gavel's columns with the mode of batch-size scaling and the duration (NSDI'23; MIT licence).

    job_type, command, working_dir, num_steps_arg, needs_data_dir, total_steps, scale_factor, mode, priority_weight,
    SLO, duration, arrival

The batch sizes that a job in mode ``accordion`` or ``gns`` goes through are not in the file. ``schedules`` names the
JSON that lists them: ``[{"id", "bs_rle": [[batch, epochs], ...], "epoch_s_by_bs": {batch: seconds}}]``, the id being
the line from 0. Each stretch is then a regime, with as many steps as make it last its epochs; without schedules a job
is one regime, static at its first batch size, as long as the file's duration.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, replace
from itertools import count
from pathlib import Path
from typing import ClassVar

from themis.errors import InputError
from themis.model.units import Seconds
from themis.model.workload import Regime
from themis.profiles.models import GENERIC
from themis.profiles.speed import ProfileBook
from themis.traces.bundle import Glimpse
from themis.traces.gavel import COLUMNS as GAVEL
from themis.traces.gavel import Work, has_steps
from themis.traces.gavel_table import split_job_type
from themis.traces.records import JobLog, Parse, Record
from themis.traces.table import Dialect, Row

COLUMNS = (*GAVEL[:7], "mode", *GAVEL[7:9], "duration_s", "arrival_s")


@dataclass(frozen=True, slots=True, kw_only=True)
class Stretch:
    """Training at one batch size for so many seconds, alone on its GPUs."""

    batch: int
    seconds: Seconds


@dataclass(frozen=True, slots=True, kw_only=True)
class Shockwave(JobLog):
    """Shockwave's traces, twelve tab-separated columns.

    Attributes
    ----------
    schedules : JSON of each job's batch sizes; empty makes every job static.
    """

    schedules: str = ""

    name: ClassVar[str] = "shockwave"
    columns: ClassVar[tuple[str, ...]] = COLUMNS
    dialect: ClassVar[Dialect] = Dialect(delimiter="\t", quoted=False, columns=COLUMNS)

    @classmethod
    def recognises(cls, header: tuple[str, ...]) -> bool:
        """Never: the file has no header."""
        return False

    @classmethod
    def fits(cls, seen: Glimpse) -> bool:
        """Whether a file that looks like this is of this format."""
        return has_steps(seen, len(COLUMNS))

    def parser(self, path: Path, book: ProfileBook) -> Parse:
        """Each row a job."""
        position = count()
        work = Work(book, _duration)
        schedules = read_schedules(Path(self.schedules)) if self.schedules else {}

        def parse(row: Row) -> Record:
            line = next(position)
            mode = row.text("mode")
            if mode not in ("static", "accordion", "gns"):
                row.fail("mode", "static, accordion or gns")
            record = work.record(row, f"job{line:04d}")
            if not self.schedules:
                return record
            if line not in schedules:
                row.fail("mode", f"a job that {self.schedules} has a schedule for; there is no id {line}")
            model, _ = split_job_type(row.text("job_type"))
            known = all(work.knows(model, stretch.batch) for stretch in schedules[line])
            kept = model if known else GENERIC
            regimes = tuple(
                Regime(steps=s.seconds * work.rate(kept, record.gpus, s.batch), batch=s.batch) for s in schedules[line]
            )
            return replace(record, model=kept, regimes=regimes)

        return parse


def read_schedules(path: Path) -> Mapping[int, tuple[Stretch, ...]]:
    """Read the stretches of each job, by id.

    Raises
    ------
    InputError : the file cannot be read, or is no list of schedules.
    """
    try:
        jobs = json.loads(path.read_text(encoding="utf-8"))
        found = {int(job["id"]): _stretches(job["bs_rle"], job["epoch_s_by_bs"]) for job in jobs}
    except OSError as error:
        raise InputError(f"cannot read schedules {str(path)!r}: {error.strerror}.") from None
    except (ValueError, TypeError, KeyError) as error:
        raise InputError(
            f"{path} is no list of schedules ({type(error).__name__}: {error}); expected "
            """[{"id": 0, "bs_rle": [[32, 28]], "epoch_s_by_bs": {"32": 36.4}}]."""
        ) from None
    for name, stretches in found.items():
        if not stretches or not all(0 < stretch.seconds < float("inf") for stretch in stretches):
            raise InputError(f"{path}: job {name} has no epochs or none that take time, expected at least one.")
    return found


def _stretches(runs: list[tuple[int, int]], epoch_s: Mapping[str, float]) -> tuple[Stretch, ...]:
    return tuple(Stretch(batch=int(batch), seconds=epochs * epoch_s[str(batch)]) for batch, epochs in runs)


def _duration(row: Row, model: str, batch: int, gpus: int) -> Seconds:
    return row.number("duration_s", "seconds above 0", low=0.0, above=True)
