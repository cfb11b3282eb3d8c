"""What the verbs of the live service share: their options, the connection, tables, JSON and YAML."""

from __future__ import annotations

import math
import sqlite3
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from datetime import datetime
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Annotated, Any

import typer

from themis.console import out, print_fitting, print_json
from themis.errors import InputError, UnknownName

if TYPE_CHECKING:
    from themis.client.client import Client
    from themis.service.engine.journal import Journal

Home = Annotated[
    Path | None,
    typer.Option(
        "--data-dir",
        "--home",
        metavar="DIR",
        help="The service's data directory (default: $THEMIS_DATA_DIR or ~/.themis).",
    ),
]
"""``--data-dir``, with ``--home`` as an alias."""
Output = Annotated[str, typer.Option("--output", "-o", metavar="table|json|yaml", help="Output format.")]
Watch = Annotated[bool, typer.Option("--watch", "-w", help="Refresh every two seconds.")]
Verbose = Annotated[bool, typer.Option("--verbose", "-v", help="Show all columns, with rho, bids and payments.")]
User = Annotated[str, typer.Option("--user", "-u", help="Show this user only.")]
Owner = Annotated[str, typer.Option("--user", "-u", help="Owner of the app. Default: you.")]
AppName = Annotated[str, typer.Argument(metavar="APP", help="Number or name of an app.")]
AppNames = Annotated[list[str], typer.Argument(metavar="APP...", help="Numbers or names of apps.")]
NodeNames = Annotated[
    list[str], typer.Argument(metavar="NODE...", help="Names of machines, as themis nodes lists them.")
]
Columns = Mapping[str, Callable[[Any], object]]
WATCH_S = 2.0
FORECAST_S = 30 * 86400.0
"""Seconds. A point forecast without an interval that is further ahead is not shown: speeds are not measured yet."""


PATIENCE_S = 5.0
"""Seconds that an interactive command waits for an arbiter that does not answer."""


def connect(home: Path | None, *, patience_s: float = PATIENCE_S) -> Client:
    """Connect to the arbiter of a data directory; prints a sentence on stderr when it has to wait."""
    from themis.client.client import Client
    from themis.console import err

    return Client(
        home, patience_s=patience_s, on_wait=lambda sentence: err.print(sentence, markup=False, highlight=False)
    )


@contextmanager
def journal_of(home: Path) -> Iterator[Journal]:
    """The journal of a data directory, whether or not its arbiter runs. Reads a copy: a reader must not migrate the journal.

    Raises
    ------
    InputError : the journal is missing, cannot be read, or was written by a later version.
    """
    from themis.service.engine.journal import Journal

    path = home / "journal.db"
    if not path.exists():
        raise InputError(f"{home} is not a data directory: it has no journal.db. Name a log file or a data directory.")
    if not path.stat().st_size:
        raise InputError(f"{path} is empty; restore a backup with `themis restore`.")
    with TemporaryDirectory(prefix="themis-") as folder:
        copy = Path(folder) / path.name
        try:
            with (
                closing(sqlite3.connect(f"{path.absolute().as_uri()}?mode=ro", uri=True)) as db,
                closing(sqlite3.connect(copy)) as there,
            ):
                db.backup(there)
        except sqlite3.DatabaseError as error:
            raise InputError(
                f"cannot read {path} ({error}). Run `themis doctor --data-dir {home}` to check it."
            ) from None
        with closing(Journal(copy)) as journal:
            yield journal


def check_output(output: str) -> None:
    """Raise UnknownName for an unknown output format."""
    if output not in ("table", "json", "yaml"):
        raise UnknownName("output", output, ("table", "json", "yaml"))


def again(watch: bool, output: str) -> Iterator[None]:
    """Yield once, or every two seconds with ``watch``; clears the screen of a terminal in between."""
    check_output(output)
    first = True
    while first or watch:
        if watch and out.is_terminal and output == "table":
            out.clear()
        if not first and output == "yaml":
            print("---")
        yield
        sys.stdout.flush()
        if watch:
            time.sleep(WATCH_S)
        first = False


def show_list(
    get: Callable[[], Sequence[Any]], columns: Columns, output: str, watch: bool = False, *, empty: str = ""
) -> None:
    """Print messages as a list, once or repeatedly; ``empty`` is printed under a table without rows."""
    from themis.service.api.pages import as_dict

    for _ in again(watch, output):
        rows = [as_dict(row) for row in get()]
        show_rows(rows, output, columns)
        below = [f"Warning: {text}." for text in dict.fromkeys(row.get("warning", "") for row in rows) if text]
        for line in below or ([empty] if empty and not rows else []) if output == "table" else []:
            out.print(line, markup=False, highlight=False, soft_wrap=True)


def show_rows(rows: Sequence[Mapping[str, Any]], output: str, columns: Columns) -> None:
    """Print plain rows: as a table of these columns, or all fields as JSON or YAML.

    On a terminal, text columns wrap so that the table fits; elsewhere names stay whole, one row a line, as ``grep`` needs.
    """
    check_output(output)
    if output != "table":
        dump([dict(row) for row in rows], output)
        return
    from rich import box
    from rich.markup import escape
    from rich.table import Table

    table = Table(box=box.SIMPLE_HEAD, show_edge=False, padding=(0, 1, 0, 0), pad_edge=False)
    cells = [[str(cell(row)) for cell in columns.values()] for row in rows]
    for i, title in enumerate(columns):
        wraps = title in PROSE or (title in NAMES and out.is_terminal)
        widest = max([len(title), *(len(line[i]) for line in cells)])
        table.add_column(title, overflow="fold", no_wrap=not wraps, min_width=min(widest, LEAST) if wraps else widest)
    for line in cells:
        table.add_row(*map(escape, line))
    print_fitting(table)


def dump(value: object, output: str) -> None:
    """Print plain data as JSON or YAML."""
    check_output(output)
    if output == "json":
        print_json(value)
        return
    import yaml

    print(yaml.safe_dump(value, sort_keys=False, allow_unicode=True), end="")


def clock(time: float) -> str:
    """Seconds since 1970 in local time."""
    return datetime.fromtimestamp(time).strftime("%Y-%m-%d %H:%M:%S")


def fair_share(rho: float) -> str:
    """``1.34x of fair share``: the finish time over that on a private 1/N of the cluster (rho); below 1 is earlier."""
    return f"{rho:.2f}x of fair share"


def _time(name: str) -> Callable[[Any], object]:
    return lambda row: clock(row[name]) if row.get(name) else ""


def _state(row: Any) -> object:
    return f"{row['state']} until {clock(row['until'])}" if row.get("until") else row["state"]


def _number(name: str, form: str = ".2f") -> Callable[[Any], object]:
    return lambda row: format(float(row[name]), form) if known(row.get(name)) else ""


def known(value: Any) -> bool:
    """Whether a number exists; finish-time fairness has none while no machine that the app may use is in service."""
    return value is not None and not math.isnan(float(value))


def _plain(name: str) -> Callable[[Any], object]:
    return lambda row: row.get(name, "")


WHO: Columns = {"app": _plain("id"), "name": _plain("name"), "user": _plain("user"), "state": _plain("state")}
FAIRNESS: Columns = {"of fair share": lambda r: f"{float(r['rho']):.2f}x" if known(r.get("rho")) else ""}
"""Finish-time fairness, rho: shown with ``--verbose``."""
APPS: Columns = {
    **WHO,
    "GPUs": lambda r: f"{r['gpus']}/{r['demand']}",
    "jobs": lambda r: f"{r['jobs_ended']}/{r['jobs']}",
    "progress": _number("progress", ".0%"),
    "pending reason": _plain("waits"),
}
ALL_APPS: Columns = {**APPS, **FAIRNESS, "GPU hours": _number("gpu_hours"), "submitted": _time("submitted")}
JOBS: Columns = {
    "job": _plain("id"),
    "name": _plain("name"),
    "state": _plain("state"),
    "outcome": _plain("outcome"),
    "attempt": _plain("attempt"),
    "GPUs": lambda r: " ".join(map(str, r["gpus"])),
    "nodes": lambda r: " ".join(r["nodes"]),
    "steps": lambda r: f"{float(r['steps']):.0f}/{float(r['total']):.0f}",
}
ALL_JOBS: Columns = {
    **JOBS,
    "GPU hours": _number("gpu_hours"),
    "lease until": _time("until"),
    "attempts ended": lambda r: ", ".join(map(_ending, r["attempts"])),
}
NAMES = ("name", "user", "nodes", "GPUs", "apps")
"""Titles of columns that wrap on a terminal that is too narrow."""
LEAST = 8
"""Characters that a column keeps when it wraps."""
PROSE = ("finding", "withheld", "attempts ended", "")
"""Titles of columns of sentences, which always wrap."""


def _ending(attempt: Any) -> str:
    return f"{attempt['ending']} ({attempt['code']})" if attempt.get("code") else str(attempt["ending"])


def withheld(row: Mapping[str, Any]) -> str:
    """GPUs of a machine that are withheld from jobs, and the processes that occupy them."""
    if not row["withheld"]:
        return ""
    pids = row["withheld_pids"]
    return f"{row['withheld']}: process {', '.join(map(str, pids))} ({row['withheld_reason']})"


NODES: Columns = {
    "node": _plain("name"),
    "state": _state,
    "type": _plain("gpu_type"),
    "leased": lambda r: f"{r['leased']} of {r['gpus']}",
    "apps": lambda r: ", ".join(r["apps"]),
    "withheld": lambda r: withheld(r),
}
SHARES: Columns = {
    "user": _plain("user"),
    "apps": _plain("apps"),
    "GPUs": _plain("gpus"),
    "share": _number("share", ".0%"),
    "fair share": _number("fair", ".0%"),
    "GPU hours": _number("gpu_hours"),
    "fair GPU hours": _number("private_gpu_hours"),
}
ALL_SHARES: Columns = {
    **SHARES,
    "shared between": _plain("between"),
    "worst rho": _number("rho_worst"),
    "median rho": _number("rho_median"),
}
STEPS: Columns = {
    "s since submitted": _number("time", ".1f"),
    "round": lambda r: r["round"] if r["round"] >= 0 else "",
    "offered": lambda r: r["offered"] or "",
    "of fair share": lambda r: f"{r['rho']:.2f}x" if r["auction"] and known(r["rho"] or None) else "",
    "bid": lambda r: ("yes" if r["bid"] else "filtered out") if r["auction"] else "",
    "won": lambda r: r["won"] or "",
    "kept": lambda r: f"{r['kept']:.0%}" if r["won"] else "",
    "leftover": lambda r: r["leftover"] or "",
    "granted": lambda r: r["granted"] or "",
    "renewed": lambda r: r["renewed"] or "",
    "revoked": lambda r: f"{r['revoked']} {', '.join(r['causes'])}" if r["revoked"] else "",
    "held": _plain("held"),
    "": _plain("note"),
}


STATES = {"ended": "ended", "held": "held", "running": "running", "partly_running": "running", "nothing_to_run": "idle"}
"""The first word of ``themis why``, by reason code; every other code means that the app waits."""


def why_now(found: Any, *, verbose: bool = False) -> list[str]:
    """The present situation of an app, as sentences: why it waits, its position, its fair share, when it gets GPUs.

    ``verbose`` : the reason's code and the app's finish-time fairness too.
    """
    lines = [f"{STATES.get(found.code, 'waiting')}: {found.sentence}"]
    lines += [f"Warning: {found.warning}."] if found.warning else []
    if verbose:
        lines.append(f"Reason code: {found.code}.")
    if found.position:
        lines += _position(found, verbose=verbose)
    if found.weight:
        lines.append(
            f"Fair share: {found.fair:.0%} of the cluster (weight {found.weight:.3g}; shared between {found.between})."
        )
    if found.HasField("start_median"):
        earliest = clock(found.start_earliest)
        latest = clock(found.start_latest) if found.HasField("start_latest") else "much later"
        # The output has a resolution of one second.
        between = f", between {earliest} and {latest}" if earliest != latest else ""
        lines.append(
            f"Next GPUs expected at {clock(found.start_median)}{between} "
            f"({found.simulations} simulations without new arrivals)."
        )
    return lines


def _position(found: Any, *, verbose: bool) -> list[str]:
    def fairness(rho: float) -> str:
        return f", {fair_share(rho)}" if verbose and known(rho) else ""

    own = fairness(found.rho) if found.HasField("rho") else ""
    if found.of == 1:
        return [f"It is the only app that wants GPUs{own}."]
    order = "apps without GPUs first, then those furthest below their fair share"
    lines = [f"Position {found.position} of {found.of} apps that want GPUs ({order}){own}."]
    lines += [f"  ahead: app {a.app}, {a.name} of {a.user}{fairness(a.rho)}" for a in found.ahead[:5]]
    return lines + ([f"  ahead: {found.position - 6} more"] if found.position > 6 else [])


def last_words(found: Any) -> list[str]:
    """Messages of the jobs' last attempts, for ``themis show``."""
    lines = []
    for job in found.jobs:
        last = job.attempts[-1] if job.attempts else None
        # The reason of a failed app repeats the message.
        if last is not None and last.message and last.message not in found.app.reason:
            lines.append(f"Job {job.id} {job.name}, attempt {last.number}, {last.ending}: {last.message}.")
    return lines


def span(seconds: float) -> str:
    """A duration in the unit that reads best: ``44 s``, ``4.5 min``, ``3.0 h``, ``12.0 d``; 0 or more."""
    for limit, unit, size in ((120.0, "s", 1.0), (7200.0, "min", 60.0), (172800.0, "h", 3600.0)):
        if seconds < limit:
            return f"{seconds / size:.{0 if size == 1.0 else 1}f} {unit}"
    return f"{seconds / 86400.0:.1f} d"


def expected_now(story: Mapping[str, Any], *, simulated: bool = False) -> list[str]:
    """When an active app is expected to start and end, as seconds after its arrival; empty without a forecast.

    ``simulated`` : simulations estimate when it gets GPUs, which is printed already; the start is then shown only
    if it has an interval.
    A point forecast without an interval is not shown where it cannot be right: it is in the past, more than ``FORECAST_S``
    ahead, or its end is before its start.
    """
    expected, out, since = story.get("expected") or {}, [], story["arrival"]
    starts, ends = expected.get("starts"), expected.get("ends")
    for name, verb in (("starts", "start"), ("ends", "end")):
        if expected.get(name) is None or (name == "starts" and simulated and expected["starts_low"] is None):
            continue
        low, high, after = expected[f"{name}_low"], expected[f"{name}_high"], expected[name] - since
        if low is not None:
            within = f"80 % interval {span(low - since)} to {span(high - since)}"
        elif 0 <= after < FORECAST_S and (starts is None or ends is None or starts <= ends):
            within = "no interval yet"
        else:
            out.append(f"Cannot forecast its {verb} yet: too few jobs have ended (no interval yet).")
            continue
        out.append(f"Expected to {verb} {span(after)} after it was submitted ({within}).")
    return out


def planned_now(story: Mapping[str, Any], *, simulated: bool = False) -> list[str]:
    """The app's next start and its end by the latest plan, with intervals; the forecast where the policy does not plan.

    ``simulated`` : as for ``expected_now``.
    """
    last = next((step for step in reversed(story["steps"]) if step["ends"] is not None), None)
    if story["jct"] is not None:
        return []
    if last is None:
        return expected_now(story, simulated=simulated)

    def at(name: str) -> str:
        low, high = (last.get(f"{name}_{end}") for end in ("low", "high"))
        point = f"{last[name] - story['arrival']:.0f} s"
        within = "" if low is None else f" ({low - story['arrival']:.0f} to {high - story['arrival']:.0f} s)"
        return point if low == high else point + within

    planned = last["time"] - story["arrival"]
    return [f"Plan of {planned:.0f} s after submission: it runs next at {at('starts')} and ends at {at('ends')}."]


def delivered_now(story: Mapping[str, Any]) -> list[str]:
    """GPU time that an app was entitled to and received, and the causes of the difference; empty if it was entitled to none."""
    from themis.report.sentences import delivered

    line = delivered(story["entitled"], story["received"], story["missing"])
    return [line] if line else []
