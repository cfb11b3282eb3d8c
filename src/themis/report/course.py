"""Figure of one run, for a page: a row an app, by name, with when it waited, the GPUs that it held, and its own share's end."""

from __future__ import annotations

import numpy as np

from themis.model.units import Float
from themis.report.look.palette import APP_COLOURS
from themis.report.result import RunMetrics
from themis.report.rows import AppRow
from themis.report.style import PAGE, SOFT, WIDE, Drawing, Reading, canvas, mark, of_width, shortened, ticks, tidy
from themis.report.timeline import since, time_unit

MOST_APPS = 40
"""Rows; of more apps, those that ended latest against their own share."""
MOST_USERS = 8
"""Users with a colour in the legend."""
BINS = 400
"""Most pieces of an app's row."""
LEVELS = 16
"""Thicknesses of a row."""


def course(run: RunMetrics, width: float = WIDE) -> Drawing:
    """The apps of a run over time: thin while an app waits, as thick as the GPUs that it holds, a tick at its own share's end."""
    apps = _chosen(run)
    zero, end = run.gpus_in_use.start, run.gpus_in_use.end
    unit, name = time_unit(end - zero)
    figure, (axis,) = canvas(PAGE, width, 0.75 + 0.27 * max(len(apps), 2))
    edges = np.linspace(zero, end, BINS + 1)
    held = {app.app: _held(run, app.app, edges) for app in apps}
    most = max((float(gpus.max(initial=0.0)) for gpus in held.values()), default=0.0) or 1.0
    users = dict.fromkeys(app.user for app in run.apps)
    paint = {user: APP_COLOURS[i % len(APP_COLOURS)] for i, user in enumerate(users)}
    for y, app in enumerate(apps):
        left = app.finish if app.finish == app.finish else end
        there = (np.array([app.arrival, left]) - zero) / unit
        axis.plot(there, [y, y], color=SOFT, lw=1.2, zorder=1)
        first, last, half = _thick(held[app.app] / most)
        at = (edges - zero) / unit
        mark(axis.boxes(at[first], at[last], y - half, y + half, color=paint[app.user]), f"a{app.app}", PAGE)
        if app.sooner_s == app.sooner_s:
            own = (app.finish + app.sooner_s - zero) / unit
            axis.plot([own, own], [y - 0.45, y + 0.45], color=PAGE.ink, lw=1.6, zorder=4)
    axis.set_yticks(range(len(apps)), [shortened(app.name, 26 if width == WIDE else 15) for app in apps])
    axis.set_ylim(len(apps) - 0.4, -0.6)
    axis.set_xlim(0, max((end - zero) / unit, 1e-9))
    axis.set_xlabel(since(name))
    ticks(axis, "x", 10 if width == WIDE else 5)
    tidy(axis, PAGE, grid="x")
    key: list[tuple[str, str, str]] = [(user, colour, "-") for user, colour in paint.items()]
    if len(key) > MOST_USERS:
        key = [*key[:MOST_USERS], (f"{len(key) - MOST_USERS} more users, colours recur", SOFT, "-")]
    return Drawing(
        name=of_width("course", width),
        title="Apps over time: in the system, GPUs held, end on the own share",
        figure=figure,
        key=tuple(key),
        reads=(Reading(seconds=unit),),
    )


def left_out(run: RunMetrics) -> int:
    """Number of apps without a row."""
    return max(len(run.apps) - MOST_APPS, 0)


def _chosen(run: RunMetrics) -> list[AppRow]:
    late = sorted(run.apps, key=lambda app: app.sooner_s if app.sooner_s == app.sooner_s else np.inf)
    return sorted(late[:MOST_APPS], key=lambda app: (app.arrival, app.app))


def _held(run: RunMetrics, app: int, edges: Float) -> Float:
    """[B], mean GPUs that an app held in each piece of time."""
    own, width = run.gantt.app == app, np.diff(edges)
    out = np.zeros(len(width))
    for start, end in zip(run.gantt.start[own].tolist(), run.gantt.end[own].tolist()):
        out += np.clip(np.minimum(edges[1:], end) - np.maximum(edges[:-1], start), 0.0, None)
    return np.divide(out, width, out=out, where=width > 0)


def _thick(share: Float) -> tuple[list[int], list[int], Float]:
    """(first, last, half height) of bars: neighbouring pieces that are about as thick are one."""
    level = np.ceil(share * LEVELS - 1e-9)
    first = np.flatnonzero(np.diff(level, prepend=-1.0))
    last = np.append(first[1:], len(level))
    some = level[first] > 0
    return first[some].tolist(), last[some].tolist(), 0.08 + 0.34 * level[first][some] / LEVELS
