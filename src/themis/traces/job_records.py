"""Conversion of a log of jobs to a workload, shared by all readers of job logs.

A reader turns each row into a ``Record``, or says why it is left out. Here records become apps: cut to a window,
grouped, given a model where the log names none (``themis.traces.mix``), and steps such that a job takes exactly its
measured duration on its GPUs at the placement that was measured (the best one, where the log names none).

Differs from what was measured: where the log does not say how a job was placed, its duration is taken to be that of the best
placement.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from typing import ClassVar, Literal, TypeAlias

from themis.errors import InputError, TraceError, closest, counted
from themis.model.dynamic import Dynamic
from themis.model.goodput import Adaptive
from themis.model.speed import Profile, ProfileBook
from themis.model.units import Locality, Seconds
from themis.model.workload import App, Job, Regime, Workload
from themis.traces.bundle import stem
from themis.traces.csv_table import CSV, Dialect, OnFault, TableRow, raise_fault, read_rows
from themis.traces.mix import ModelMix, ReferenceRates, model_mix
from themis.traces.profiles.measured import gavel_book
from themis.traces.profiles.models import DEFAULT_BOOK, GENERIC


@dataclass(frozen=True, slots=True, kw_only=True)
class Record:
    """One job of a log.

    Attributes
    ----------
    name : differs from every other job's; an app is named by its first job, which fixes the model drawn for it.
    user : who the app belongs to. ``owner`` : whose jobs may be grouped; empty: the user's.
    app : the app that the log puts it in; empty where the log knows no apps.
    submit : seconds, from the trace's start or on a wall clock.
    gpus_min : fewest GPUs that it runs on; 0: it is rigid at ``gpus``.
    duration : seconds on ``gpus`` GPUs; not used where ``regimes`` are given. ``spans`` : the locality at which it was
        measured, where the log says so: a gang that spans no more takes exactly that long, a closer one is faster.
    model : empty where the log names none. ``regimes`` : its work in steps, or of a dynamic job in epochs, where the log
        knows it.
    """

    name: str
    user: str
    submit: Seconds
    gpus: int
    gpus_min: int = 0
    duration: Seconds = 0.0
    spans: Locality = Locality.SLOT
    owner: str = ""
    app: str = ""
    gpu_types: tuple[str, ...] = ()
    model: str = ""
    regimes: tuple[Regime, ...] = ()
    dynamic: Dynamic | None = None
    adaptive: Adaptive | None = None
    weight: float = 1.0
    deadline: Seconds | None = None
    unknown: tuple[str, int] | None = None
    """Model and batch size in the log, where the profile book does not know them and ``model`` stands in."""
    changes: bool = False
    """True if the log says that the job changes its batch size, but not when, so that it is read as a static one."""


Parse: TypeAlias = Callable[[TableRow], Record | str]
"""A row's record, or why it is left out, as in ``without GPUs``."""


@dataclass(frozen=True, slots=True, kw_only=True)
class JobLog:
    """Options of every log.

    Attributes
    ----------
    start, end : seconds from the trace's start; apps that arrive in [start, end) are kept and arrivals counted from
        ``start``.
    limit : maximum number of apps kept, the first ones; 0 keeps all.
    user : keep only this user's jobs; empty keeps all.
    single_jobs : make each job an app of its own.
    models, network_intensive : see ``themis.traces.mix.model_mix``; for logs that name no models.
    """

    start: float = 0.0
    end: float = float("inf")
    limit: int = 0
    user: str = ""
    single_jobs: bool = False
    models: str = ""
    network_intensive: float | None = None

    name: ClassVar[str]
    columns: ClassVar[tuple[str, ...]]
    """Columns that a file must have, and by which it is recognised."""
    dialect: ClassVar[Dialect] = CSV
    id_column: ClassVar[str] = ""
    """The column that must differ from row to row; empty where the log has none."""
    wall_clock: ClassVar[bool] = False
    """True if submissions are dates; the trace then starts with its first job."""

    def __post_init__(self) -> None:
        if not 0 <= self.start < self.end:
            raise InputError(f"{self.name}: the window is {self.start} to {self.end} s, expected 0 <= start < end.")
        if self.limit < 0:
            raise InputError(f"{self.name}: limit is {self.limit}, expected 0 (all) or more.")

    @classmethod
    def recognises(cls, header: tuple[str, ...]) -> bool:
        """True if a CSV file with these columns is of this format; what is no CSV is known by its looks (``fits``)."""
        return cls.dialect == CSV and set(cls.columns) <= set(header)

    def read(self, path: Path, *, seed: int = 0, book: ProfileBook = DEFAULT_BOOK) -> Workload:
        """Read a workload; ``seed`` draws only the models.

        Raises
        ------
        InputError : the file cannot be read, lacks a column, or the options leave no job.
        TraceError : a row is wrong: file, line, column, value, expected.
        """
        log = self.scan(path, book, raise_fault)
        kept = [jobs for jobs in self._groups(log.records) if self.start <= jobs[0].submit < self.end]
        kept.sort(key=lambda jobs: jobs[0].submit)
        if self.limit:
            kept = kept[: self.limit]
        if not kept:
            raise InputError(f"{path}: no app is left with {self._options()}; widen the window or drop a filter.")
        mix = model_mix(book, self.models, self.network_intensive)
        rates = ReferenceRates(book)
        drawn = any(not record.model for jobs in kept for record in jobs)
        origin = [f"file: {path}", self._options(), *([f"models drawn with seed {seed}"] if drawn else [])]
        origin += [f"{count} jobs left out: {why}" for why, count in sorted(log.left_out.items())]
        apps = tuple(self._app(jobs, mix, seed, rates) for jobs in kept)
        notes = (*unknown_models(kept, book), *self.warnings(kept))
        return Workload(
            name=stem(path.name),
            apps=apps,
            source="; ".join(origin),
            notes=notes,
            profiles=self.profiles_of(path, kept),
        )

    def warnings(self, kept: Sequence[Sequence[Record]]) -> tuple[str, ...]:
        """Warnings for the user on how these jobs were read, a sentence each."""
        return ()

    def profiles_of(self, path: Path, kept: Sequence[Sequence[Record]]) -> tuple[Profile, ...]:
        """Speeds of models that come with the log, in place of those that the book has."""
        return ()

    def scan(self, path: Path, book: ProfileBook, on_fault: OnFault) -> Scanned:
        """All records of the log that the options do not exclude, submissions counted from its start."""
        log = Scanned()
        parse = self.parser(path, book)
        names: set[str] = set()
        earliest = float("inf")
        for row in self.rows(path, on_fault):
            try:
                record = parse(row)
                if isinstance(record, str):
                    log.left_out[record] += 1
                    continue
                if record.name in names:
                    row.fail(self.id_column, "a name that no other job of the trace has")
            except TraceError as error:
                on_fault(error)
                continue
            names.add(record.name)
            earliest = min(earliest, record.submit)
            if self.user in ("", record.user):
                log.records.append(record)
        if self.wall_clock:
            log.records = [_later(record, -earliest) for record in log.records]
        return log

    def rows(self, path: Path, on_fault: OnFault) -> Iterator[TableRow]:
        """The rows of the file or files."""
        return read_rows(path, required=self.columns, dialect=self.dialect, on_fault=on_fault)

    def parser(self, path: Path, book: ProfileBook) -> Parse:
        """Parser from a row to a record."""
        raise NotImplementedError

    def _groups(self, records: Iterable[Record]) -> list[list[Record]]:
        """The jobs of each app, in order of submission: by the log's own apps, where it has them."""
        by_app: dict[str, list[Record]] = {}
        for record in records:
            by_app.setdefault(record.name if self.single_jobs else record.app or record.name, []).append(record)
        return [sorted(jobs, key=lambda r: r.submit) for jobs in by_app.values()]

    def _app(self, records: list[Record], mix: ModelMix, seed: int, rates: ReferenceRates) -> App:
        first = records[0]
        name = first.name if self.single_jobs else first.app or first.name
        drawn = "" if all(record.model for record in records) else mix.draw(seed, name)
        jobs = tuple(_job(f"{name}/{i:02d}", record, record.model or drawn, rates) for i, record in enumerate(records))
        return App(
            name=name,
            user=first.user,
            arrival=first.submit - self.start,
            jobs=jobs,
            weight=first.weight,
            deadline=None if first.deadline is None else first.deadline - self.start,
        )

    def _options(self) -> str:
        changed = ((f.name, getattr(self, f.name)) for f in fields(self) if getattr(self, f.name) != f.default)
        return f"{self.name}({', '.join(f'{key}={value!r}' for key, value in changed)})"


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupedLog(JobLog):
    """Options of logs without apps: each job becomes an app, or, with a gap, so does each run of equal submissions.

    Attributes
    ----------
    gap_s : jobs of one owner with equal GPUs, each submitted at most this long after the one before, form an app;
        negative groups nothing.
    min_jobs, max_jobs : apps with fewer or more jobs are dropped.
    """

    gap_s: float = -1.0
    min_jobs: int = 1
    max_jobs: int = 1_000_000_000

    def _groups(self, records: Iterable[Record]) -> list[list[Record]]:
        # The window cuts before grouping: of an app that began outside, what is inside is an app. An app is named
        # by its first job, so that a window or a filter leaves its model as it was.
        ordered = sorted((r for r in records if self.start <= r.submit < self.end), key=lambda r: r.submit)
        gap = -1.0 if self.single_jobs else self.gap_s
        apps: list[list[Record]] = []
        last: dict[tuple[str, int, tuple[str, ...]], list[Record]] = {}
        for record in ordered:
            key = (record.owner or record.user, record.gpus, record.gpu_types)
            running = last.get(key)
            if running is not None and record.submit - running[-1].submit <= gap:
                running.append(record)
            else:
                last[key] = [record]
                apps.append(last[key])
        return [jobs for jobs in apps if self.min_jobs <= len(jobs) <= self.max_jobs]


@dataclass(frozen=True, slots=True, kw_only=True)
class TenantLog(GroupedLog):
    """Options of logs that name a person and a virtual cluster.

    Attributes
    ----------
    tenant : what a user of the workload is.
    group_by : whose submissions ``gap_s`` groups.
    """

    tenant: Literal["vc", "user"] = "vc"
    group_by: Literal["user", "vc"] = "user"


@dataclass(slots=True)
class Scanned:
    """The records of a log, and how many jobs were left out for which reason."""

    records: list[Record] = field(default_factory=list)
    left_out: Counter[str] = field(default_factory=Counter)


def unknown_models(kept: Sequence[Sequence[Record]], book: ProfileBook) -> tuple[str, ...]:
    """A sentence that names every model that the book does not know, with a hint; empty where it knows all."""
    found: dict[str, Counter[int]] = {}
    for record in (record for jobs in kept for record in jobs):
        if record.unknown:
            found.setdefault(record.unknown[0], Counter())[record.unknown[1]] += 1
    if not found:
        return ()
    jobs = counted(sum(sizes.total() for sizes in found.values()), "job")
    sentences = (_unknown(model, sizes, book) for model, sizes in sorted(found.items()))
    return (
        f"the profile book does not know the models of {jobs}, which train {GENERIC!r} instead: {' '.join(sentences)}",
    )


def _unknown(model: str, sizes: Counter[int], book: ProfileBook) -> str:
    batches = [str(size) for size in sorted(sizes) if size]
    at = f" at batch size {', '.join(batches)}" if batches else ""
    return f"{model!r}{at} ({counted(sizes.total(), 'job')}){model_hint(model, min(sizes), book)}"


def model_hint(model: str, batch: int, book: ProfileBook) -> str:
    """Advice on a model that the book does not know; begins with a full stop or a comma."""
    measured = gavel_book()
    if model in book.profiles and (sizes := sorted({size for _, size in book.get(model).curves if size})):
        return f", which was measured at batch sizes {', '.join(map(str, sizes))}."
    if model in measured.profiles and (not batch or any(size == batch for _, size in measured.get(model).curves)):
        return ", which --profiles gavel has."
    return f".{closest(model, book.profiles) or ' Give its speeds as a CSV with --profiles.'}"


def _job(name: str, record: Record, model: str, rates: ReferenceRates) -> Job:
    regimes = record.regimes or (Regime(steps=record.duration * rates(model, record.gpus, spans=record.spans)),)
    return Job(
        name=name,
        model=model,
        regimes=regimes,
        gpus_min=record.gpus_min or record.gpus,
        gpus_max=record.gpus,
        gpu_types=record.gpu_types,
        dynamic=record.dynamic,
        adaptive=record.adaptive,
    )


def _later(record: Record, by: Seconds) -> Record:
    deadline = None if record.deadline is None else record.deadline + by
    return replace(record, submit=record.submit + by, deadline=deadline)
