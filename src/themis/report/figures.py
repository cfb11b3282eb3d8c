"""Figures as inline SVG: distributions, GPU use over time, and who had which GPU when.

Colours are safe for colour-blind readers (Okabe and Ito; Tol's muted set for apps). Text and lines are drawn in stand-in
colours that become CSS variables, so one figure serves light and dark pages. Equal runs give equal bytes.
"""

from __future__ import annotations

import io
import re
from collections.abc import Sequence
from typing import Any

import matplotlib
import numpy as np
from matplotlib.axes import Axes
from matplotlib.collections import PolyCollection
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator, ScalarFormatter

from themis.model.units import Float, Int
from themis.report.result import RunMetrics
from themis.report.series import Gantt, Series

POLICY_COLOURS = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9", "#8c8c8c")
DASHES = ("-", (0, (5, 1.5)), (0, (1.5, 1.5)))
APP_COLOURS = (
    "#4a3bb0", "#88ccee", "#44aa99", "#ddcc77", "#cc6677", "#117733", "#aa4499", "#999933", "#882255", "#6699cc",
    "#ee8866", "#bbcc33", "#77aadd", "#994455", "#aaaa00", "#ee99aa",
)  # fmt: skip
INK, FAINT, PAPER = "#010203", "#040506", "#070809"
_VARIABLES = {INK: "var(--ink)", FAINT: "var(--rule)", PAPER: "var(--paper)"} | {
    colour: f"var(--p{i})" for i, colour in enumerate(POLICY_COLOURS)
}
MOST_RECTANGLES = 2500
"""A Gantt with more is drawn as an image."""
PIXELS = (1600, 640)
"""Largest image of a Gantt: time, GPUs."""
HOUR, DAY = 3600.0, 86400.0


def policy_colour(i: int) -> str:
    """CSS colour of the i-th policy."""
    return f"var(--p{i % len(POLICY_COLOURS)})"


def distributions(groups: Sequence[tuple[str, Sequence[RunMetrics]]]) -> str:
    """CDFs over completed apps of rho in both forms and of JCT; seeds of a policy are pooled."""
    figure = Figure(figsize=(11.4, 3.3), layout="constrained")
    panels = (("rho_paper", "ρ, paper's T_id", 1.0), ("rho_exact", "ρ, exact T_id", 1.0), ("jct", "JCT, hours", HOUR))
    axes = figure.subplots(1, 3, sharey=True)
    for axis, (name, title, scale) in zip(axes, panels):
        highest = 0.0
        for i, (_, runs) in enumerate(groups):
            x = np.sort([getattr(app, name) / scale for run in runs for app in run.completed])
            if not len(x):
                continue
            highest = max(highest, float(x[-1]))
            x, y = _thin(x, np.arange(1, len(x) + 1) / len(x))
            axis.step(np.append(x[:1], x), np.append(0.0, y), where="post", **_line(i))
        if name != "jct":
            axis.axvline(1.0, color=INK, lw=0.8, ls=(0, (2, 2)), zorder=1)
        _tidy(axis)
        axis.set_xlabel(title)
        axis.set_ylim(0, 1.02)
        axis.set_xlim(0, max(highest * 1.03, 1.1 if name != "jct" else 1e-3))
    axes[0].set_ylabel("fraction of apps")
    return _svg(figure, "distributions")


def usage(groups: Sequence[tuple[str, RunMetrics]]) -> str:
    """GPUs in use over time, those in restart darker, with the number of active apps on the right; one row a policy."""
    figure = Figure(figsize=(11.4, 0.5 + 1.25 * len(groups)), layout="constrained")
    rows = figure.subplots(len(groups), 1, sharex=True, sharey=True, squeeze=False)[:, 0]
    unit, name = _time_unit(max((run.gpus_in_use.end - run.gpus_in_use.start for _, run in groups), default=0.0))
    most_apps = max((float(run.active_apps.value.max(initial=1)) for _, run in groups), default=1.0)
    for i, (axis, (label, run)) in enumerate(zip(rows, groups)):
        start = run.gpus_in_use.start
        for series, style in ((run.gpus_in_use, {"alpha": 0.45}), (run.gpus_starting, {"alpha": 0.9})):
            edges, value = _rebin(series, 380)
            colour = POLICY_COLOURS[i % len(POLICY_COLOURS)]
            axis.stairs(value, (edges - start) / unit, fill=True, color=colour, lw=0, **style)
        edges, value = _rebin(run.gpus_in_service, 380)
        axis.stairs(value, (edges - start) / unit, baseline=None, color=INK, lw=0.8, ls=(0, (4, 2)))
        right = axis.twinx()
        edges, value = _rebin(run.active_apps, 380)
        right.stairs(value, (edges - start) / unit, baseline=None, color=INK, lw=1.0, alpha=0.8)
        right.set_ylim(0, most_apps * 1.1)
        right.yaxis.set_major_locator(MaxNLocator(3, integer=True))
        axis.yaxis.set_major_locator(MaxNLocator(3, integer=True))
        axis.set_title(label, loc="left", fontsize=9.5, fontweight="bold", pad=3, color=INK)
        axis.margins(x=0)
        _tidy(axis)
        _tidy(right)
        right.grid(False)
    rows[-1].set_xlabel(f"{name} since the first arrival")
    figure.supylabel("GPUs in use", fontsize=9, color=INK)
    return _svg(figure, "usage")


def gantt(label: str, run: RunMetrics) -> str:
    """GPUs over time, coloured by app; hovering names the app. Very many leases become an image."""
    figure = Figure(figsize=(11.4, min(1.1 + 0.1 * run.gpus, 5.2)), layout="constrained")
    axis = figure.subplots()
    start = run.gpus_in_use.start
    unit, name = _time_unit(run.gpus_in_use.end - start)
    blocks = _blocks(run.gantt)
    if len(blocks[0]) <= MOST_RECTANGLES:
        _rectangles(axis, blocks, start, unit)
    else:
        image, extent = _raster(run, start)
        axis.imshow(image, aspect="auto", interpolation="nearest", extent=(0, extent / unit, run.gpus, 0), zorder=2)
    axis.set_xlim(0, max((run.gpus_in_use.end - start) / unit, 1e-9))
    axis.set_ylim(run.gpus, 0)
    axis.set_xlabel(f"{name} since the first arrival")
    axis.set_ylabel("GPU")
    axis.yaxis.set_major_locator(MaxNLocator(8, integer=True))
    _tidy(axis)
    axis.grid(False)
    return _with_titles(_svg(figure, f"gantt-{label}"), run)


# ---- pieces ---------------------------------------------------------------------------------------------------------


def _line(i: int) -> dict[str, Any]:
    n = len(POLICY_COLOURS)
    return {"color": POLICY_COLOURS[i % n], "ls": DASHES[i // n % len(DASHES)], "lw": 1.8, "zorder": 3}


def _thin(x: Float, y: Float, most: int = 600) -> tuple[Float, Float]:
    """Evenly spaced ranks of a long CDF, ends kept."""
    if len(x) <= most:
        return x, y
    at = np.unique(np.linspace(0, len(x) - 1, most).round().astype(int))
    return x[at], y[at]


def _rebin(series: Series, most: int) -> tuple[Float, Float]:
    """(edges, values) of at most ``most`` bins; areas stay as they are."""
    if not len(series.value):
        return np.array([0.0, 1e-9]), np.zeros(1)
    edges = series.edges
    area = np.concatenate([[0.0], np.cumsum(series.value * np.diff(edges))])
    at = np.unique(np.linspace(0, len(edges) - 1, min(most, len(series.value)) + 1).round().astype(int))
    return edges[at], np.diff(area[at]) / np.maximum(np.diff(edges[at]), 1e-12)


def _time_unit(span: float) -> tuple[float, str]:
    return (DAY, "days") if span > 5 * DAY else (HOUR, "hours") if span > 2 * HOUR else (60.0, "minutes")


def _blocks(g: Gantt) -> tuple[Int, Int, Int, Float, Float]:
    """(app, first GPU, GPUs, start, end): neighbouring GPUs of one lease are one rectangle."""
    order = np.lexsort((g.gpu, g.end, g.start, g.job))
    gpu, job, start, end, app = g.gpu[order], g.job[order], g.start[order], g.end[order], g.app[order]
    same = (np.diff(gpu) == 1) & (np.diff(job) == 0) & (np.diff(start) == 0) & (np.diff(end) == 0)
    first = np.flatnonzero(np.concatenate([[True], ~same])) if len(gpu) else np.zeros(0, dtype=np.int64)
    count = np.diff(np.append(first, len(gpu)))
    return app[first], gpu[first], count, start[first], end[first]


def _rectangles(axis: Axes, blocks: tuple[Int, Int, Int, Float, Float], zero: float, unit: float) -> None:
    app, gpu, count, start, end = blocks
    left, right, top, bottom = (start - zero) / unit, (end - zero) / unit, gpu + 0.06, gpu + count - 0.06
    corners = np.stack([left, top, right, top, right, bottom, left, bottom], axis=1).reshape(-1, 4, 2)
    for a in np.unique(app).tolist():
        shapes = PolyCollection(list(corners[app == a]), facecolors=APP_COLOURS[a % len(APP_COLOURS)], lw=0, zorder=2)
        shapes.set_gid(f"app-{a}")
        axis.add_collection(shapes)


def _raster(run: RunMetrics, zero: float) -> tuple[Any, float]:
    """(image [rows, columns, RGBA], seconds it spans), each cell what its GPU did at the middle of its time."""
    g, span = run.gantt, run.gpus_in_use.end - zero
    columns, rows = PIXELS[0], min(run.gpus, PIXELS[1])
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


def _tidy(axis: Axes) -> None:
    for side, spine in axis.spines.items():
        spine.set_visible(side == "bottom")
        spine.set_color(FAINT)
    axis.tick_params(length=0, labelsize=8.5, labelcolor=INK, color=FAINT)
    axis.xaxis.label.set_color(INK)
    axis.yaxis.label.set_color(INK)
    axis.title.set_color(INK)
    axis.grid(axis="y", color=FAINT, lw=0.7, zorder=0)
    axis.set_axisbelow(True)
    axis.patch.set_visible(False)
    for formatter in (axis.xaxis.get_major_formatter(), axis.yaxis.get_major_formatter()):
        if isinstance(formatter, ScalarFormatter):
            formatter.set_useOffset(False)


def _svg(figure: Figure, salt: str) -> str:
    """The figure as an <svg> element that an HTML page can hold: no prolog, no namespaces, colours as CSS variables."""
    figure.patch.set_visible(False)
    out = io.StringIO()
    # A salt for each figure keeps the ids of figures on one page apart.
    with matplotlib.rc_context({"svg.hashsalt": f"themis-{salt}", "svg.fonttype": "none", "axes.labelsize": 9}):
        figure.savefig(out, format="svg", metadata={"Date": None, "Creator": None, "Format": None, "Type": None})
    text = out.getvalue()
    text = text[text.index("<svg") :]
    # A style within an inline SVG would apply to the whole page.
    text = re.sub(r"<metadata>.*?</metadata>|<style.*?</style>", "", text, flags=re.DOTALL)
    text = re.sub(r' xmlns(:\w+)?="[^"]*"', "", text)
    text = re.sub(r"font-family: [^;\"]*", "font-family: var(--font)", text)
    text = re.sub(r' (?:d|x|y|transform)="[^"]*"', lambda m: re.sub(r"(\.\d\d)\d+", r"\1", m[0]), text)
    for colour, variable in _VARIABLES.items():
        text = text.replace(colour, variable)
    return re.sub(r'<svg width="[^"]*" height="[^"]*"', '<svg width="100%"', text, count=1)


def _with_titles(svg: str, run: RunMetrics) -> str:
    """Name the app of each group of rectangles, for the pointer and for screen readers."""

    def name(match: re.Match[str]) -> str:
        app = run.apps[int(match[1])]
        rho = f", ρ {app.rho_paper:.2f} paper, {app.rho_exact:.2f} exact" if app.jct == app.jct else ""
        title = f"{app.name} of {app.user}: {app.jobs} jobs, {app.gpu_seconds / HOUR:,.1f} GPU hours{rho}"
        return f'<g class="app"><title>{_escape(title)}</title>'

    return re.sub(r'<g id="app-(\d+)">', name, svg)


def _escape(text: str) -> str:
    return text.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")
