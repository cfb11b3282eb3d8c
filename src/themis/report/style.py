"""Style and output of figures: inline in a page, or as an SVG or PNG file. One description, several outputs.

Colours are safe for colour-blind readers (Okabe and Ito; Tol's muted set for apps). In a page, text, lines and policies
are drawn in stand-in colours that become CSS variables, so one figure serves light and dark pages; in a file they are
real colours, and the figure carries its own title, legend and caption. Equal runs give equal bytes. A page's figures are sketches,
a file's are matplotlib's, which is loaded for files only; both are drawn by the same calls.
"""

from __future__ import annotations

import json
import re
import textwrap
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from themis.report.look.palette import APP_COLOURS, POLICY_COLOURS
from themis.report.sketch import Axes, Mark, Sketch, escape

DASHES = ("-", (0, (5, 1.5)), (0, (1.5, 1.5)))
CSS_DASHES = ("none", "6 2", "2 2")
LOCALITY_COLOURS = ("#08519c", "#6baed6", "#fdae6b", "#d94801")
RESTART, CRASH = "#e08a1e", "#7a3d99"
SOFT = "#5b6675"
WIDE, NARROW, PHONE = 11.4, 3.75, 4.7
"""Inches: a figure as wide as the page, one of three side by side, and a wide one on a narrow screen."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Style:
    """Colours of text, grid and ground; ``alone``: the figure is outside the page and needs title and legend."""

    ink: str
    faint: str
    paper: str
    alone: bool


PAGE = Style(ink="#010203", faint="#040506", paper="#070809", alone=False)
FILE = Style(ink="#1d2430", faint="#dfe3e8", paper="#ffffff", alone=True)
VARIABLES = {PAGE.ink: "var(--ink)", PAGE.faint: "var(--rule)", PAGE.paper: "var(--paper)"} | {
    colour: f"var(--{letter}{i})"
    for letter, colours in (("p", POLICY_COLOURS), ("a", APP_COLOURS))
    for i, colour in enumerate(colours)
}
"""Colours of a drawing, and the variables of a page that they become."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Reading:
    """Labels and units of the values that a pointer over a pair of axes shows.

    Attributes
    ----------
    name : what follows the value of x; empty where parts of the figure say themselves what they are.
    value : what the values of y are. ``per_cent`` : y is a fraction.
    seconds : seconds of one unit of x where x is time, so that a part of it can be shown; else 0.
    """

    name: str = ""
    value: str = ""
    per_cent: bool = False
    seconds: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Drawing:
    """A figure with its title, legend and pointer data.

    Attributes
    ----------
    name : of its file and its place in the page. ``title`` : what it shows, in one line.
    figure : a `Sketch` for a page, a figure of matplotlib for a file.
    key : its legend, (text, colour, dash) each; empty where the axes name everything.
    reads : values under a page's pointer, one for each pair of axes; empty without values.
    """

    name: str
    title: str
    figure: Any
    key: tuple[tuple[str, str, Any], ...] = ()
    reads: tuple[Reading, ...] = ()


def colour(i: int) -> str:
    """Colour of the i-th policy."""
    return POLICY_COLOURS[i % len(POLICY_COLOURS)]


def dash(i: int) -> Any:
    """Dashes of the i-th policy's line: with more policies than colours, the colours recur with other dashes."""
    return DASHES[i // len(POLICY_COLOURS) % len(DASHES)]


def policy_key(labels: Sequence[str]) -> tuple[tuple[str, str, Any], ...]:
    """The legend of lines by policy."""
    return tuple((label, colour(i), dash(i)) for i, label in enumerate(labels))


def of_width(name: str, width: float) -> str:
    """The name of a wide figure, another one for narrow screens: a page has both."""
    return name if width == WIDE else f"{name}-phone"


def mark(artist: Mark, series: str, style: Style, note: str = "") -> None:
    """Mark the series of a drawn element, so that a page can highlight or hide it in all figures.

    Parameters
    ----------
    series : ``p0`` of the first policy, ``a0`` of the first app. ``note`` : what of the series it is.
    """
    if not style.alone:
        artist.set_gid(f"series-{series}@{note}")


def shortened(label: str, most: int = 26) -> str:
    """A label short enough for the space next to an axis."""
    return label if len(label) <= most else label[: most - 1] + "…"


def canvas(
    style: Style, width: float, height: float, *, rows: int = 1, columns: int = 1, share_y: bool = False
) -> tuple[Any, list[Axes]]:
    """A figure of so many inches and its axes: a `Sketch`, or a figure of matplotlib for a file. Rows share x."""
    if not style.alone:
        sketch = Sketch(72 * width, 72 * height, rows, columns)
        return sketch, sketch.axes
    from matplotlib.figure import Figure

    figure = Figure(figsize=(width, height), layout="constrained")
    axes = figure.subplots(rows, columns, sharex=rows > 1, sharey=share_y, squeeze=False)
    return figure, axes.ravel().tolist()


def panel(name: str, title: str, style: Style, *, height: float = 2.95) -> tuple[Drawing, Axes]:
    """A narrow figure of one pair of axes."""
    figure, (axis,) = canvas(style, NARROW, height)
    tidy(axis, style)
    return Drawing(name=name, title=title, figure=figure), axis


def tidy(axis: Any, style: Style, *, grid: Literal["x", "y", ""] = "y") -> None:
    """The look of all axes: a baseline, a faint grid, small labels."""
    if isinstance(axis, Axes):
        axis.ink, axis.faint, axis.grid = style.ink, style.faint, grid
        return
    from matplotlib.ticker import ScalarFormatter

    for side, spine in axis.spines.items():
        spine.set_visible(side == "bottom")
        spine.set_color(style.faint)
    axis.tick_params(length=0, labelsize=8.5, labelcolor=style.ink, color=style.faint)
    axis.xaxis.label.set_color(style.ink)
    axis.yaxis.label.set_color(style.ink)
    axis.xaxis.label.set_fontsize(9)
    axis.yaxis.label.set_fontsize(9)
    axis.title.set_color(style.ink)
    axis.grid(False)
    if grid:
        axis.grid(axis=grid, color=style.faint, lw=0.7, zorder=0)
    axis.set_axisbelow(True)
    axis.patch.set_visible(False)
    for formatter in (axis.xaxis.get_major_formatter(), axis.yaxis.get_major_formatter()):
        if isinstance(formatter, ScalarFormatter):
            formatter.set_useOffset(False)


def ticks(
    axis: Any, which: Literal["x", "y"], most: int, *, integer: bool = False, text: Callable[[float], str] | None = None
) -> None:
    """At most this many round values on an axis of linear scale."""
    if isinstance(axis, Axes):
        scale = axis.x if which == "x" else axis.y
        scale.most, scale.integer, scale.text = most, integer, text
        return
    from matplotlib.ticker import FuncFormatter, MaxNLocator

    of = axis.xaxis if which == "x" else axis.yaxis
    of.set_major_locator(MaxNLocator(most, integer=integer))
    if text is not None:
        of.set_major_formatter(FuncFormatter(lambda value, _: text(value)))


def log_x(axis: Any) -> None:
    """Powers of ten on the x axis."""
    axis.set_xscale("log")
    if isinstance(axis, Axes):
        return
    from matplotlib.ticker import FuncFormatter, LogLocator, NullFormatter

    axis.xaxis.set_major_locator(LogLocator(numticks=6))
    axis.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
    axis.xaxis.set_minor_formatter(NullFormatter())
    axis.tick_params(which="minor", length=0)


# ---- into a page ---------------------------------------------------------------------------------------------------


def inline_svg(drawing: Drawing) -> str:
    """The figure as an <svg> element for an HTML page, colours as CSS variables."""
    text = drawing.figure.svg(re.sub(r"[^A-Za-z0-9_-]+", "-", drawing.name))
    for stand_in, variable in VARIABLES.items():
        text = text.replace(stand_in, variable)
    text = text.replace('<g id="xaxis">', '<g data-xaxis="">')
    text = re.sub(r'<g id="series-([^@"]*)@([^"]*)">', _series, text)
    label = f' role="img" aria-label="{escape(drawing.title)}"{_axes(drawing)}'
    return re.sub(r'<svg width="[^"]*" height="[^"]*"', lambda _: f'<svg width="100%"{label}', text, count=1)


def _series(match: re.Match[str]) -> str:
    note = f' data-note="{match[2]}"' if match[2] else ""
    return f'<g data-series="{match[1]}"{note}>'


def _axes(drawing: Drawing) -> str:
    """Positions of the axes in the drawn figure, and the values on them, for ``report/look/figures.js``."""
    if not drawing.reads:
        return ""
    found = []
    for axis, reads in zip(drawing.figure.axes, drawing.reads, strict=True):
        box = axis.box
        found.append(
            {
                "box": [round(float(v), 2) for v in box],
                "x": [float(v) for v in axis.get_xlim()],
                "y": [float(v) for v in axis.get_ylim()],
                "log": axis.get_xscale() == "log",
                "seconds": reads.seconds,
                "per_cent": reads.per_cent,
                "name": reads.name,
                "value": reads.value,
            }
        )
    return f' data-axes="{escape(json.dumps(found, ensure_ascii=False))}"'


def _svg_context(name: str) -> AbstractContextManager[None]:
    import matplotlib

    # A salt for each figure keeps the ids of figures on one page apart; text stays text.
    return matplotlib.rc_context({"svg.hashsalt": f"themis-{name}", "svg.fonttype": "none"})


@contextmanager
def _any_script() -> Iterator[None]:
    """Names in scripts that matplotlib's font lacks: an SVG shows them in the reader's fonts, a PNG as boxes."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="Glyph .* missing from font", category=UserWarning)
        yield


# ---- into a file ---------------------------------------------------------------------------------------------------


def save(drawing: Drawing, path: Path, caption: str) -> None:
    """Write the figure with its title, legend and caption; the name's ending, .svg or .png, is the format."""
    from matplotlib.lines import Line2D

    figure, style = drawing.figure, FILE
    figure.patch.set_facecolor(style.paper)
    narrow = figure.get_figwidth() < WIDE / 2
    columns = 2 if narrow else 5
    lines = -(-len(drawing.key) // columns)
    width, height = figure.get_size_inches()
    figure.set_size_inches(width + 1.2 * narrow, height + 0.62 + 0.2 * lines)
    title = _wrapped(drawing.title, 58 if narrow else 150)
    figure.suptitle(title, fontsize=10, fontweight="bold", color=style.ink, x=0.01, ha="left")
    # The caption is below everything, so that a figure that is shown alone explains itself.
    heading = _wrapped(caption, 84 if narrow else 190)
    if drawing.key:
        handles = [Line2D([], [], color=c, ls=d, lw=3 if d == "-" else 1.8) for _, c, d in drawing.key]
        names = [shortened(text, 30) for text, _, _ in drawing.key]
        legend = figure.legend(
            handles,
            names,
            loc="outside lower left",
            ncols=columns,
            frameon=False,
            fontsize=8,
            labelcolor=style.ink,
            title=heading,
            title_fontsize=6.5,
            alignment="left",
            borderaxespad=0.1,
        )
        legend.get_title().set_color(SOFT)
    else:
        figure.supxlabel(heading, fontsize=6.5, color=SOFT, x=0.01, ha="left")
    kind = path.suffix.removeprefix(".")
    with _svg_context(drawing.name), _any_script():
        figure.savefig(path, format=kind, dpi=160, metadata={"Date": None} if kind == "svg" else {"Software": None})


def _wrapped(text: str, width: int) -> str:
    return "\n".join(textwrap.wrap(text, width))
