"""``themis history`` and ``themis usage``: accounts of the live service, as tables, JSON, YAML, CSV and Parquet."""

from __future__ import annotations

import sys
import time
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated, Any

from themis.cli.options import option
from themis.cli.output import out
from themis.cli.table_columns import (
    Columns,
    Home,
    User,
    Verbose,
    Watch,
    again,
    clock,
    known,
    no_formula,
    service_of,
    show_rows,
)
from themis.errors import InputError, UnknownName

FORMS = ("table", "json", "yaml", "csv", "parquet")
SPOKEN = ("table", "json", "yaml")
"""Forms that a terminal shows as they always did."""
TIMES = ("submitted", "started", "since", "ended")
"""Columns that are seconds since 1970 in the API, and dates in files."""
Form = Annotated[str, option("--format", "-f", metavar="|".join(FORMS), help="Format of the output.")]
Where = Annotated[
    str,
    option(
        "--output",
        "-o",
        metavar="FORMAT|FILE",
        help="A format, or a file to write; its ending (.csv, .json, .yaml, .parquet) names the format.",
    ),
]
WHEN = "an age such as 7d, 36h or 30m, a day such as 2026-11-23, or a time such as 2026-11-23T14:00"
Since = Annotated[str, option(metavar="WHEN", help=f"Begin: {WHEN}.")]
Until = Annotated[str, option(metavar="WHEN", help="End, likewise. Default: now.")]


def history(
    user: User = "",
    since: Since = "",
    until: Until = "",
    state: Annotated[
        str, option("--state", "-s", help="States, separated by commas: completed, cancelled, failed.")
    ] = "",
    reason: Annotated[
        str,
        option(help="Part of the app's reason, or how an attempt ended, such as failed or node_lost."),
    ] = "",
    attempts: Annotated[bool, option("--attempts", "-a", help="A row for each attempt of each job.")] = False,
    limit: Annotated[int, option("--limit", "-l", least=0, help="Maximum number of apps, newest first (0: 1000).")] = 0,
    form: Form = "",
    output: Where = "",
    watch: Watch = False,
    verbose: Verbose = False,
    home: Home = None,
) -> None:
    """List finished apps with their GPU hours and cost: your own, or for administrators those of all users.

    [cyan]--since[/cyan] and [cyan]--until[/cyan] select by the time at which apps ended.

    Example: [cyan]themis history --since 7d --state failed --attempts[/cyan]
    """
    form, file = target(form, output)
    now = time.time()
    states = [word.strip() for word in state.split(",") if word.strip()]
    with service_of(home) as service:
        for _ in again(watch, form if form in SPOKEN else "json"):
            rows: list[dict[str, Any]] = service.call(
                "History",
                user=user,
                limit=limit,
                since=moment(since, "--since", now),
                until=moment(until, "--until", now, end=True),
                state=states,
                reason=reason,
            )["apps"]
            if attempts:
                rows = [{"app": app["name"], "user": app["user"], **row} for app in rows for row in app["attempts"]]
            columns = ATTEMPTS if attempts else ALL_PAST if verbose else PAST
            show(rows, form, file, _paid(columns, rows))


def usage(
    user: User = "",
    since: Since = "",
    until: Until = "",
    by: Annotated[
        str, option("--by", "-b", help="A row for each: user, group, day, gpu_type, separated by commas.")
    ] = "user",
    utc: Annotated[bool, option("--utc", help="Days of UTC instead of the service's time zone.")] = False,
    form: Form = "",
    output: Where = "",
    watch: Watch = False,
    verbose: Verbose = False,
    home: Home = None,
) -> None:
    """Show GPU hours and their cost: your own, or for administrators those of all users.

    Counts whole days, from that of [cyan]--since[/cyan] to that of [cyan]--until[/cyan]. Leased GPU hours are the sum of useful,
    restart, lost and idle ones.

    Example: [cyan]themis usage --since 30d --by user,gpu_type -o november.csv[/cyan]
    """
    form, file = target(form, output)
    names = [word.strip() for word in by.split(",") if word.strip()]
    if not names:
        raise InputError(f"--by is {by!r}, expected user, group, day, gpu_type, or several of them with commas.")
    now = time.time()
    with service_of(home) as service:
        for _ in again(watch, form if form in SPOKEN else "json"):
            rows = service.call(
                "Usage",
                user=user,
                since=moment(since, "--since", now),
                until=moment(until, "--until", now, end=True),
                by=names,
                utc=utc,
            )["users"]
            chosen = {_TITLES[name]: _plain(name) for name in _TITLES if name in names}
            counts = APPS if not {"day", "gpu_type"} & {*names} else {}
            show(rows, form, file, _paid({**chosen, **counts, **(ALL_HOURS if verbose else HOURS)}, rows))


# ---- options -----------------------------------------------------------------------------------------------------------


def target(form: str, output: str) -> tuple[str, Path | None]:
    """The format, and the file to write or None for standard output.

    Raises
    ------
    UnknownName : no such format. InputError : a file whose ending names none, or Parquet without a file.
    """
    file = None if output in ("", *FORMS) else Path(output)
    ending = file.suffix.removeprefix(".") if file else ""
    if file is not None and not form and ending not in FORMS[1:]:
        if not ending and "/" not in output:
            raise UnknownName("output", output, FORMS)
        raise InputError(
            f"--output is {output!r}, whose ending names no format; expected .csv, .json, .yaml or .parquet, or --format with it."
        )
    form = form or (ending if file else output) or "table"
    if form not in FORMS:
        raise UnknownName("format", form, FORMS)
    if form == "parquet" and file is None:
        raise InputError("Parquet is not text, so it needs a file; add -o FILE.parquet.")
    return form, file


def moment(text: str, option: str, now: float, *, end: bool = False) -> float | None:
    """Seconds since 1970; None for an empty text. Days and times are local; ``end`` : of a day, its last second.

    Raises
    ------
    InputError : it is neither an age nor a time.
    """
    from themis import sizes

    if not text:
        return None
    try:
        return now - sizes.duration(text)
    except sizes.Unreadable:
        pass
    try:
        found = datetime.fromisoformat(text)
        if end and len(text) == len("2026-11-23"):
            found = found.replace(hour=23, minute=59, second=59, microsecond=999_999)
        return found.timestamp()
    except (ValueError, OverflowError, OSError):
        raise InputError(f"{option} is {text!r}, expected {WHEN}.") from None


# ---- output ------------------------------------------------------------------------------------------------------------


def show(rows: Sequence[Mapping[str, Any]], form: str, file: Path | None, columns: Columns) -> None:
    """Print rows in a format, or write them to a file.

    Raises
    ------
    InputError : the file cannot be written.
    """
    if file is None and form in SPOKEN:
        show_rows(rows, form, columns)
        return
    try:
        if form in ("csv", "parquet"):
            _write_frame(rows, form, file)
        else:
            assert file is not None
            file.write_text(_text(rows, form), encoding="utf-8")
    except OSError as error:
        raise InputError(f"cannot write {file}: {error.strerror or error}.") from None
    if file is not None:
        out.print(f"{file}: {len(rows)} rows", markup=False, highlight=False, soft_wrap=True)


def _text(rows: Sequence[Mapping[str, Any]], form: str) -> str:
    import json

    import yaml

    plain = [dict(row) for row in rows]
    return json.dumps(plain, indent=2) + "\n" if form == "json" else yaml.safe_dump(plain, sort_keys=False)


def _write_frame(rows: Sequence[Mapping[str, Any]], form: str, file: Path | None) -> None:
    """A table with a column for each plain field; lists of text are joined, messages within a row are left out."""
    import polars as pl

    cell = _cell if form == "parquet" else lambda name, value: no_formula(_cell(name, value))
    flat = [{name: cell(name, value) for name, value in row.items() if not _nested(value)} for row in rows]
    names = list(dict.fromkeys(name for row in flat for name in row))
    frame = pl.DataFrame({name: [row.get(name) for row in flat] for name in names}, strict=False)
    if form == "parquet":
        frame.write_parquet(file)  # type: ignore[arg-type]
    else:
        text = frame.write_csv(datetime_format="%Y-%m-%dT%H:%M:%SZ")
        if file is None:
            sys.stdout.write(text)
        else:
            file.write_text(text, encoding="utf-8")


def _nested(value: object) -> bool:
    return isinstance(value, list) and any(isinstance(part, dict) for part in value)


def _cell(name: str, value: Any) -> object:
    if isinstance(value, list):
        return " ".join(map(str, value))
    if name in TIMES and isinstance(value, float):
        return datetime.fromtimestamp(value, UTC)
    return None if value in ("NaN", "Infinity", "-Infinity") else value


def _paid(columns: Columns, rows: Sequence[Mapping[str, Any]]) -> Columns:
    """Add the cost column if any row has a cost."""
    return {**columns, "cost": _cost} if any(row["cost"] for row in rows) else columns


def _plain(name: str) -> Any:
    return lambda row: row.get(name, "")


def _hours(name: str) -> Any:
    return lambda row: f"{float(row[name]):.2f}"


def _time(name: str) -> Any:
    return lambda row: clock(row[name]) if row.get(name) else ""


def _cost(row: Mapping[str, Any]) -> str:
    return f"{float(row['cost']):.2f} {row['currency']}".strip()


def _runs(row: Mapping[str, Any]) -> str:
    return ", ".join(f"{run['tracker']} {run['run']}" for run in row["runs"])


_TITLES = {"day": "day", "user": "user", "group": "group", "gpu_type": "GPU type"}
APPS: Columns = {name: _plain(name) for name in ("apps", "completed", "cancelled", "failed")}
HOURS: Columns = {"GPU hours": _hours("gpu_hours"), "useful": _hours("useful_hours"), "idle": _hours("idle_hours")}
ALL_HOURS: Columns = {
    "GPU hours": _hours("gpu_hours"),
    "useful": _hours("useful_hours"),
    "restart": _hours("restart_hours"),
    "lost": _hours("lost_hours"),
    "idle": _hours("idle_hours"),
}
PAST: Columns = {
    "app": _plain("id"),
    "name": _plain("name"),
    "user": _plain("user"),
    "state": _plain("state"),
    "jobs": _plain("jobs"),
    "GPU hours": _hours("gpu_hours"),
    "ended": _time("ended"),
}
ALL_PAST: Columns = {
    **{title: PAST[title] for title in ("app", "name", "user", "state", "jobs")},
    "group": _plain("group"),
    "rho": lambda r: f"{float(r['rho']):.2f}" if known(r.get("rho")) else "",
    **ALL_HOURS,
    "submitted": _time("submitted"),
    "started": _time("started"),
    "ended": _time("ended"),
    "runs": _runs,
    "": _plain("reason"),
}
ATTEMPTS: Columns = {
    "app": _plain("app"),
    "job": _plain("job"),
    "attempt": _plain("attempt"),
    "GPUs": _plain("gpus"),
    "type": _plain("gpu_type"),
    "began": _time("since"),
    "ended": _time("ended"),
    "lease": _plain("cause"),
    "program": lambda r: f"{r['ending']} ({r['code']})" if r.get("code") else r["ending"],
    **ALL_HOURS,
}
