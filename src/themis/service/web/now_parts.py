"""The parts of the page Now, from an overview: HTML where it is text, JSON where a script draws it."""

from __future__ import annotations

from typing import Any

from themis.report.look.palette import colour_numbers
from themis.service.api.overview import Day, MachineRow, Overview
from themis.service.web.render import Renderer

Parts = dict[str, Any]
TEXTS = ("tiles", "users", "running", "waiting", "notice")


def parts(seen: Overview, day: Day, render: Renderer) -> Parts:
    """All parts.

    ``machines`` : [name, type, state] each. ``cells`` : by machine, for each GPU the app on it, -1 for none, -2 where it is out of
    service, or a list of two apps. ``apps`` : app -> [name, user, number of colour].
    """
    colours = colour_numbers(sorted(seen.number, key=seen.number.__getitem__))
    texts = {name: render.text(f"now_{name}.html.j2", o=seen, colours=colours) for name in TEXTS}
    return {
        **texts,
        "machines": [[m.name, m.gpu_type, m.state] for m in seen.machines],
        "cells": {i: _cells(m) for i, m in enumerate(seen.machines)},
        "apps": {a: [name, user, colours.get(user, 0)] for a, (name, user) in seen.names.items()},
        "day": {
            "start": day.start,
            "width": day.width,
            "leased": day.leased,
            "decisions": day.decisions,
            "gpus": seen.gpus,
        },
        "record": seen.record,
    }


def _cells(machine: MachineRow) -> list[Any]:
    idle = -1 if machine.state == "up" else -2
    out: list[Any] = [idle if not apps else apps[0] if len(apps) == 1 else list(apps) for apps in machine.apps]
    free = [i for i, value in enumerate(out) if value == -1]
    for i in free[len(free) - machine.withheld :] if machine.withheld else []:
        out[i] = -2
    return out


def difference(before: Parts, after: Parts) -> Parts:
    """The parts that changed; only the changed machines among the cells."""
    out = {name: value for name, value in after.items() if name != "cells" and value != before[name]}
    if "machines" in out:
        return {**out, "cells": after["cells"]}
    cells = {i: row for i, row in after["cells"].items() if row != before["cells"].get(i)}
    if cells:
        out["cells"] = cells
    return {} if set(out) <= {"record"} else out
