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

from themis.console import out, print_json, print_whole
from themis.errors import InputError, UnknownName

if TYPE_CHECKING:
    from themis.client.client import Client
    from themis.service.engine.journal import Journal

Home = Annotated[
    Path | None, typer.Option("--home", metavar="DIR", help="The arbiter's home; default $THEMIS_HOME or ~/.themis.")
]
Output = Annotated[str, typer.Option("--output", "-o", metavar="table|json|yaml", help="How to print.")]
Watch = Annotated[bool, typer.Option("--watch", "-w", help="Print again every two seconds.")]
User = Annotated[str, typer.Option("--user", "-u", help="Only this user's.")]
Owner = Annotated[str, typer.Option("--user", "-u", help="Whose app it is; default: yours.")]
AppName = Annotated[str, typer.Argument(metavar="APP", help="Number or name of an app.")]
AppNames = Annotated[list[str], typer.Argument(metavar="APP...", help="Numbers or names of apps.")]
NodeNames = Annotated[
    list[str], typer.Argument(metavar="NODE...", help="Names of machines, as themis nodes lists them.")
]
Columns = Mapping[str, Callable[[Any], object]]
WATCH_S = 2.0
FORECAST_S = 30 * 86400.0
"""A point forecast without an interval that lies further ahead is not shown: speeds are not measured yet."""


PATIENCE_S = 5.0
"""For an arbiter that does not answer, where somebody waits at a terminal."""


def connect(home: Path | None, *, patience_s: float = PATIENCE_S) -> Client:
    """A connection to the arbiter of a home; that it is waited for is said at once."""
    from themis.client.client import Client
    from themis.console import err

    return Client(
        home, patience_s=patience_s, on_wait=lambda sentence: err.print(sentence, markup=False, highlight=False)
    )


@contextmanager
def journal_of(home: Path) -> Iterator[Journal]:
    """The journal of an arbiter's home, whether or not it runs; a copy, for who only reads brings no older one up to date.

    Raises
    ------
    InputError : the folder has none, it cannot be read, or it is of a later version.
    """
    from themis.service.engine.journal import Journal

    path = home / "journal.db"
    if not path.exists():
        raise InputError(f"{home} has no journal.db, so it is no arbiter's home; name a log or a home.")
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
                f"{path} cannot be read ({error}); `themis doctor --home {home}` says what is wrong with it."
            ) from None
        with closing(Journal(copy)) as journal:
            yield journal


def check_output(output: str) -> None:
    """Raise UnknownName for a form that there is not."""
    if output not in ("table", "json", "yaml"):
        raise UnknownName("output", output, ("table", "json", "yaml"))


def again(watch: bool, output: str) -> Iterator[None]:
    """Once, or with ``watch`` every two seconds, on a clear screen where there is one."""
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
    """Print messages as a list, once or again and again; ``empty`` is the sentence under a table without rows."""
    from themis.service.api.pages import as_dict

    for _ in again(watch, output):
        rows = [as_dict(row) for row in get()]
        show_rows(rows, output, columns)
        if empty and not rows and output == "table":
            out.print(empty, markup=False, highlight=False, soft_wrap=True)


def show_rows(rows: Sequence[Mapping[str, Any]], output: str, columns: Columns) -> None:
    """Print plain rows: as a table of these columns, or whole."""
    check_output(output)
    if output != "table":
        dump([dict(row) for row in rows], output)
        return
    from rich import box
    from rich.markup import escape
    from rich.table import Table

    table = Table(*columns, box=box.SIMPLE_HEAD, show_edge=False)
    for row in rows:
        table.add_row(*(escape(str(cell(row))) for cell in columns.values()))
    print_whole(table)


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


def _time(name: str) -> Callable[[Any], object]:
    return lambda row: clock(row[name]) if row.get(name) else ""


def _state(row: Any) -> object:
    return f"{row['state']} until {clock(row['until'])}" if row.get("until") else row["state"]


def _number(name: str, form: str = ".2f") -> Callable[[Any], object]:
    return lambda row: format(float(row[name]), form) if known(row.get(name)) else ""


def known(value: Any) -> bool:
    """Whether a figure is there; finish-time fairness is none while no machine that an app may use is in service."""
    return value is not None and not math.isnan(float(value))


def _plain(name: str) -> Callable[[Any], object]:
    return lambda row: row.get(name, "")


WHO: Columns = {"app": _plain("id"), "name": _plain("name"), "user": _plain("user"), "state": _plain("state")}
APPS: Columns = {
    **WHO, "GPUs": lambda r: f"{r['gpus']} of {r['demand']}", "jobs": lambda r: f"{r['jobs_ended']}/{r['jobs']}",
    "waits for": _plain("waits"), "progress": _number("progress", ".0%"), "rho": _number("rho"), "GPU hours": _number("gpu_hours"),
    "submitted": _time("submitted"),
}  # fmt: skip
ENDED: Columns = {
    **WHO, "jobs": _plain("jobs"), "rho": _number("rho"), "GPU hours": _number("gpu_hours"),
    "submitted": _time("submitted"), "ended": _time("ended"),
}  # fmt: skip
JOBS: Columns = {
    "job": _plain("id"), "name": _plain("name"), "state": _plain("state"), "outcome": _plain("outcome"),
    "attempt": _plain("attempt"),
    "GPUs": lambda r: " ".join(map(str, r["gpus"])), "nodes": lambda r: " ".join(r["nodes"]),
    "steps": lambda r: f"{float(r['steps']):.0f}/{float(r['total']):.0f}",
    "GPU hours": _number("gpu_hours"), "lease until": _time("until"),
    "attempts ended": lambda r: ", ".join(a["ending"] + (f" ({a['code']})" if a.get("code") else "") for a in r["attempts"]),
}  # fmt: skip


def withheld(row: Mapping[str, Any]) -> str:
    """GPUs of a machine that get no job, and the processes that keep them."""
    if not row["withheld"]:
        return ""
    pids = row["withheld_pids"]
    return f"{row['withheld']}: process {', '.join(map(str, pids))} ({row['withheld_reason']})"


NODES: Columns = {
    "node": _plain("name"), "state": _state, "type": _plain("gpu_type"),
    "leased": lambda r: f"{r['leased']} of {r['gpus']}", "apps": lambda r: ", ".join(r["apps"]),
    "withheld": lambda r: withheld(r),
}  # fmt: skip
SHARES: Columns = {
    "user": _plain("user"), "apps": _plain("apps"), "GPUs": _plain("gpus"), "share": _number("share", ".0%"),
    "by weight": _number("fair", ".0%"), "between": _plain("between"),
    "worst rho": _number("rho_worst"), "median rho": _number("rho_median"),
    "GPU hours": _number("gpu_hours"), "1/N would give": _number("private_gpu_hours"),
}  # fmt: skip
USAGES: Columns = {
    "user": _plain("user"), "apps": _plain("apps"), "completed": _plain("completed"), "cancelled": _plain("cancelled"),
    "failed": _plain("failed"), "GPU hours": _number("gpu_hours"),
}  # fmt: skip
STEPS: Columns = {
    "s since submitted": _number("time", ".1f"), "round": lambda r: r["round"] if r["round"] >= 0 else "",
    "offered": lambda r: r["offered"] or "", "rho": lambda r: f"{r['rho']:.2f}" if r["auction"] and known(r["rho"] or None) else "",
    "bid": lambda r: ("yes" if r["bid"] else "filtered out") if r["auction"] else "", "won": lambda r: r["won"] or "",
    "kept": lambda r: f"{r['kept']:.0%}" if r["won"] else "", "leftover": lambda r: r["leftover"] or "",
    "granted": lambda r: r["granted"] or "", "renewed": lambda r: r["renewed"] or "",
    "revoked": lambda r: f"{r['revoked']} {', '.join(r['causes'])}" if r["revoked"] else "", "held": _plain("held"),
    "": _plain("note"),
}  # fmt: skip


def why_now(found: Any) -> list[str]:
    """What ``themis why`` says of now, line by line."""
    lines = [f"{found.code}: {found.sentence}"]
    if found.position:
        rho = f", rho {found.rho:.2f}" if found.HasField("rho") and known(found.rho) else ""
        order = "apps without GPUs first, then those furthest below their fair share"
        place = f"number {found.position} of {found.of} apps that want GPUs ({order})"
        lines.append(f"It is {place if found.of > 1 else 'the only app that wants GPUs'}{rho}.")
        for a in found.ahead[:5]:
            lines.append(f"  ahead: app {a.app}, {a.name} of {a.user}" + (f", rho {a.rho:.2f}" if known(a.rho) else ""))
        lines += [f"  ahead: {found.position - 6} more"] if found.position > 6 else []
    if found.weight:
        lines.append(
            f"Fairness is between {found.between}: its weight is {found.weight:.3g}, {found.fair:.0%} of the cluster."
        )
    if found.HasField("start_median"):
        earliest = clock(found.start_earliest)
        latest = clock(found.start_latest) if found.HasField("start_latest") else "much later"
        # One second is all that a clock on the wall shows.
        between = f", between {earliest} and {latest}" if earliest != latest else ""
        lines.append(
            f"Its next GPUs are expected at {clock(found.start_median)}{between} "
            f"({found.simulations} simulations, nobody else coming)."
        )
    return lines


def last_words(found: Any) -> list[str]:
    """What ``themis show`` says of attempts: of each job whose last one left a message, that."""
    lines = []
    for job in found.jobs:
        last = job.attempts[-1] if job.attempts else None
        # What made an app fail is its reason already.
        if last is not None and last.message and last.message not in found.app.reason:
            lines.append(f"Job {job.id} {job.name}, attempt {last.number}, {last.ending}: {last.message}.")
    return lines


def span(seconds: float) -> str:
    """A duration in the unit that reads best: ``44 s``, ``4.5 min``, ``3.0 h``, ``12.0 d``; 0 or more."""
    for limit, unit, size in ((120.0, "s", 1.0), (7200.0, "min", 60.0), (172800.0, "h", 3600.0)):
        if seconds < limit:
            return f"{seconds / size:.{0 if size == 1.0 else 1}f} {unit}"
    return f"{seconds / 86400.0:.1f} d"


def expected_now(story: Mapping[str, Any]) -> list[str]:
    """When an active app is expected to start and end, counted from its arrival; of logs that say nothing, nothing.

    A point forecast that no interval supports is left out where it cannot be right: it lies in the past or more than
    ``FORECAST_S`` ahead, or the end comes before the start.
    """
    expected, out, since = story.get("expected") or {}, [], story["arrival"]
    starts, ends = expected.get("starts"), expected.get("ends")
    for name, verb in (("starts", "start"), ("ends", "end")):
        if expected.get(name) is None:
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


def planned_now(story: Mapping[str, Any]) -> list[str]:
    """What the latest plan says of an app's next start and its end, with intervals; of a policy without plans, the forecast."""
    last = next((step for step in reversed(story["steps"]) if step["ends"] is not None), None)
    if story["jct"] is not None:
        return []
    if last is None:
        return expected_now(story)

    def at(name: str) -> str:
        low, high = (last.get(f"{name}_{end}") for end in ("low", "high"))
        said = f"{last[name] - story['arrival']:.0f} s"
        within = "" if low is None else f" ({low - story['arrival']:.0f} to {high - story['arrival']:.0f} s)"
        return said if low == high else said + within

    told = last["time"] - story["arrival"]
    return [
        f"As planned {told:.0f} s after it was submitted: it runs next at {at('starts')}, and ends at {at('ends')}."
    ]


def delivered_now(story: Mapping[str, Any]) -> list[str]:
    """What an app was entitled to and received so far, and why they differ; nothing where it was entitled to nothing."""
    from themis.report.sentences import delivered

    line = delivered(story["entitled"], story["received"], story["missing"])
    return [line] if line else []
