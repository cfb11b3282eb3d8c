"""Microsoft's Philly trace, as two public tables of jobs (Jeon et al., ATC'19; CC BY 4.0).

- ``PhillyApps``: ``app_id, vc, submit_s, num_gpus, duration_s``; jobs already grouped into apps.
- ``PhillyJobs``: ``vc, submit_s, num_gpus, duration_s``, other columns ignored; each job an app, or grouped here.

A job is rigid and ran ``duration_s`` on ``num_gpus`` GPUs; each virtual cluster (vc) is a user. The trace names no
model: each app draws one (``themis.traces.mix``), and its steps are set so that on its GPUs at the best placement it
takes exactly ``duration_s``. Differs from what was measured: ``duration_s`` held whatever placement the job had.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar, NamedTuple

from themis.errors import InputError
from themis.model.workload import App, Job, Regime, Workload
from themis.profiles.models import DEFAULT_BOOK
from themis.profiles.speed import ProfileBook
from themis.traces.mix import ReferenceRates, model_mix
from themis.traces.table import read_rows


class _Record(NamedTuple):
    row: int
    app: str
    vc: str
    submit: float
    gpus: int
    duration: float


@dataclass(frozen=True, slots=True, kw_only=True)
class _Philly:
    """What both tables share.

    Attributes
    ----------
    start, end : seconds of the trace; apps that arrive in [start, end) are kept and arrivals counted from ``start``.
    limit : keep the first so many apps; 0 keeps all.
    vc : keep only this virtual cluster; empty keeps all.
    models, network_intensive : see ``themis.traces.mix.model_mix``.
    """

    start: float = 0.0
    end: float = float("inf")
    limit: int = 0
    vc: str = ""
    models: str = ""
    network_intensive: float | None = None

    name: ClassVar[str]
    columns: ClassVar[tuple[str, ...]]

    def __post_init__(self) -> None:
        if not 0 <= self.start < self.end:
            raise InputError(f"{self.name}: the window is {self.start} to {self.end} s, expected 0 <= start < end.")
        if self.limit < 0:
            raise InputError(f"{self.name}: limit is {self.limit}, expected 0 (all) or more.")

    def read(self, path: Path, *, seed: int = 0, book: ProfileBook = DEFAULT_BOOK) -> Workload:
        """Read a workload; ``seed`` draws the models alone.

        Raises
        ------
        InputError : the file cannot be read, lacks a column, or the options leave no job.
        TraceError : a cell is wrong: file, line, column, value, expected.
        """
        apps = self._groups(_records(path, self.columns, self.vc))
        kept = [jobs for jobs in apps if self.start <= jobs[0].submit < self.end]
        kept.sort(key=lambda jobs: jobs[0].submit)
        if self.limit:
            kept = kept[: self.limit]
        if not kept:
            raise InputError(f"{path}: no app is left with {self}; widen the window or drop a filter.")
        mix = model_mix(book, self.models, self.network_intensive)
        rates = ReferenceRates(book)
        return Workload(
            name=path.name.removesuffix(".gz").removesuffix(".csv"),
            apps=tuple(self._app(jobs, mix.draw(seed, jobs[0].app), rates) for jobs in kept),
            source=f"file: {path}, models drawn with seed {seed}, {self}",
        )

    def _groups(self, records: Iterable[_Record]) -> list[list[_Record]]:
        """The jobs of each app, in order of submission."""
        raise NotImplementedError

    def _app(self, records: list[_Record], model: str, rates: ReferenceRates) -> App:
        name = records[0].app
        jobs = tuple(
            Job(
                name=f"{name}/{i:02d}",
                model=model,
                regimes=(Regime(steps=record.duration * rates(model, record.gpus)),),
                gpus_min=record.gpus,
                gpus_max=record.gpus,
            )
            for i, record in enumerate(records)
        )
        return App(name=name, user=records[0].vc, arrival=records[0].submit - self.start, jobs=jobs)


@dataclass(frozen=True, slots=True, kw_only=True)
class PhillyApps(_Philly):
    """Jobs grouped by ``app_id``: bags that all run to the end, arriving with their first job.

    Attributes
    ----------
    single_jobs : make each job an app of its own instead.
    """

    single_jobs: bool = False

    name: ClassVar[str] = "philly_apps"
    columns: ClassVar[tuple[str, ...]] = ("app_id", "vc", "submit_s", "num_gpus", "duration_s")

    @classmethod
    def recognises(cls, header: tuple[str, ...]) -> bool:
        """Whether a file with these columns is of this format."""
        return set(cls.columns) <= set(header)

    def _groups(self, records: Iterable[_Record]) -> list[list[_Record]]:
        by_app: dict[str, list[_Record]] = {}
        for record in records:
            name = f"{record.app}-{record.row:05d}" if self.single_jobs else record.app
            by_app.setdefault(name, []).append(record._replace(app=name))
        return [sorted(jobs, key=lambda r: r.submit) for jobs in by_app.values()]


@dataclass(frozen=True, slots=True, kw_only=True)
class PhillyJobs(_Philly):
    """Jobs without apps: each its own, or, with a gap, runs of alike submissions as one.

    Attributes
    ----------
    gap_s : jobs of one vc with equal GPUs, each submitted at most this long after the one before, form an app;
        negative groups nothing.
    min_jobs, max_jobs : apps with fewer or more jobs are dropped.
    """

    gap_s: float = -1.0
    min_jobs: int = 1
    max_jobs: int = 1_000_000_000

    name: ClassVar[str] = "philly_jobs"
    columns: ClassVar[tuple[str, ...]] = ("vc", "submit_s", "num_gpus", "duration_s")

    @classmethod
    def recognises(cls, header: tuple[str, ...]) -> bool:
        """Whether a file with these columns is of this format."""
        return set(cls.columns) <= set(header) and "app_id" not in header

    def _groups(self, records: Iterable[_Record]) -> list[list[_Record]]:
        # The window cuts before grouping: of an app that began outside, what is inside is an app. An app is named
        # by its first job's place in the file, so that a window or a filter leaves its model as it was.
        ordered = sorted((r for r in records if self.start <= r.submit < self.end), key=lambda r: r.submit)
        apps: list[list[_Record]] = []
        last: dict[tuple[str, int], list[_Record]] = {}
        for record in ordered:
            key = (record.vc, record.gpus)
            running = last.get(key)
            if running is not None and record.submit - running[-1].submit <= self.gap_s:
                running.append(record)
            else:
                last[key] = [record]
                apps.append(last[key])
        return [jobs for jobs in apps if self.min_jobs <= len(jobs) <= self.max_jobs]


def _records(path: Path, columns: tuple[str, ...], vc: str) -> Iterator[_Record]:
    for i, row in enumerate(read_rows(path, required=columns)):
        if vc and row.cells["vc"] != vc:
            continue
        yield _Record(
            row=i,
            app="app" + row.need("app_id", "the number of an app") if "app_id" in columns else f"p{i:06d}",
            vc=row.need("vc", "the name of a virtual cluster"),
            submit=row.number("submit_s", "seconds from the trace's start, 0 or more", low=0.0),
            gpus=row.whole("num_gpus", "a whole number of GPUs, 1 or more", low=1),
            duration=row.number("duration_s", "seconds above 0", low=0.0, above=True),
        )
