"""Themis' own CSV format: one row a job, rows of one ``app`` together (they need not be adjacent).

``docs/traces.md`` describes the columns for users. What the writer writes, the reader reads back exactly: floats are
written so that they keep every bit, and everything that an ``App`` holds has a column.
"""

from __future__ import annotations

import csv
import difflib
import gzip
import io
import math
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import ClassVar

from themis.errors import InputError, TraceError
from themis.model.speed import ProfileBook
from themis.model.units import Seconds
from themis.model.workload import (
    MOST_REPORTS,
    App,
    CurveStopping,
    Group,
    Job,
    LossCurve,
    Regime,
    Tuner,
    User,
    Workload,
    brackets_of,
)
from themis.traces.bundle import stem
from themis.traces.csv_table import OnFault, TableRow, read_rows
from themis.traces.dynamic_cell import DYNAMICS, read_dynamic, write_dynamic
from themis.traces.mix import ReferenceRates
from themis.traces.profiles.models import DEFAULT_BOOK, GENERIC
from themis.traces.tuner_cell import TUNERS, read_tuner, write_tuner

COLUMNS = (
    "app",
    "user",
    "submit_s",
    "gpus",
    "gpus_min",
    "gpus_max",
    "duration_s",
    "steps",
    "model",
    "job",
    "weight",
    "deadline_s",
    "tuner",
    "step_scale",
    "gpu_types",
    "loss",
    "user_weight",
    "group",
    "group_weight",
    "dynamic",
)
"""All columns of the format, in the order of the documentation."""

WRITTEN = tuple(c for c in COLUMNS if c not in {"gpus", "duration_s"})
"""Columns that the writer writes: the exact ones, not the convenience ones."""

_OF_APP = ("user", "weight", "deadline_s", "tuner")
_TYPES_SEPARATOR = "|"


@dataclass(frozen=True, slots=True, kw_only=True)
class GenericCsv:
    """Reader of the format; it has no options."""

    name: ClassVar[str] = "csv"

    @classmethod
    def recognises(cls, header: tuple[str, ...]) -> bool:
        """True if a file with these columns is of this format."""
        return {"app", "submit_s"} <= set(header)

    def read(self, path: Path, *, seed: int = 0, book: ProfileBook = DEFAULT_BOOK) -> Workload:
        """Read a workload; ``seed`` is not used.

        Raises
        ------
        InputError : the file cannot be read or has no rows, or a column is unknown, missing or named twice.
        TraceError : a cell is wrong: file, line, column, value, expected.
        """
        by_app: dict[str, list[TableRow]] = {}
        for row in read_rows(path, COLUMNS, ("app", "submit_s")):
            by_app.setdefault(row.need("app", "the app's name"), []).append(row)
        if not by_app:
            raise InputError(f"trace {str(path)!r} has a header but no rows, expected at least one job.")
        rates = ReferenceRates(book)
        apps = tuple(_app(name, rows, book, rates) for name, rows in by_app.items())
        users, groups = _tenants(row for rows in by_app.values() for row in rows)
        return Workload(name=stem(path.name), apps=apps, source=f"file: {path}", users=users, groups=groups)

    def scan(self, path: Path, book: ProfileBook, on_fault: OnFault) -> None:
        """Report all faulty rows; for an app without any, the contradictions between its rows."""
        by_app: dict[str, list[TableRow]] = {}
        for row in read_rows(path, COLUMNS, ("app", "submit_s"), on_fault=on_fault):
            with _noting(on_fault):
                by_app.setdefault(row.need("app", "the app's name"), []).append(row)
        rates = ReferenceRates(book)
        good: list[TableRow] = []
        for name, rows in by_app.items():
            sound = [row for i, row in enumerate(rows) if _sound(row, name, i, book, rates, on_fault)]
            if len(sound) == len(rows):
                with _noting(on_fault):
                    _app(name, rows, book, rates)
                    good += rows
        with _noting(on_fault):
            _tenants(good)


def write_csv(workload: Workload, path: Path) -> None:
    """Write a workload; gzipped where the name ends in ``.gz``. Users and groups without apps are not written.

    Raises
    ------
    InputError : a name is one that the format cannot hold, or the file cannot be written.
    """
    text = io.StringIO()
    writer = csv.DictWriter(text, WRITTEN, lineterminator="\n")
    writer.writeheader()
    users = {user.name: user for user in workload.users}
    groups = {group.name: group for group in workload.groups}
    for app in workload.apps:
        for job in app.jobs:
            writer.writerow(_cells(app, job, users.get(app.user), groups))
    data = text.getvalue().encode("utf-8")
    try:
        # mtime 0: the same workload gives the same bytes.
        path.write_bytes(gzip.compress(data, mtime=0) if path.suffix == ".gz" else data)
    except OSError as error:
        raise InputError(f"cannot write trace {str(path)!r}: {error.strerror}.") from None


@contextmanager
def _noting(on_fault: OnFault) -> Iterator[None]:
    try:
        yield
    except TraceError as error:
        on_fault(error)


def _sound(row: TableRow, app: str, position: int, book: ProfileBook, rates: ReferenceRates, on_fault: OnFault) -> bool:
    """True if a row is right by itself."""
    try:
        _arrival(row)
        _job(row, app, position, book, rates)
    except TraceError as error:
        on_fault(error)
        return False
    return True


def _app(name: str, rows: list[TableRow], book: ProfileBook, rates: ReferenceRates) -> App:
    first = rows[0]
    for row in rows[1:]:
        for column in _OF_APP:
            if row.text(column) != first.text(column):
                row.fail(
                    column, f"{first.text(column)!r} as on line {first.line}, the same for all jobs of app {name!r}"
                )
    jobs = tuple(_job(row, name, i, book, rates) for i, row in enumerate(rows))
    names: set[str] = set()
    for row, job in zip(rows, jobs, strict=True):
        if job.name in names:
            row.fail("job", f"a name that no other job of app {name!r} has")
        names.add(job.name)
    deadline = first.number("deadline_s", "seconds from the trace's start, or empty", low=0.0, default=-1.0)
    return App(
        name=name,
        user=first.text("user", name),
        arrival=min(map(_arrival, rows)),
        jobs=jobs,
        tuner=_tuner(first, jobs),
        weight=first.number("weight", "a number above 0", low=0.0, above=True, default=1.0),
        deadline=None if deadline < 0 else deadline,
    )


def _job(row: TableRow, app: str, position: int, book: ProfileBook, rates: ReferenceRates) -> Job:
    model = row.text("model", GENERIC)
    if model not in book.profiles:
        by_lower = {name.lower(): name for name in book.profiles}
        close = difflib.get_close_matches(model.lower(), by_lower, n=1, cutoff=0.5)
        perhaps = f", perhaps {by_lower[close[0]]!r}" if close else ""
        row.fail("model", f"a model of the profile book{perhaps} (known: {', '.join(sorted(book.profiles))})")
    least, most = _gpus(row)
    scale = row.number("step_scale", "a number above 0", low=0.0, above=True, default=1.0)
    job = Job(
        name=row.text("job", f"{app}/{position:02d}"),
        model=model,
        regimes=_regimes(row, model, most, scale, rates),
        gpus_min=least,
        gpus_max=most,
        step_scale=scale,
        gpu_types=tuple(t.strip() for t in row.text("gpu_types").split(_TYPES_SEPARATOR) if t.strip()),
        loss=_loss(row),
    )
    try:
        return replace(job, dynamic=read_dynamic(row.text("dynamic")))
    except ValueError:
        row.fail("dynamic", DYNAMICS)
    except InputError as error:
        row.fail("dynamic", f"{DYNAMICS}: {error}".rstrip("."))


def _arrival(row: TableRow) -> Seconds:
    return row.number("submit_s", "seconds from the trace's start, 0 or more", low=0.0)


def _gpus(row: TableRow) -> tuple[int, int]:
    whole = "a whole number of GPUs, 1 or more"
    if row.text("gpus"):
        for column in ("gpus_min", "gpus_max"):
            if row.text(column):
                row.fail(column, "nothing, as 'gpus' is given; use either 'gpus' or 'gpus_min' with 'gpus_max'")
        gpus = row.whole("gpus", whole, low=1)
        return gpus, gpus
    most = row.whole("gpus_max" if "gpus_max" in row.cells else "gpus", whole, low=1)
    least = row.whole("gpus_min", whole, low=1, default=1)
    if least > most:
        row.fail("gpus_min", f"at most gpus_max, which is {most}")
    return least, most


def _regimes(row: TableRow, model: str, gpus: int, scale: float, rates: ReferenceRates) -> tuple[Regime, ...]:
    steps, expected = (
        row.text("steps"),
        "steps above 0, or regimes like '1000@32 500@64' (steps@batch, or steps@batch*pace)",
    )
    if not steps:
        column = "duration_s" if "duration_s" in row.cells else "steps"
        duration = row.number(column, "seconds above 0 (or 'steps' instead)", low=0.0, above=True)
        return (Regime(steps=duration * rates(model, gpus) / scale),)
    if row.text("duration_s"):
        row.fail("duration_s", "nothing, as 'steps' is given; use one of the two")
    out = []
    for part in steps.split():
        count, _, rest = part.partition("@")
        batch, _, pace = rest.partition("*")
        try:
            regime = Regime(steps=float(count), batch=int(batch or 0), pace=float(pace or 1.0))
        except ValueError:
            row.fail("steps", expected)
        if not 0 < regime.steps < float("inf") or regime.batch < 0 or not 0 < regime.pace < float("inf"):
            row.fail("steps", expected)
        out.append(regime)
    return tuple(out)


def _tuner(row: TableRow, jobs: tuple[Job, ...]) -> Tuner:
    text = row.text("tuner", "bag")
    try:
        tuner = read_tuner(text)
    except ValueError:
        row.fail("tuner", TUNERS)
    except InputError as error:
        row.fail("tuner", f"{TUNERS}: {error}".rstrip("."))
    first = [bracket.rungs[0].jobs for bracket in brackets_of(tuner)]
    if first and sum(first) != len(jobs):
        rungs = "a first rung of" if len(first) == 1 else "first rungs of together"
        row.fail("tuner", f"{rungs} {len(jobs)} jobs, as many as the app has rows")
    if isinstance(tuner, CurveStopping) and max(job.steps for job in jobs) > MOST_REPORTS * tuner.check_steps:
        row.fail("tuner", f"a check_steps that makes at most {MOST_REPORTS} reports of the app's longest job")
    return tuner


def _loss(row: TableRow) -> LossCurve:
    if not row.text("loss"):
        return LossCurve()
    expected = "three numbers 'a b c' of the curve a / (b i + 1) + c, b at least 0"
    try:
        a, b, c = (float(part) for part in row.text("loss").split())
    except ValueError:
        row.fail("loss", expected)
    # A negative b has a pole where the run may well come.
    if not all(map(math.isfinite, (a, b, c))) or b < 0:
        row.fail("loss", expected)
    return LossCurve(a=a, b=b, c=c)


def _tenants(rows: Iterable[TableRow]) -> tuple[tuple[User, ...], tuple[Group, ...]]:
    """Users and groups that say something beyond their name; the first row of each decides, the others must agree."""
    users: dict[str, tuple[User, TableRow]] = {}
    groups: dict[str, tuple[Group, TableRow]] = {}
    for row in rows:
        weight = row.number("user_weight", "a number above 0", low=0.0, above=True, default=1.0)
        user = User(name=row.text("user") or row.text("app"), weight=weight, group=row.text("group"))
        known, first = users.setdefault(user.name, (user, row))
        if known != user:
            column = "group" if known.group != user.group else "user_weight"
            row.fail(
                column, f"{first.text(column)!r} as on line {first.line}, the same for all apps of user {user.name!r}"
            )
        weight = row.number("group_weight", "a number above 0", low=0.0, above=True, default=1.0)
        if user.group:
            group, origin = groups.setdefault(user.group, (Group(name=user.group, weight=weight), row))
            if group.weight != weight:
                row.fail(
                    "group_weight", f"{group.weight} as on line {origin.line}, the same for all of group {group.name!r}"
                )
        elif row.text("group_weight") and weight != 1.0:
            row.fail("group_weight", "nothing, as 'group' is empty")
    return (
        tuple(user for user, _ in users.values() if user.weight != 1.0 or user.group),
        tuple(group for group, _ in groups.values() if group.weight != 1.0),
    )


def _cells(app: App, job: Job, user: User | None, groups: dict[str, Group]) -> dict[str, str]:
    names = [("app", app.name), ("user", app.user), ("job", job.name), ("model", job.model)]
    names += [("GPU type", gpu_type) for gpu_type in job.gpu_types]
    names += [("group", user.group)] if user and user.group else []
    for what, text in names:
        if text != text.strip() or not text or (what == "GPU type" and _TYPES_SEPARATOR in text):
            raise InputError(
                f"app {app.name!r}: {what} name {text!r} cannot be written, expected no blanks around it and, "
                f"in a GPU type, no {_TYPES_SEPARATOR!r}; rename it."
            )
    group = groups.get(user.group) if user else None
    return {
        "app": app.name,
        "user": app.user,
        "submit_s": repr(float(app.arrival)),
        "gpus_min": str(job.gpus_min),
        "gpus_max": str(job.gpus_max),
        "steps": " ".join(map(_regime_text, job.regimes)),
        "model": job.model,
        "job": job.name,
        "weight": _unless_one(app.weight),
        "deadline_s": "" if app.deadline is None else repr(float(app.deadline)),
        "tuner": write_tuner(app.tuner),
        "step_scale": _unless_one(job.step_scale),
        "gpu_types": _TYPES_SEPARATOR.join(job.gpu_types),
        "loss": "" if job.loss == LossCurve() else " ".join(repr(float(x)) for x in _abc(job.loss)),
        "user_weight": _unless_one(user.weight if user else 1.0),
        "group": user.group if user else "",
        "group_weight": _unless_one(group.weight if group else 1.0),
        "dynamic": write_dynamic(job.dynamic),
    }


def _regime_text(regime: Regime) -> str:
    steps, pace = repr(float(regime.steps)), "" if regime.pace == 1.0 else f"*{regime.pace!r}"
    return f"{steps}@{regime.batch}{pace}" if regime.batch or pace else steps


def _abc(loss: LossCurve) -> Iterator[float]:
    yield from (loss.a, loss.b, loss.c)


def _unless_one(value: float) -> str:
    return "" if value == 1.0 else repr(float(value))
