"""Shockwave's traces: Gavel's columns with the mode of batch-size scaling and the duration (NSDI'23; MIT licence).

    job_type, command, working_dir, num_steps_arg, needs_data_dir, total_steps, scale_factor, mode, priority_weight,
    SLO, duration, arrival

The batch sizes that a job in mode ``accordion`` or ``gns`` goes through are not in the file. ``schedules`` names the
JSON that lists them: ``[{"id", "bs_rle": [[batch, epochs], ...], "epoch_s_by_bs": {batch: seconds}}]``, the id being
the line from 0. Each stretch is then a regime that lasts as long as its epochs take. Of a dynamic job the scheduler knows
epochs, mode and range of batch sizes (up to the largest that is measured, or that Shockwave's Table 2 names), and no more;
with ``modes=known`` all regimes are known from the start. Without schedules a job is one regime, static at its first
batch size, as long as the file's duration.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import count
from pathlib import Path
from types import MappingProxyType
from typing import ClassVar

from themis.errors import InputError, UnknownName, counted
from themis.model.dynamic import Dynamic, Mode, climb
from themis.model.speed import ProfileBook
from themis.model.units import Seconds
from themis.model.workload import Regime
from themis.traces.csv_table import Dialect, TableRow
from themis.traces.gavel import COLUMNS as GAVEL
from themis.traces.gavel import StepLog, TracedWork
from themis.traces.job_records import Parse, Record
from themis.traces.profiles.gavel_table import split_job_type
from themis.traces.profiles.models import GENERIC

COLUMNS = (*GAVEL[:7], "mode", *GAVEL[7:9], "duration_s", "arrival_s")


LARGEST: Mapping[str, int] = MappingProxyType(
    {"ResNet-50": 128, "ResNet-18": 256, "LM": 80, "Transformer": 256, "Recommendation": 8192}
)
"""Largest batch sizes of Shockwave's Table 2."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Stretch:
    """Training at one batch size for this many epochs, alone on its GPUs; ``seconds`` are those of one epoch."""

    batch: int
    epochs: float
    seconds: Seconds


@dataclass(frozen=True, slots=True, kw_only=True)
class ShockwaveTrace(StepLog):
    """Shockwave's traces, twelve tab-separated columns.

    Attributes
    ----------
    schedules : JSON of each job's batch sizes; empty makes every job static.
    modes : what is known of a dynamic job from the start: ``declared`` (mode and range) or ``known`` (all regimes).
    """

    schedules: str = ""
    modes: str = "declared"

    name: ClassVar[str] = "shockwave"
    columns: ClassVar[tuple[str, ...]] = COLUMNS
    dialect: ClassVar[Dialect] = Dialect(delimiter="\t", quoted=False, columns=COLUMNS)

    def parser(self, path: Path, book: ProfileBook) -> Parse:
        """Each row a job."""
        if self.modes not in ("declared", "known"):
            raise UnknownName("modes", self.modes, ("declared", "known"))
        position = count()
        work = TracedWork(book, _duration)
        schedules = read_schedules(Path(self.schedules)) if self.schedules else {}

        def parse(row: TableRow) -> Record:
            line = next(position)
            mode = row.text("mode")
            if mode not in ("static", "accordion", "gns"):
                row.fail("mode", "static, accordion or gns")
            record = work.record(row, f"job{line:04d}")
            if not self.schedules:
                return replace(record, changes=mode != "static")
            if line not in schedules:
                row.fail("mode", f"a job that {self.schedules} has a schedule for; there is no id {line}")
            model, _ = split_job_type(row.text("job_type"))
            batch = schedules[line][0].batch
            known = work.knows(model, batch)
            pace = Pace(work=work, model=model if known else GENERIC, gpus=record.gpus, stretches=schedules[line])
            record = replace(record, unknown=None if known else (model, batch))
            if mode == "static" or self.modes == "known":
                return replace(record, model=pace.model, regimes=pace.in_steps())
            largest = work.largest(model, batch) if known else LARGEST.get(model, 0)
            dynamic = dynamic_of(Mode(mode), batch, largest, pace.epoch_steps)
            return replace(record, model=pace.model, regimes=pace.in_epochs(), dynamic=dynamic)

        return parse

    def warnings(self, kept: Sequence[Sequence[Record]]) -> tuple[str, ...]:
        """Without schedules, jobs in a mode are read as static ones."""
        changing = sum(record.changes for jobs in kept for record in jobs)
        if self.schedules or not changing:
            return ()
        return (
            f"{counted(changing, 'job')} in mode accordion or gns are read as static jobs at their first batch size, since no "
            "schedules are given; add the option schedules=FILE, the JSON of the jobs' batch sizes.",
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Pace:
    """Speed of a job through its schedule, in the terms of a profile book."""

    work: TracedWork
    model: str
    gpus: int
    stretches: tuple[Stretch, ...]

    def in_steps(self) -> tuple[Regime, ...]:
        """Regimes that count steps of the model, as long as the schedule says."""
        return tuple(
            Regime(steps=s.epochs * s.seconds * self.work.rate(self.model, self.gpus, s.batch), batch=s.batch)
            for s in self.stretches
        )

    def in_epochs(self) -> tuple[Regime, ...]:
        """Regimes that count epochs; how long these take in truth is their pace, which no scheduler sees."""
        return tuple(Regime(steps=s.epochs, batch=s.batch, pace=self._pace(s)) for s in self.stretches)

    def _pace(self, stretch: Stretch) -> float:
        declared = self.epoch_steps(stretch.batch) / self.work.rate(self.model, self.gpus, stretch.batch)
        pace = stretch.seconds / declared
        return 1.0 if abs(pace - 1.0) < 1e-9 else pace

    def epoch_steps(self, batch: int) -> float:
        """Steps of the model in an epoch, such that at the first batch size it takes the seconds that the schedule says.

        At other batch sizes: as many examples, or where the book does not know the model, as many seconds: no change of speed
        is known. Nothing here depends on what the schedule does after its first stretch.
        """
        first = self.stretches[0]
        if self.model == GENERIC:
            return first.seconds * self.work.rate(GENERIC, self.gpus, batch)
        return first.seconds * self.work.rate(self.model, self.gpus, first.batch) * first.batch / batch


def dynamic_of(mode: Mode, batch: int, largest: int, epoch_steps: Callable[[int], float]) -> Dynamic:
    """Dynamic batch sizes of a Shockwave job that begins at ``batch``: two for accordion, doublings to the largest for
    GNS.

    Parameters
    ----------
    epoch_steps : steps of the job's model in an epoch at a batch size.
    """
    largest = max(batch, largest)
    sizes = climb(batch, largest) if mode is Mode.GNS else tuple(sorted({batch, largest}))
    return Dynamic(mode=mode, epoch_steps=tuple((size, epoch_steps(size)) for size in sizes))


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
        if not stretches or not all(0 < s.epochs * s.seconds < float("inf") and s.batch > 0 for s in stretches):
            raise InputError(f"{path}: job {name} has no epochs or none that take time, expected at least one.")
    return found


def _stretches(runs: list[tuple[int, int]], epoch_s: Mapping[str, float]) -> tuple[Stretch, ...]:
    return tuple(Stretch(batch=int(batch), epochs=epochs, seconds=epoch_s[str(batch)]) for batch, epochs in runs)


def _duration(row: TableRow, model: str, batch: int, gpus: int) -> Seconds:
    return row.number("duration_s", "seconds above 0", low=0.0, above=True)
