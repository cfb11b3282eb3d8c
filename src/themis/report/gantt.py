"""Gantt chart of GPUs: one row per GPU, one colour per app. Very many leases become an image of bounded size."""

from __future__ import annotations

import re
from typing import Any

import numpy as np

from themis.errors import counted
from themis.model.units import Float, Int
from themis.report.look.palette import APP_COLOURS
from themis.report.result import RunMetrics
from themis.report.sentences import against_own_share
from themis.report.series import Gantt
from themis.report.sketch import Axes, escape
from themis.report.style import SOFT, WIDE, Drawing, Reading, Style, canvas, inline_svg, mark, ticks, tidy
from themis.report.timeline import DAY, HOUR, since, time_unit

MOST_RECTANGLES = 2500
"""A Gantt with more is drawn as an image."""
PIXELS = (1600, 640)
"""Largest image of a Gantt: time, GPUs."""
ALL_PIXELS = 3_000_000
"""Most pixels of all Gantts of a page: with many policies each gets fewer."""


MOST_APPS = 8
"""Apps in the legend, those with the most GPU time."""


def gantt(label: str, run: RunMetrics, style: Style, *, of: int = 1) -> Drawing:
    """GPUs over time, coloured by app; one of ``of`` that share a page."""
    figure, (axis,) = canvas(style, WIDE, min(1.1 + 0.1 * run.gpus, 5.2))
    start = run.gpus_in_use.start
    unit, name = time_unit(run.gpus_in_use.end - start)
    blocks = _blocks(run.gantt)
    if len(blocks[0]) <= MOST_RECTANGLES:
        _rectangles(axis, blocks, start, unit, style)
    else:
        image, extent = _raster(run, start, _pixels(of))
        # Without resampling the image enters the file cell by cell.
        at = (0, extent / unit, run.gpus, 0)
        mark(axis.imshow(image, aspect="auto", interpolation="none", extent=at, zorder=2), "image", style)
    axis.set_xlim(0, max((run.gpus_in_use.end - start) / unit, 1e-9))
    axis.set_ylim(run.gpus, 0)
    axis.set_xlabel(since(name))
    axis.set_ylabel("GPU (number)")
    ticks(axis, "y", 8, integer=True)
    tidy(axis, style, grid="")
    title = f"GPUs by app under {label}, seed {run.seed}: a row a GPU, a colour an app (colours recur)"
    return Drawing(name=f"gantt-{label}", title=title, figure=figure, key=_key(run), reads=(Reading(seconds=unit),))


def _key(run: RunMetrics) -> tuple[tuple[str, str, str], ...]:
    """The legend: of each colour the app with the most GPU time, and how many apps it leaves out."""
    most: dict[str, str] = {}
    for app in sorted(run.apps, key=lambda app: -app.gpu_seconds):
        most.setdefault(APP_COLOURS[app.app % len(APP_COLOURS)], app.name)
    key = [(name, colour, "-") for colour, name in most.items()][:MOST_APPS]
    more = len(run.apps) - len(key)
    return (*key, *([(counted(more, "more app"), SOFT, "-")] if more else []))


def inline_gantt(drawing: Drawing, run: RunMetrics) -> str:
    """The Gantt for a page, with the app of each group of rectangles named for the pointer and for screen readers."""
    unit, unit_name = time_unit(run.gpus_in_use.end - run.gpus_in_use.start)
    if unit == DAY:
        unit, unit_name = HOUR, "hours"

    def name(match: re.Match[str]) -> str:
        app = run.apps[int(match[1])]
        than = f", {against_own_share(app.sooner_s)}" if app.sooner_s == app.sooner_s else ""
        title = f"{app.name} of {app.user}: {app.jobs} jobs, {app.gpu_seconds / unit:,.1f} GPU {unit_name}{than}"
        return f'<g data-series="a{match[1]}"><title>{escape(title)}</title>'

    return re.sub(r'<g data-series="a(\d+)">', name, inline_svg(drawing))


def _pixels(of: int) -> tuple[int, int]:
    """(columns, rows) of the image when this many share a page."""
    by = min(1.0, (ALL_PIXELS / max(of, 1) / (PIXELS[0] * PIXELS[1])) ** 0.5)
    return int(PIXELS[0] * by), int(PIXELS[1] * by)


def _blocks(g: Gantt) -> tuple[Int, Int, Int, Float, Float]:
    """(app, first GPU, GPUs, start, end): neighbouring GPUs of one lease are one rectangle."""
    order = np.lexsort((g.gpu, g.end, g.start, g.job))
    gpu, job, start, end, app = g.gpu[order], g.job[order], g.start[order], g.end[order], g.app[order]
    same = (np.diff(gpu) == 1) & (np.diff(job) == 0) & (np.diff(start) == 0) & (np.diff(end) == 0)
    first = np.flatnonzero(np.concatenate([[True], ~same])) if len(gpu) else np.zeros(0, dtype=np.int64)
    count = np.diff(np.append(first, len(gpu)))
    return app[first], gpu[first], count, start[first], end[first]


def _rectangles(axis: Axes, blocks: tuple[Int, Int, Int, Float, Float], zero: float, unit: float, style: Style) -> None:
    app, gpu, count, start, end = blocks
    left, right, top, bottom = (start - zero) / unit, (end - zero) / unit, gpu + 0.06, gpu + count - 0.06
    for a in np.unique(app).tolist():
        own, paint = app == a, APP_COLOURS[a % len(APP_COLOURS)]
        edges = (left[own], right[own], top[own], bottom[own])
        mark(
            axis.boxes(*edges, color=paint) if isinstance(axis, Axes) else _polygons(axis, *edges, paint),
            f"a{a}",
            style,
        )


def _polygons(axis: Any, left: Float, right: Float, top: Float, bottom: Float, paint: str) -> Any:
    """`Axes.boxes` for a file."""
    from matplotlib.collections import PolyCollection

    corners = np.stack([left, top, right, top, right, bottom, left, bottom], axis=1).reshape(-1, 4, 2)
    return axis.add_collection(PolyCollection(list(corners), facecolors=paint, lw=0, zorder=2))


def _raster(run: RunMetrics, zero: float, pixels: tuple[int, int] = PIXELS) -> tuple[Any, float]:
    """(image [rows, columns, RGBA], seconds it spans), each cell the use of its GPU at the middle of its time."""
    g, span = run.gantt, run.gpus_in_use.end - zero
    columns, rows = pixels[0], min(run.gpus, pixels[1])
    owner = np.full((rows, columns), -1, dtype=np.int64)
    every = run.gpus / rows
    shown = np.flatnonzero(np.isin(g.gpu, np.floor(np.arange(rows) * every)))
    row = np.ceil(g.gpu[shown] / every - 1e-9).astype(int)
    begin, end = (np.ceil((t[shown] - zero) / span * columns - 0.5).astype(int) for t in (g.start, g.end))
    for r, b, e, a in zip(row.tolist(), begin.tolist(), end.tolist(), g.app[shown].tolist()):
        owner[r, b:e] = a
    palette = np.array([[int(c[i : i + 2], 16) for i in (1, 3, 5)] + [255] for c in APP_COLOURS], dtype=np.uint8)
    image = palette[owner % len(APP_COLOURS)]
    image[owner < 0] = 0
    return image, span
