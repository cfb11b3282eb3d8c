"""squeue's output fields for ``themis queue -o``: ``%i``, ``%.10j`` and so on, with squeue's titles."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from themis.cli.table_columns import clock, timer
from themis.errors import UnknownName

App = Mapping[str, Any]
Field = tuple[str, Callable[[App], str], int, bool]
"""Title, text of an app, width (0: as it is), aligned to the right."""

_FIELD = re.compile(r"%(\.?)(\d{0,4})([A-Za-z%])")
STATES = {"waiting": "PD", "running": "R", "stopping": "CG", "held": "PD"}
LONG = {"waiting": "PENDING", "running": "RUNNING", "stopping": "COMPLETING", "held": "PENDING"}


def _nodes(app: App) -> str:
    return ",".join(app.get("nodes", ()))


def _reason(app: App) -> str:
    return app["waits"] or app["reason"] or "none"


LETTERS: Mapping[str, tuple[str, Callable[[App], str]]] = {
    "A": ("JOBID", lambda a: str(a["id"])),
    "b": ("TRES_PER_NODE", lambda a: f"gres/gpu:{a['gpus'] or a['demand']}"),
    "D": ("NODES", lambda a: str(len(a.get("nodes", ())))),
    "i": ("JOBID", lambda a: str(a["id"])),
    "j": ("NAME", lambda a: str(a["name"])),
    "l": ("TIME_LIMIT", lambda a: timer(a["walltime_s"]) if a.get("walltime_s") else "UNLIMITED"),
    "L": (
        "TIME_LEFT",
        lambda a: timer(max(a["walltime_s"] - a["elapsed_s"], 0)) if a.get("walltime_s") else "UNLIMITED",
    ),
    "M": ("TIME", lambda a: timer(a.get("elapsed_s", 0.0))),
    "N": ("NODELIST", _nodes),
    "r": ("REASON", _reason),
    "R": ("NODELIST(REASON)", lambda a: _nodes(a) or f"({_reason(a)})"),
    "t": ("ST", lambda a: STATES.get(str(a["state"]), str(a["state"]))),
    "T": ("STATE", lambda a: LONG.get(str(a["state"]), str(a["state"]))),
    "u": ("USER", lambda a: str(a["user"])),
    "V": ("SUBMIT_TIME", lambda a: clock(a["submitted"]).replace(" ", "T")),
}


def read(text: str) -> list[Field | str]:
    """The fields of a format, and the text between them.

    Raises
    ------
    UnknownName : a letter is not one of ``LETTERS``.
    """
    out: list[Field | str] = []
    end = 0
    for found in _FIELD.finditer(text):
        out.append(text[end : found.start()])
        end = found.end()
        right, width, letter = found.groups()
        if letter == "%":
            out.append("%")
            continue
        if letter not in LETTERS:
            raise UnknownName("field", f"%{letter}", [f"%{known}" for known in LETTERS])
        title, cell = LETTERS[letter]
        out.append((title, cell, int(width or 0), bool(right)))
    return [*out, text[end:]]


def lines(fields: Sequence[Field | str], apps: Sequence[App]) -> list[str]:
    """A line of titles, and a line for each app; a field without a width is as wide as its longest text."""

    def column(field: Field) -> Iterator[str]:
        title, cell, width, right = field
        texts = [title, *(cell(app) for app in apps)]
        room = width or max(map(len, texts))
        for text in texts:
            yield text[:room].rjust(room) if right else text[:room].ljust(room)

    columns = [list(column(f)) if not isinstance(f, str) else [f] * (len(apps) + 1) for f in fields]
    return ["".join(parts).rstrip() for parts in zip(*columns)]
