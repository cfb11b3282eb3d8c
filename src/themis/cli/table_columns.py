"""Code shared by the verbs of the live service: connection, tables, JSON, YAML or CSV, and the sentences of ``why``."""

from __future__ import annotations

import math
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from time import localtime, strftime
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, cast

from themis.cli.options import (
    AppName,
    AppNames,
    Home,
    NodeNames,
    Output,
    Owner,
    User,
    Verbose,
    Watch,
)
from themis.cli.output import print_json, say
from themis.cli.terminal_table import left_out, lines_of, width_of_terminal, wrapped
from themis.errors import UnknownName, counted
from themis.report.sentences import against_own_share, sooner

if TYPE_CHECKING:
    from themis.client.client import Client
    from themis.client.light import Service

__all__ = ["AppName", "AppNames", "Home", "NodeNames", "Output", "Owner", "User", "Verbose", "Watch"]

Columns = Mapping[str, Callable[[Any], object]]
OUTPUTS = ("table", "json", "yaml", "csv")
FORMULAS = ("=", "+", "-", "@", "\t", "\r")
"""First characters of a cell that spreadsheets take for a formula."""
WATCH_S = 2.0
NO_NUMBER = "nan"


PATIENCE_S = 5.0
"""Seconds that an interactive command waits for an arbiter that does not answer."""


def connect(home: Path | None, *, patience_s: float = PATIENCE_S) -> Client:
    """Connect to the arbiter of a data directory; prints a sentence on stderr when it has to wait."""
    from themis.client.client import Client

    return Client(home, patience_s=patience_s, on_wait=say)


def service_of(home: Path | None) -> Service:
    """The same service over HTTP, which takes less time to load."""
    from themis.client.light import Service

    return Service(home, patience_s=PATIENCE_S, on_wait=say)


class Reply(SimpleNamespace):
    """A reply of ``Service.call`` as the client's messages are; a field that is absent is None."""

    def __getattr__(self, name: str) -> Any:
        return None

    @classmethod
    def of(cls, value: Any) -> Any:
        """Mappings within lists and mappings too."""
        if isinstance(value, dict):
            return cls(**{key: cls.of(part) for key, part in value.items()})
        return [cls.of(part) for part in value] if isinstance(value, list) else value


def check_output(output: str) -> None:
    """Raise UnknownName for an unknown output format."""
    if output not in OUTPUTS:
        raise UnknownName("output", output, OUTPUTS)


def again(watch: bool, output: str, title: str = "") -> Iterator[None]:
    """Yield once, or every two seconds with ``watch``; clears the screen of a terminal in between, and prints title and clock."""
    check_output(output)
    first, clears = True, watch and output == "table" and sys.stdout.isatty()
    while first or watch:
        if clears:
            print(
                "\x1b[H\x1b[2J\x1b[3J" + f"{title}  {time.strftime('%H:%M:%S')}  (every {WATCH_S:g} s; Ctrl-C ends)\n"
            )
        if not first and output == "yaml":
            print("---")
        yield
        sys.stdout.flush()
        if watch:
            time.sleep(WATCH_S)
        first = False


def show_list(
    get: Callable[[], Sequence[Any]],
    columns: Columns,
    output: str,
    watch: bool = False,
    *,
    empty: str = "",
    title: str = "",
    totals: Callable[[Sequence[Mapping[str, Any]]], str] | None = None,
) -> None:
    """Print rows, or messages, as a list, once or repeatedly.

    Parameters
    ----------
    empty : printed under a table without rows. ``title`` : of the screen with ``watch``.
    totals : a line above the table with ``watch``.
    """
    before: list[list[str]] | None = None
    for _ in again(watch, output, title):
        rows = [row if isinstance(row, Mapping) else _as_dict(row) for row in get()]
        if watch and output == "table" and totals is not None:
            print(totals(rows) + "\n")
        cells = _cells(rows, columns)
        new = () if before is None else [i for i, line in enumerate(cells) if line not in before]
        before = cells
        show_rows(rows, output, columns, changed=new)
        below = [f"Warning: {text}." for text in dict.fromkeys(row.get("warning", "") for row in rows) if text]
        if output == "table":
            print_lines(below or ([empty] if not rows else []))


def _as_dict(message: Any) -> dict[str, Any]:
    from themis.schema.wire import as_dict

    return as_dict(message)


def _cells(rows: Sequence[Mapping[str, Any]], columns: Columns) -> list[list[str]]:
    return [[_one_line(str(cell(row))) for cell in columns.values()] for row in rows]


def _one_line(text: str) -> str:
    """Text without what would break the lines of a table or control the terminal: a line feed is ``\\n``."""
    return text if text.isprintable() else "".join(c if c.isprintable() else ascii(c)[1:-1] for c in text)


def show_rows(rows: Sequence[Mapping[str, Any]], output: str, columns: Columns, *, changed: Sequence[int] = ()) -> None:
    """Print plain rows: as a table of these columns, or all fields as JSON, YAML or CSV.

    On a terminal the table fits its width, and a line below names what was left out; elsewhere all columns are whole, one row a
    line, as ``grep`` needs.
    ``changed`` : positions of rows that are marked.
    """
    check_output(output)
    if output == "csv":
        _print_csv(rows, columns)
    elif output != "table":
        dump([dict(row) for row in rows], output)
    else:
        titles, cells, width = list(columns), _cells(rows, columns), width_of_terminal()
        for line in lines_of(titles, cells, width, changed=changed):
            print(line)
        if missing := left_out(titles, cells, width):
            print_lines([f"No room for: {', '.join(missing)}. A wider terminal, a pipe and -o json have them."])


def _print_csv(rows: Sequence[Mapping[str, Any]], columns: Columns) -> None:
    """All single fields and parameters, under their own names; the table's columns for an empty list."""
    import csv

    plain = [
        {
            key: no_formula(value)
            for key, value in {**row, **_parameters(row)}.items()
            if not isinstance(value, dict | list)
        }
        for row in rows
    ]
    names = list(dict.fromkeys(name for row in plain for name in row)) or list(columns)
    writer = csv.DictWriter(sys.stdout, names, lineterminator="\n")
    writer.writeheader()
    writer.writerows(plain)


def no_formula(value: Any) -> Any:
    """A cell of a CSV file: text that a spreadsheet would run as a formula gets an apostrophe before it."""
    if isinstance(value, str) and value.startswith(FORMULAS):
        try:
            float(value)
        except ValueError:
            return f"'{value}"
    return value


def _parameters(row: Mapping[str, Any]) -> Mapping[str, Any]:
    """Parameters of a trial, without those that are named as one of its fields."""
    found = row.get("parameters")
    return {key: value for key, value in found.items() if key not in row} if isinstance(found, dict) else {}


def print_lines(lines: Sequence[str]) -> None:
    """Print sentences, a line each, which a terminal breaks between words; empty ones are left out, indented ones stay."""
    width = width_of_terminal()
    for line in lines:
        if line:
            print(line if width is None or line.startswith(" ") else "\n".join(wrapped(line, width)))


def dump(value: object, output: str) -> None:
    """Print plain data as JSON, YAML or CSV."""
    check_output(output)
    if output == "json":
        print_json(value)
        return
    if output == "csv":
        _print_csv(cast("Sequence[Mapping[str, Any]]", value if isinstance(value, list) else [value]), {})
        return
    import yaml

    print(yaml.safe_dump(value, sort_keys=False, allow_unicode=True), end="")


def clock(time: float) -> str:
    """Seconds since 1970 in local time."""
    return strftime("%Y-%m-%d %H:%M:%S", localtime(time))


def fair_share(rho: float | str) -> str:
    """``rho 1.34``: finish-time fairness as the policy has it now, for ``--verbose``."""
    return f"rho {float(rho):.2f}"  # JSON spells infinity


def _time(name: str) -> Callable[[Any], object]:
    return lambda row: clock(row[name]) if row.get(name) else ""


def _state(row: Any) -> object:
    return f"{row['state']} until {clock(row['until'])}" if row.get("until") else row["state"]


def _number(name: str, form: str = ".2f", *, unknown: str = "") -> Callable[[Any], object]:
    """``unknown`` : text of what is no number; a value that is not there is empty."""
    return lambda row: "" if row.get(name) is None else format(float(row[name]), form) if known(row[name]) else unknown


def known(value: Any) -> bool:
    """Whether a number exists; finish-time fairness has none while no machine that the app may use is in service."""
    return value is not None and not math.isnan(float(value))


def _plain(name: str) -> Callable[[Any], object]:
    return lambda row: row.get(name, "")


WHO: Columns = {"app": _plain("id"), "name": _plain("name"), "user": _plain("user"), "state": _plain("state")}
FAIRNESS: Columns = {"vs own share": lambda r: sooner(float(r["sooner_s"])) if known(r.get("sooner_s")) else ""}
"""How much sooner an app ends, or ended, than on its own share of the cluster."""


def _time_used(row: Any) -> str:
    """``12:03``, as squeue writes it."""
    known_ = "elapsed_s" in row and (row["elapsed_s"] or row["state"] == "running")
    return timer(row["elapsed_s"]) if known_ else ""


def timer(seconds: float) -> str:
    """``0:07``, ``12:03``, ``2:00:00`` or ``1-00:00:00``, as Slurm writes times."""
    minutes, rest = divmod(int(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    days, hours = divmod(hours, 24)
    if days:
        return f"{days}-{hours:02}:{minutes:02}:{rest:02}"
    return f"{hours}:{minutes:02}:{rest:02}" if hours else f"{minutes}:{rest:02}"


def _progress(row: Any) -> str:
    """The share of the work done where programs report steps; otherwise an estimate by the walltime."""
    return f"{float(row['progress']):.0%}" if row.get("steps_known", True) else _limit(row)


def _steps(row: Any) -> str:
    """``600/2000`` as the program reports them; ``600`` where it says no end, the time limit where it reports nothing."""
    if row.get("steps") is None or not (float(row["steps"]) or row.get("total")):
        return _limit(row)
    end = f"/{float(row['total']):.0f}" if row.get("total") is not None else ""
    return f"{float(row['steps']):.0f}{end}"


def _limit(row: Any) -> str:
    """``of 2:00:00``, to be read after the time used."""
    return f"of {timer(row['walltime_s'])}" if row.get("walltime_s") else ""


def _metrics(row: Any) -> str:
    """``loss 0.3, accuracy nan``: as the program reported them last; ``PRUNED`` where a study gave the trial up."""
    values = (row.get("metrics") or {}).items()
    return ", ".join(name if name == "PRUNED" else f"{name} {float(value):.4g}" for name, value in values)


APPS: Columns = {
    **WHO,
    "GPUs": lambda r: f"{r['gpus']}/{r['demand']}",
    "jobs": lambda r: f"{r['jobs_done']}/{r['jobs']}",
    "time": _time_used,
    "progress": _progress,
    **FAIRNESS,
    "pending reason": _plain("waits"),
}
ALL_APPS: Columns = {
    **APPS,
    "rho": _number("rho"),
    "GPU hours": _number("gpu_hours"),
    "submitted": _time("submitted"),
    "reason": _plain("reason"),
}
JOBS: Columns = {
    "job": _plain("id"),
    "name": _plain("name"),
    "state": _plain("state"),
    "outcome": _plain("outcome"),
    "attempt": _plain("attempt"),
    "GPUs": lambda r: " ".join(map(str, r["gpus"])),
    "nodes": lambda r: " ".join(r["nodes"]),
    "time": _time_used,
    "steps": _steps,
    "metrics": _metrics,
}
ALL_JOBS: Columns = {
    **JOBS,
    "GPU hours": _number("gpu_hours"),
    "lease until": _time("until"),
    "attempts ended": lambda r: ", ".join(map(_ending, r["attempts"])),
}
TRIALS: Columns = {
    "job": _plain("job"),
    "state": lambda r: r["outcome"] or r["state"],
    "parameters": lambda r: " ".join(f"{k}={_shown(v)}" for k, v in r["parameters"].items()),
    "attempt": lambda r: r.get("attempt", ""),
    "GPUs": lambda r: " ".join(map(str, r.get("gpus", ()))),
    "steps": _steps,
    "last loss": _number("last_loss", ".4g", unknown=NO_NUMBER),
    "best loss": _number("best_loss", ".4g"),
    "at step": lambda r: f"{r['best_steps']:.0f}" if "best_loss" in r and r["best_steps"] else "",
    "metrics": lambda r: _metrics({"metrics": {k: v for k, v in r.get("metrics", {}).items() if k != "loss"}}),
    "why stopped": _plain("why_stopped"),
}
ALL_TRIALS: Columns = {
    **TRIALS,
    "stopped": _time("stopped"),
    "time": _time_used,
    "GPU hours": _number("gpu_hours"),
    "lease until": _time("until"),
    "attempts ended": lambda r: ", ".join(map(_ending, r.get("attempts", ()))),
}


def _shown(value: object) -> str:
    return f"{value:.4g}" if isinstance(value, float) else str(value)


def trial_rows(trials: Sequence[Mapping[str, Any]], jobs: Sequence[Mapping[str, Any]] = ()) -> list[dict[str, Any]]:
    """Trials with their parameters as a mapping, and what ``jobs`` say of the same jobs."""
    import json

    more = {job["id"]: job for job in jobs}
    return [
        {**more.get(trial["job"], {}), **trial, "parameters": json.loads(trial["parameters"] or "{}")}
        for trial in trials
    ]


def filled(columns: Columns, rows: Sequence[Mapping[str, Any]]) -> Columns:
    """The columns without those that are empty in all rows."""
    return {title: cell for title, cell in columns.items() if any(str(cell(row)) for row in rows)}


def ranked(trials: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """Trials that reported a loss, the lowest first."""
    return sorted((trial for trial in trials if "best_loss" in trial), key=lambda trial: float(trial["best_loss"]))


def totals_of(apps: Sequence[Mapping[str, Any]]) -> str:
    """``5 apps: 2 running on 8 GPUs, 3 waiting``."""
    states: dict[str, int] = {}
    for app in apps:
        states[app["state"]] = states.get(app["state"], 0) + 1
    gpus = sum(app["gpus"] for app in apps)
    parts = [f"{n} {name}" + (f" on {counted(gpus, 'GPU')}" if name == "running" else "") for name, n in states.items()]
    return f"{counted(len(apps), 'app')}" + (f": {', '.join(sorted(parts))}" if parts else "")


def _ending(attempt: Any) -> str:
    return f"{attempt['ending']} ({attempt['code']})" if attempt.get("code") else str(attempt["ending"])


def withheld(row: Mapping[str, Any]) -> str:
    """GPUs of a machine that are withheld from jobs, and why: processes that occupy them, or what is wrong with them.

    Of a machine of which the service accepts nothing: why.
    """
    if row["rejected"]:
        return f"all: {row['rejected']}"
    if not row["withheld"]:
        return ""
    pids = row["withheld_pids"]
    if not pids:
        return f"{row['withheld']}: {row['withheld_reason']}"
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
    "vs own share": lambda r: sooner(float(r["sooner_worst_s"])) if known(r.get("sooner_worst_s")) else "",
    "promise kept": lambda r: f"{r['promise_kept']} of {r['promise_known']}" if r.get("promise_known") else "",
}
ALL_SHARES: Columns = {
    **SHARES,
    "shared between": _plain("between"),
    "worst rho reference": _number("rho_reference_worst"),
    "median rho reference": _number("rho_reference_median"),
    "worst rho attainable": _number("rho_attainable_worst"),
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
AUCTION = frozenset({"round", "offered", "of fair share", "bid", "won", "kept", "leftover"})
"""Columns of ``STEPS`` that only some policies fill."""


def steps_columns(steps: Sequence[Mapping[str, Any]]) -> Columns:
    """The columns of ``STEPS``, without those of ``AUCTION`` that no step fills."""
    return {
        name: cell
        for name, cell in STEPS.items()
        if name not in AUCTION or any(cell(step) not in ("", None) for step in steps)
    }


def assumed_speeds(assumed: Sequence[str]) -> str:
    """Sentence on speeds that no job has measured; empty without any."""
    return f"Speeds assumed until they are measured: on {', '.join(assumed)}." if assumed else ""


FAR_S = 365 * 86400.0
"""Seconds beyond which an instant is not printed as a date."""
LENT = 0.05
"""GPU hours below which no loan is shown."""
STATES = {"ended": "ended", "held": "held", "running": "running", "partly_running": "running", "nothing_to_run": "idle"}
"""The first word of ``themis why``, by reason code; every other code means that the app waits."""


def why_now(found: Any, *, verbose: bool = False) -> list[str]:
    """The present situation of an app, as sentences: why it waits, its position, its fair share, when it gets GPUs.

    ``verbose`` : the reason's code and the app's finish-time fairness too.
    """
    lines = [f"{STATES.get(found.code, 'waiting')}: {found.sentence}"]
    lines += [f"Warning: {found.warning}."] if found.warning else []
    lines += [assumed_speeds(found.assumed)] if found.assumed else []
    if verbose:
        lines.append(f"Reason code: {found.code}.")
    if found.position:
        lines += _position(found, verbose=verbose)
    if found.weight:
        lines.append(
            f"Fair share: {found.fair:.0%} of the cluster (weight {found.weight:.3g}; shared between {found.between})."
        )
    return lines + _start(found) + _end(found, verbose=verbose)


def refined_now(first: Any, later: Any, *, verbose: bool = False) -> list[str]:
    """Lines that a second answer adds: the start by simulations; all of it where the app's situation has changed."""
    if later.code != first.code:
        return why_now(later, verbose=verbose)
    return ["Refined by simulations:", *start] if later.simulations and (start := _start(later)) else []


def _start(found: Any) -> list[str]:
    """Sentence on its start: by the forecast, or by simulations where they were made."""
    if found.start_median is None:
        return []
    low, middle, high = found.start_earliest, found.start_median, found.start_latest
    if middle > time.time() + FAR_S:
        return ["Next GPUs expected in more than a year: what runs now has no end in sight."]
    within = f", between {_clocks(low, middle)} and {_clocks(high, middle)}" if low and high and high - low >= 1 else ""
    how = f" ({found.simulations} simulations without new arrivals)" if found.simulations else ""
    return [f"Next GPUs expected at {clock(middle)}{within or (', or much later' if high is None else '')}{how}."]


def _end(found: Any, *, verbose: bool) -> list[str]:
    """Its end, with the 80 % interval; how much sooner than on its own share; GPU time that it lent or borrowed."""
    if found.code == "ended":
        return []
    if found.expected_end is None:
        return [
            "When it ends is not known: its work was not given, and it reported none (docs/jobs.md#how-much-work-a-job-has)."
        ]
    low, high = _clocks(found.end_low, found.expected_end), _clocks(found.end_high, found.expected_end)
    lines = [f"Expected to end at {clock(found.expected_end)} (80 %: {low} to {high})"]
    if found.sooner_s is not None:
        lines[0] += f", {against_own_share(float(found.sooner_s))}"
    lines[0] += "."
    hours = abs(found.lent_gpu_hours or 0.0)
    if hours >= LENT:
        lent = found.lent_gpu_hours > 0
        text = f"It {'lent' if lent else 'borrowed'} {hours:.1f} GPU hours {'to' if lent else 'from'} other apps"
        lines.append(
            text + (f"; it gets them back by {clock(found.lent_back)}." if found.lent_back is not None else ".")
        )
    if verbose and found.rho_reference is not None:
        own = f"On its own share of the cluster it would end at {clock(found.reference_end)}: "
        lines.append(
            f"{own}rho_reference {float(found.rho_reference):.2f}, attainable {float(found.rho_attainable):.2f}."
        )
    return lines


def _clocks(time: float, near: float) -> str:
    """A time of the same day as another one without its date."""
    text, other = clock(time), clock(near)
    return text[11:] if text[:10] == other[:10] else text


def _position(found: Any, *, verbose: bool) -> list[str]:
    def fairness(rho: float) -> str:
        return f", {fair_share(rho)}" if verbose and known(rho) else ""

    own = fairness(found.rho) if found.rho is not None else ""
    if found.of == 1:
        return [f"It is the only app that wants GPUs{own}."]
    order = "apps without GPUs first, then those furthest below their fair share"
    lines = [f"Position {found.position} of {found.of} apps that want GPUs ({order}){own}."]
    lines += [f"  ahead: app {a.app}, {a.name} of {a.user}{fairness(a.rho)}" for a in found.ahead[:5]]
    return lines + ([f"  ahead: {found.position - 6} more"] if found.position > 6 else [])


def last_words(found: Mapping[str, Any]) -> list[str]:
    """Endings of the jobs' last attempts, for ``themis show``; for failed jobs, also the last lines of output."""
    lines = []
    for job in found["jobs"]:
        last = job["attempts"][-1] if job["attempts"] else None
        # The reason of a failed app repeats the message.
        if last is not None and last["message"] and last["message"] not in found["app"]["reason"]:
            lines.append(
                f"Job {job['id']} {job['name']}, attempt {last['number']}, {last['ending']}: {last['message'].rstrip('.')}."
            )
        if text := job.get("last_lines"):
            code = f", exit code {last['code']}" if last is not None and "code" in last else ""
            lines.append(f"Job {job['id']} {job['name']} failed{code}; the last lines of its output:")
            lines += [f"  {_one_line(line.expandtabs())}" for line in text]
    return lines


def planned_now(story: Mapping[str, Any]) -> list[str]:
    """The app's next start and its end by the latest plan, with intervals; empty where the policy does not plan."""
    last = next((step for step in reversed(story["steps"]) if step["ends"] is not None), None)
    if story["jct"] is not None or last is None:
        return []

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
