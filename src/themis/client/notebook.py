"""HTML of replies in a notebook: small tables, every value escaped."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from html import escape
from typing import Any, TypeVar

from themis.schema import messages as schema
from themis.schema.messages import Message, Request
from themis.schema.wire import models_in

T = TypeVar("T")
MOST_ROWS = 200
"""Rows of a table; a line says how many are left out."""


class Listing(list[T]):
    """A list of messages that a notebook shows as a table; ``of`` : their name, for an empty list."""

    def __init__(self, rows: Iterable[T] = (), of: str = "entries") -> None:
        super().__init__(rows)
        self.of = of

    def _repr_html_(self) -> str:
        return table(self) if self else f"<p>No {escape(self.of)}.</p>"


def table(rows: Sequence[Any]) -> str:
    """Messages of one kind as a table."""
    columns = COLUMNS.get(type(rows[0]).__name__) or _fields(rows)
    if isinstance(rows[0], schema.App) and rows[0].ended is not None:
        columns = ENDED
    head = "".join(f"<th>{escape(title)}</th>" for title in columns)
    lines = (
        "<tr>" + "".join(f"<td>{escape(str(cell(row)))}</td>" for cell in columns.values()) + "</tr>"
        for row in rows[:MOST_ROWS]
    )
    more = f"<p>{len(rows) - MOST_ROWS} more.</p>" if len(rows) > MOST_ROWS else ""
    return f"<table><thead><tr>{head}</tr></thead><tbody>{''.join(lines)}</tbody></table>{more}"


Columns = Mapping[str, Callable[[Any], object]]
_APP: Columns = {"app": lambda a: a.id, "name": lambda a: a.name, "user": lambda a: a.user, "state": lambda a: a.state}
ENDED: Columns = {
    **_APP,
    "jobs": lambda a: a.jobs,
    "GPU hours": lambda a: f"{a.gpu_hours:.2f}",
    "ended": lambda a: _moment(a.ended),
    "reason": lambda a: a.reason,
}
"""Columns of apps that have ended."""
COLUMNS: Mapping[str, Columns] = {
    "App": {
        **_APP,
        "GPUs": lambda a: f"{a.gpus}/{a.demand}",
        "jobs done": lambda a: f"{a.jobs_done}/{a.jobs}",
        "GPU hours": lambda a: f"{a.gpu_hours:.2f}",
        "pending reason": lambda a: a.reason,
    },
    "PastApp": {
        **_APP,
        "jobs": lambda a: a.jobs,
        "GPU hours": lambda a: f"{a.gpu_hours:.2f}",
        "ended": lambda a: _moment(a.ended),
        "reason": lambda a: a.reason,
    },
    "JobInfo": {
        "job": lambda j: j.id,
        "name": lambda j: j.name,
        "state": lambda j: j.state,
        "outcome": lambda j: j.outcome,
        "attempt": lambda j: j.attempt or "",
        "GPUs": lambda j: ", ".join(map(str, j.gpus)),
        "nodes": lambda j: ", ".join(j.nodes),
        "GPU hours": lambda j: f"{j.gpu_hours:.2f}",
    },
    "Trial": {
        "job": lambda t: t.job,
        "name": lambda t: t.name,
        "state": lambda t: t.state,
        "parameters": lambda t: t.parameters,
        "best loss": lambda t: f"{t.best_loss:.4g}" if t.best_loss is not None else "",
        "steps": lambda t: "" if t.steps is None else f"{t.steps:g}",
        "ended early": lambda t: t.why_stopped,
        "GPU hours": lambda t: f"{t.gpu_hours:.2f}",
    },
    "Node": {
        "node": lambda n: n.name,
        "state": lambda n: n.state,
        "type": lambda n: n.gpu_type,
        "leased": lambda n: f"{n.leased} of {n.gpus}",
        "apps": lambda n: ", ".join(n.apps),
        "withheld": lambda n: n.rejected or (f"{n.withheld}: {n.withheld_reason}" if n.withheld else ""),
    },
    "UserShare": {
        "user": lambda u: u.user,
        "apps": lambda u: u.apps,
        "GPUs": lambda u: u.gpus,
        "share": lambda u: f"{u.share:.0%}",
        "fair share": lambda u: f"{u.fair:.0%}",
        "GPU hours": lambda u: f"{u.gpu_hours:.2f}",
        "fair GPU hours": lambda u: f"{u.private_gpu_hours:.2f}",
    },
    "User": {
        "user": lambda u: u.user,
        "role": lambda u: "administrator" if u.admin else "user",
        "added": lambda u: _moment(u.added),
    },
}
"""Name of a message -> its columns: title and cell; a message that is not here shows the fields that are set."""


def _moment(seconds: float) -> str:
    return time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(seconds))


def _fields(rows: Sequence[Any]) -> Columns:
    """Single-valued fields that are set in any row; always the first field."""
    first, *others = _plain(type(rows[0]))
    used = {name for row in rows for name in others if getattr(row, name)}
    return {name.replace("_", " "): _cell(name) for name in (first, *others) if name is first or name in used}


def _plain(message: type[Message]) -> list[str]:
    """Fields that hold no messages."""
    return [name for name, field in message.model_fields.items() if not models_in(field.annotation)]


def _cell(name: str) -> Callable[[Any], object]:
    def cell(row: Any) -> object:
        value = getattr(row, name)
        if isinstance(value, float):
            return f"{value:.2f}"
        return value if isinstance(value, int | str) else ", ".join(map(str, value))

    return cell


def _shown(reply: schema.ShowReply) -> str:
    return table([reply.app]) + (table(list(reply.jobs)) if reply.jobs else "")


def _submitted(reply: schema.SubmitReply) -> str:
    return f"<p>App {reply.app}, {escape(reply.name)}.</p>"


def _why(reply: schema.WhyReply) -> str:
    return f"<p>{escape(reply.sentence)}</p>"


OWN: Mapping[str, Callable[[Any], str]] = {"ShowReply": _shown, "SubmitReply": _submitted, "WhyReply": _why}
"""Messages that are no table of one row."""


def _add_to_messages() -> None:
    """IPython looks for the method on the class; messages know nothing of notebooks."""
    for message in (*Message.__subclasses__(), *Request.__subclasses__()):
        if message.__name__ in OWN or _plain(message):
            message._repr_html_ = OWN.get(message.__name__, lambda one: table([one]))  # type: ignore[attr-defined]


_add_to_messages()
