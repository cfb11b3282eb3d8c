"""``themis simulate`` of a present state: what-if forward, from a data directory, a dump, a log or the running service."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from themis.cli.output import err, escape, out, print_json, print_whole
from themis.errors import InputError

if TYPE_CHECKING:
    from rich.table import Table

    from themis.sim.forward.present_state import Present
    from themis.sim.forward.question import Question

SIMULATIONS = 20
ACROSS = 2
"""Maximum number of cases in one table of 80 columns."""
LEARN_S = 60.0
NAME = 15
"""Characters of an app's name in the table; 8 of a user's."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    """Options of a what-if question, as typed on the command line."""

    policies: Sequence[str]
    add: Sequence[str]
    remove: Sequence[str]
    without: Sequence[str]
    horizon: str
    seeds: str
    arrivals: bool
    at: str

    def given(self) -> list[str]:
        """Options that only a present state takes, of those that were given."""
        values = {
            "--add-gpus": self.add,
            "--remove": self.remove,
            "--without": self.without,
            "--horizon": self.horizon,
            "--no-arrivals": not self.arrivals,
            "--at": self.at,
        }
        return [name for name, value in values.items() if value]

    def question(self) -> Question:
        """The question, built from the command line's options.

        Raises
        ------
        InputError : a value that cannot be read, with its option.
        """
        from themis.sim.forward.question import CURRENT, HORIZON_S, Question

        return Question(
            policies=tuple(self.policies) or (CURRENT,),
            add=_listed(self.add),
            remove=_listed(self.remove),
            without=_listed(self.without),
            horizon_s=_seconds("--horizon", self.horizon) if self.horizon else HORIZON_S,
            seeds=_seeds(self.seeds),
            arrivals=self.arrivals,
        )


def is_state(workload: str) -> bool:
    """True for a data directory, a state dump or an event log, whose state a simulation can continue from."""
    path = Path(workload)
    if path.is_dir():
        return (path / "journal.db").exists()
    if not path.is_file():
        return False
    from themis.sim.dump import is_dump

    return is_dump(path) or _is_log(path)


def what_if(workload: str, options: Options, *, profiles: str, jobs: int, as_json: bool, quiet: bool) -> None:
    """Simulate forward from a state in files, and print when its apps end."""
    from themis.sim.forward.answer import answer

    asked = options.question()
    at = _seconds("--at", options.at) if options.at else None
    present = _present(Path(workload), at, profiles)
    found = answer(present, asked, learn_s=LEARN_S, processes=jobs or os.cpu_count() or 1).to_dict()
    show(found, as_json=as_json, quiet=quiet)


def what_if_live(options: Options, home: Path | None, *, as_json: bool, quiet: bool) -> None:
    """The same of the running service."""
    from themis.cli.table_columns import connect
    from themis.schema.wire import as_dict

    if options.at:
        raise InputError("--at is for a data directory or a log; a running service is asked about now. Drop --live.")
    asked = options.question()
    with connect(home) as client:
        reply = client.what_if(
            list(asked.policies),
            add_gpus=list(asked.add),
            remove=list(asked.remove),
            without=list(asked.without),
            horizon_s=asked.horizon_s,
            simulations=len(asked.seeds),
            arrivals=asked.arrivals,
        )
    show(as_dict(reply), as_json=as_json, quiet=quiet)


def show(found: Mapping[str, Any], *, as_json: bool, quiet: bool) -> None:
    """Print an answer."""
    if as_json:
        print_json(found)
        return
    if quiet:
        return
    for table in tables(found):
        print_whole(table)
    for case in found["cases"]:
        out.print(escape(case["sentence"]), soft_wrap=True, highlight=False)
    err.print(f"[dim]Simulated from the present state: {escape(found['basis'])}[/dim]", soft_wrap=True, highlight=False)


def tables(found: Mapping[str, Any]) -> Iterator[Table]:
    """Apps with today's forecast and those under each case, ``ACROSS`` cases a table."""
    from rich import box
    from rich.table import Table

    columns = found["columns"]
    cases = range(1, len(columns))
    happened = any(app.get("happened_s") is not None for app in found["apps"])
    across = ACROSS - happened
    for first in cases[::across] or [1]:
        shown = cases[first - 1 : first - 1 + across]
        table = Table(box=box.SIMPLE_HEAD, show_edge=False, pad_edge=False, collapse_padding=True)
        table.add_column("app", max_width=NAME, overflow="ellipsis", no_wrap=True)
        table.add_column("user", max_width=8, overflow="ellipsis", no_wrap=True)
        table.add_column(_cut(columns[0]), no_wrap=True)
        for c in shown:
            table.add_column(_cut(columns[c]), no_wrap=True, justify="right")
        if happened:
            table.add_column("happened", no_wrap=True, justify="right")
        for app in found["apps"]:
            times = app["forecasts"]
            cells = [_cut(app["name"]), app["user"][:8], _today(times[0], app["state"])]
            cells += [_case(times[c], app["state"]) for c in shown]
            cells += [_short(app["happened_s"])] if happened else []
            table.add_row(*map(escape, cells))
        yield table


def _today(times: Mapping[str, Any], state: str) -> str:
    """Format a median and range: ``4.4 h (3.6 - 6.4 h)``."""
    if state in ("held", "unknown"):
        return state
    low, high = _end(times, "low_s"), _end(times, "high_s")
    middle = _end(times, "median_s")
    if low.partition(" ")[2] == high.partition(" ")[2]:
        low = low.partition(" ")[0]
    return f"{middle} ({low} - {high})"


def _case(times: Mapping[str, Any], state: str) -> str:
    """``2.2 h -3.9 h``."""
    from themis.sim.forward.answer import signed

    if state in ("held", "unknown"):
        return ""
    difference = times.get("difference_s")
    return f"{_end(times, 'median_s')} {signed(difference) if difference is not None else ''}".strip()


def _end(times: Mapping[str, Any], name: str) -> str:
    value = times.get(name)
    if value is not None:
        return _short(value)
    return "later" if times["later"] or times.get("median_s") is not None else "-"


def _short(value: float | None) -> str:
    from themis.sim.forward.answer import short

    return "" if value is None else short(value)


def _cut(text: str) -> str:
    return text if len(text) <= NAME else text[: NAME - 1] + "…"


def _present(path: Path, at: float | None, profiles: str) -> Present:
    from themis.data_dir import default_home
    from themis.sim.dump import is_dump
    from themis.sim.forward.present_state import of_dump, of_log
    from themis.traces.profiles.library import load_book

    book = load_book(profiles, default_home() / "profiles") if profiles else None
    if path.is_dir():
        return _of_home(path, at)
    if not is_dump(path):
        return of_log(path, at, book)
    if at is not None:
        raise InputError(f"{path} is a state of one instant; --at is for a data directory or a log.")
    return of_dump(path)


def _of_home(home: Path, at: float | None) -> Present:
    from themis.service.engine.kept_copies import journal_of
    from themis.service.engine.present import of_journal

    with journal_of(home) as journal:
        now = time.time() - float(journal.meta("epoch") or 0.0) if _runs(home) else None
        return of_journal(journal, at=at, now=now)


def _runs(home: Path) -> bool:
    """Whether the data directory's arbiter runs."""
    from themis.client.home import read_endpoint

    try:
        os.kill(read_endpoint(home).pid, 0)
    except (InputError, OSError):
        return False
    return True


def _is_log(path: Path) -> bool:
    import gzip
    import zlib

    try:
        with gzip.open(path) if path.suffix == ".gz" else open(path, "rb") as file:
            first = file.read(200)
    except (OSError, EOFError, zlib.error):
        return False
    return first.startswith(b"{") and b'"Header"' in first


def _listed(texts: Sequence[str]) -> tuple[str, ...]:
    return tuple(part.strip() for text in texts for part in text.split(",") if part.strip())


def _seconds(option: str, text: str) -> float:
    from themis.sizes import Unreadable, duration

    try:
        return duration(text, zero=option == "--at")
    except Unreadable as error:
        raise InputError(f"{option} is {text!r}, expected {error}.") from None


def _seeds(text: str) -> Sequence[int]:
    """A number says how many; a range or a list which."""
    from themis.sim.forward.question import MOST_SEEDS
    from themis.sim.plan import parse_seeds

    if not text:
        return range(SIMULATIONS)
    if text.strip().isdecimal() and len(text) < 10:
        if not 1 <= int(text) <= MOST_SEEDS:
            raise InputError(f"seeds are {text}, expected 1 to {MOST_SEEDS} simulations, or seeds as in 0-4.")
        return range(int(text))
    return parse_seeds(text)
