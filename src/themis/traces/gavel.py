"""Gavel's traces: ten tab-separated columns without a header (OSDI'20; MIT licence).

    job_type, command, working_dir, num_steps_arg, needs_data_dir, total_steps, scale_factor, priority_weight, SLO, arrival

Every job is a user of its own; its name is its line, from 0. What a step means depends on the profile book: where it
knows the model at that batch size (``gavel_table.profiles_from_gavel``), model, batch size and steps are kept; where
not, the job becomes ``generic`` and lasts as long as ``throughputs`` says on ``reference`` GPUs.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from itertools import count
from pathlib import Path
from typing import ClassVar, TypeAlias

from themis.errors import InputError
from themis.model.speed import ProfileBook
from themis.model.units import Seconds
from themis.model.workload import Regime
from themis.traces.bundle import Glimpse
from themis.traces.csv_table import Dialect, TableRow
from themis.traces.job_records import JobLog, Parse, Record, model_hint
from themis.traces.mix import ReferenceRates
from themis.traces.profiles.gavel_table import read_throughputs, split_job_type
from themis.traces.profiles.models import GENERIC

COLUMNS = (
    "job_type",
    "command",
    "working_dir",
    "num_steps_arg",
    "needs_data_dir",
    "total_steps",
    "scale_factor",
    "priority_weight",
    "SLO",
    "arrival_s",
)

Duration: TypeAlias = Callable[[TableRow, str, int, int], Seconds]
"""Seconds of the job in a row, given its model, batch size and GPUs."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StepLog(JobLog):
    """Options of traces without a header whose sixth of these tab-separated cells is a number of steps."""

    @classmethod
    def fits(cls, seen: Glimpse) -> bool:
        """True if the first line has these cells."""
        cells = seen.first_line.split("\t")
        return len(cells) == len(cls.columns) and cells[5].strip().replace(".", "", 1).isdigit()


@dataclass(frozen=True, slots=True, kw_only=True)
class Gavel(StepLog):
    """Gavel's traces, ten tab-separated columns.

    Attributes
    ----------
    throughputs : Gavel's JSON of measured steps/s; needed for models that the profile book does not know.
    reference : the GPU type there that such jobs' durations are for.
    """

    throughputs: str = ""
    reference: str = "V100"

    name: ClassVar[str] = "gavel"
    columns: ClassVar[tuple[str, ...]] = COLUMNS
    dialect: ClassVar[Dialect] = Dialect(delimiter="\t", quoted=False, columns=COLUMNS)

    def parser(self, path: Path, book: ProfileBook) -> Parse:
        """Each row a job."""
        position = count()
        work = TracedWork(book, measured_duration(self.name, self.throughputs, self.reference, book))

        def parse(row: TableRow) -> Record:
            return work.record(row, f"job{next(position):04d}")

        return parse


class TracedWork:
    """Work of a row of Gavel's or Shockwave's trace, in the terms of a profile book."""

    def __init__(self, book: ProfileBook, duration: Duration) -> None:
        self._book, self._duration, self._rates = book, duration, ReferenceRates(book)

    def record(self, row: TableRow, name: str) -> Record:
        """The job with its steps as one regime."""
        model, batch = split_job_type(row.need("job_type", "a model, as in ResNet-18 (batch size 64)"))
        gpus = row.whole("scale_factor", "a whole number of GPUs, 1 or more", low=1)
        steps = row.number("total_steps", "steps above 0", low=0.0, above=True)
        arrival = row.number("arrival_s", "seconds from the trace's start, 0 or more", low=0.0)
        slo = row.number("SLO", "a factor of the job's duration, or -1 for none", low=-1.0)
        known = self.knows(model, batch)
        if known:
            regime, kept = Regime(steps=steps, batch=batch), model
        else:
            duration = self._duration(row, model, batch, gpus)
            regime, kept = Regime(steps=duration * self._rates(GENERIC, gpus)), GENERIC
        deadline = None
        if slo > 0:
            seconds = steps / self.rate(model, gpus, batch) if known else duration
            deadline = arrival + slo * seconds
        return Record(
            name=name,
            user=name,
            submit=arrival,
            gpus=gpus,
            model=kept,
            regimes=(regime,),
            deadline=deadline,
            weight=row.number("priority_weight", "a number above 0", low=0.0, above=True),
            unknown=None if known else (model, batch),
        )

    def knows(self, model: str, batch: int) -> bool:
        """True if the book has a curve for exactly this batch size: names alone may mean another network."""
        profile = self._book.profiles.get(model)
        return profile is not None and any(measured == batch for _, measured in profile.curves)

    def largest(self, model: str, batch: int) -> int:
        """The largest batch size of the model that fits where ``batch`` was measured first, which is the reference GPU."""
        curves = self._book.get(model).curves
        reference = next(kind for kind, size in curves if size == batch)
        return max(size for kind, size in curves if kind == reference)

    def rate(self, model: str, gpus: int, batch: int) -> float:
        """Steps/s on reference GPUs."""
        return self._rates(model, gpus, batch)


def measured_duration(name: str, throughputs: str, reference: str, book: ProfileBook) -> Duration:
    """Durations by a table of throughputs; without one, a complaint that asks for it.

    Raises
    ------
    InputError : the table cannot be read or lacks the reference type.
    """
    if not throughputs:

        def ask(row: TableRow, model: str, batch: int, gpus: int) -> Seconds:
            raise InputError(
                f"{row.file}, line {row.line}: the profile book does not know {row.text('job_type')!r}"
                f"{model_hint(model, batch, book)} Or give {name} the option throughputs=FILE, Gavel's JSON of steps per second."
            )

        return ask
    table = read_throughputs(Path(throughputs)).together
    if reference.upper() not in table:
        raise InputError(f"reference is {reference!r}, expected one of {', '.join(sorted(table))}.")
    rates = table[reference.upper()]

    def duration(row: TableRow, model: str, batch: int, gpus: int) -> Seconds:
        if (model, batch, gpus) not in rates:
            row.fail("job_type", f"a job that {throughputs} has a rate for on {gpus} {reference}")
        return row.number("total_steps", "steps above 0", low=0.0, above=True) / rates[model, batch, gpus]

    return duration
