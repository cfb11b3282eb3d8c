"""Figures of a page, drawn as SVG: the few kinds of marks that reports use, with the names that matplotlib gives them.

Files need real fonts and PNG, and so matplotlib, which takes longer to load and to draw than a small simulation takes to run. Pages
do not. Lengths are points (1/72 inch). Marks are kept in data coordinates until ``Sketch.svg``, when all limits are known.
"""

from __future__ import annotations

import base64
import math
import struct
import zlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any

import numpy as np

from themis.model.units import Float

SMALL, LABEL = 8.5, 9.0
"""Font sizes of numbers at ticks and of axes' names."""


def escape(text: str) -> str:
    """Text for XML, also within quotes."""
    return text.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;").replace('"', "&quot;")


@dataclass(slots=True)
class Mark:
    """One drawn element: its SVG from the positions of data, its place among others, and its group's id."""

    draw: Callable[[Callable[[Any], Float], Callable[[Any], Float]], str]
    zorder: float
    clipped: bool = True
    gid: str = ""

    def set_gid(self, gid: str) -> None:
        self.gid = gid


@dataclass(slots=True)
class Axis:
    """The scale of x or of y: limits, ticks and their texts."""

    most: int = 8
    integer: bool = False
    log: bool = False
    label: str = ""
    limits: tuple[float, float] | None = None
    low: float = math.inf
    high: float = -math.inf
    margin: float = 0.05
    fixed: Sequence[tuple[float, str]] | None = None
    text: Callable[[float], str] | None = None

    def reach(self, values: Any) -> None:
        """Let the axis show these values."""
        some = np.asarray(values, dtype=np.float64)
        some = some[np.isfinite(some)]
        if some.size:
            self.low, self.high = min(self.low, float(some.min())), max(self.high, float(some.max()))

    def span(self) -> tuple[float, float]:
        """Limits, NaN where they follow the data, filled in."""
        low, high = self.limits or (math.nan, math.nan)
        from_, to = (self.low, self.high) if self.low <= self.high else (0.0, 1.0)
        pad = self.margin * (to - from_) or (0.05 if to == from_ else 0.0)
        return (low if low == low else from_ - pad), (high if high == high else to + pad)

    def ticks(self) -> list[tuple[float, str]]:
        """Round values within the limits, at most ``most``, and their texts."""
        if self.fixed is not None:
            return list(self.fixed)
        low, high = sorted(self.span())
        if self.log:
            powers = range(math.floor(math.log10(low)), math.ceil(math.log10(high)) + 1)
            every = -(-len(powers) // 6)
            values = [10.0**p for p in powers[::every] if low <= 10.0**p <= high]
        else:
            raw = (high - low) / self.most
            power = 10.0 ** math.floor(math.log10(raw))
            step = next(m * power for m in (1, 2, 2.5, 5, 10) if m * power >= raw * (1 - 1e-9))
            step = max(1.0, round(step)) if self.integer else step
            values = [k * step for k in range(math.ceil(low / step - 1e-9), math.floor(high / step + 1e-9) + 1)]
        digits = next((d for d in range(7) if all(abs(round(v, d) - v) < 1e-9 * max(1.0, abs(v)) for v in values)), 6)
        text = self.text or ((lambda v: f"{v:g}") if self.log else (lambda v: f"{v + 0.0:.{digits}f}"))
        return [(v, text(v)) for v in values]


@dataclass(slots=True)
class Axes:
    """One pair of axes."""

    x: Axis = field(default_factory=Axis)
    y: Axis = field(default_factory=lambda: Axis(most=6))
    marks: list[Mark] = field(default_factory=list)
    title: str = ""
    grid: str = "y"
    ink: str = "#000000"
    faint: str = "#cccccc"
    box: tuple[float, float, float, float] = (0.0, 0.0, 1.0, 1.0)
    """Left, top, width, height in the figure."""

    def get_xlim(self) -> tuple[float, float]:
        return self.x.span()

    def get_ylim(self) -> tuple[float, float]:
        return self.y.span()

    def get_xscale(self) -> str:
        return "log" if self.x.log else "linear"

    def set_xscale(self, scale: str) -> None:
        self.x.log = scale == "log"

    def set_xlim(self, low: float, high: float) -> None:
        self.x.limits = (low, high)

    def set_ylim(self, low: float = math.nan, high: float = math.nan, *, bottom: float = math.nan) -> None:
        self.y.limits = (low if low == low else bottom, high)

    def set_xlabel(self, label: str) -> None:
        self.x.label = label

    def set_ylabel(self, label: str) -> None:
        self.y.label = label

    def set_title(self, label: str, **_: object) -> None:
        self.title = label

    def margins(self, x: float) -> None:
        self.x.margin = x

    def set_yticks(self, at: Sequence[float], labels: Sequence[str]) -> None:
        self.y.fixed = list(zip(at, labels))

    def _add(
        self,
        draw: Callable[[Callable[[Any], Float], Callable[[Any], Float]], str],
        zorder: float,
        x: Any = (),
        y: Any = (),
        clipped: bool = True,
    ) -> Mark:
        self.x.reach(x)
        self.y.reach(y)
        made = Mark(draw, zorder, clipped)
        self.marks.append(made)
        return made

    def plot(self, x: Any, y: Any, *, color: str, ls: Any = "-", lw: float = 1.5, zorder: float = 2) -> tuple[Mark]:
        """A line through points; NaN breaks it."""
        look = _stroke(color, lw, ls)
        return (self._add(lambda fx, fy: f'<path d="{_lines(fx(x), fy(y))}" {look}/>', zorder, x, y),)

    def step(self, x: Any, y: Any, *, where: str, color: str, ls: Any, lw: float, zorder: float) -> tuple[Mark]:
        """A line that keeps each value until the next x."""
        assert where == "post"
        return self.plot(np.repeat(x, 2)[1:], np.repeat(y, 2)[:-1], color=color, ls=ls, lw=lw, zorder=zorder)

    def stairs(
        self,
        value: Any,
        edges: Any,
        *,
        color: str,
        lw: float,
        fill: bool = False,
        baseline: float | None = 0.0,
        ls: Any = "-",
        alpha: float = 1.0,
        zorder: float = 1,
    ) -> Mark:
        """A value for each bin: a line, or the area down to zero."""
        x, y = np.repeat(edges, 2)[1:-1], np.repeat(value, 2)
        if not fill:
            return self.plot(x, y, color=color, ls=ls, lw=lw, zorder=zorder)[0]
        return self.fill_between(x, np.zeros_like(y), y, color=color, alpha=alpha, lw=lw, zorder=zorder)

    def fill_between(self, x: Any, low: Any, high: Any, *, color: str, alpha: float, lw: float, zorder: float) -> Mark:
        """The area between two lines."""
        around_x, around_y = np.concatenate([x, np.flip(x)]), np.concatenate([high, np.flip(low)])
        look = f'style="fill: {color}; fill-opacity: {alpha:g}"'
        return self._add(
            lambda fx, fy: f'<path d="{_lines(fx(around_x), fy(around_y))}Z" {look}/>', zorder, around_x, around_y
        )

    def boxes(self, left: Any, right: Any, top: Any, bottom: Any, *, color: str, zorder: float = 2) -> Mark:
        """Filled rectangles of one colour."""
        look = f'style="fill: {color}"'

        def draw(fx: Callable[[Any], Float], fy: Callable[[Any], Float]) -> str:
            edges = zip(*(np.atleast_1d(v).tolist() for v in (fx(left), fx(right), fy(top), fy(bottom))))
            return "".join(
                f'<path d="{_lines(np.array([a, b, b, a]), np.array([t, t, u, u]))}Z" {look}/>' for a, b, t, u in edges
            )

        return self._add(draw, zorder, np.append(left, right), np.append(top, bottom))

    def barh(
        self, y: float, width: Any, *, height: float, color: str | Sequence[str], lw: float, left: Any = 0.0
    ) -> list[Mark]:
        """Horizontal bars at one height."""
        assert lw == 0
        widths, lefts = np.atleast_1d(width), np.broadcast_to(left, np.atleast_1d(width).shape)
        colours = [color] * len(widths) if isinstance(color, str) else color
        half = height / 2
        return [self.boxes(a, a + w, y - half, y + half, color=c) for a, w, c in zip(lefts, widths, colours)]

    def errorbar(self, x: float, y: float, *, xerr: float, color: str, lw: float, **_: object) -> Mark:
        """A whisker from x - xerr to x + xerr."""
        ends = np.array([x - xerr, x + xerr])
        look = _stroke(color, lw)

        def draw(fx: Callable[[Any], Float], fy: Callable[[Any], Float]) -> str:
            (a, b), at = fx(ends).tolist(), float(fy(y))
            return f'<path d="M{_n(a)} {_n(at)}H{_n(b)}M{_n(a)} {_n(at - 2.5)}v5M{_n(b)} {_n(at - 2.5)}v5" {look}/>'

        return self._add(draw, 4, ends)

    def hlines(self, y: Any, low: Any, high: Any, *, color: str, lw: float, ls: Any, zorder: float) -> Mark:
        """Horizontal lines between two values of x each."""
        gaps = np.full_like(np.asarray(y, dtype=np.float64), np.nan)
        x, at = np.stack([low, high, gaps], 1).ravel(), np.stack([y, y, gaps], 1).ravel()
        return self.plot(x, at, color=color, lw=lw, ls=ls, zorder=zorder)[0]

    def scatter(
        self,
        x: Any,
        y: Any,
        *,
        s: float,
        zorder: float,
        color: str = "",
        facecolor: str = "",
        edgecolor: str = "none",
        lw: float = 0.0,
    ) -> Mark:
        """Dots of an area of ``s`` square points."""
        look = (
            f'r="{_n(math.sqrt(s) / 2)}" style="fill: {color or facecolor}; stroke: {edgecolor}; stroke-width: {lw:g}"'
        )

        def draw(fx: Callable[[Any], Float], fy: Callable[[Any], Float]) -> str:
            places = zip(fx(x).tolist(), fy(y).tolist())
            return "".join(f'<circle cx="{_n(a)}" cy="{_n(b)}" {look}/>' for a, b in places if a == a)

        return self._add(draw, zorder, x, y)

    def axvline(self, x: float, *, color: str, lw: float, ls: Any, zorder: float) -> Mark:
        """A line over the whole height; the axes need not reach it."""
        return self._across(
            lambda fx, _: f"M{_n(float(fx(x)))} {_n(self.box[1])}v{_n(self.box[3])}", color, lw, ls, zorder
        )

    def axhline(self, y: float, *, color: str, lw: float, ls: Any = "-", zorder: float) -> Mark:
        """A line over the whole width."""
        self.y.reach([y])
        return self._across(
            lambda _, fy: f"M{_n(self.box[0])} {_n(float(fy(y)))}h{_n(self.box[2])}", color, lw, ls, zorder
        )

    def _across(self, path: Callable[[Any, Any], str], color: str, lw: float, ls: Any, zorder: float) -> Mark:
        look = _stroke(color, lw, ls)
        return self._add(lambda fx, fy: f'<path d="{path(fx, fy)}" {look}/>', zorder)

    def text(self, x: float, y: float, text: str, *, va: str, fontsize: float, color: str) -> Mark:
        """Text to the right of a point."""
        assert va == "center"
        return self._add(
            lambda fx, fy: _text(float(fx(x)), float(fy(y)) + 0.35 * fontsize, text, fontsize, color),
            5,
            clipped=False,
        )

    def imshow(self, image: Any, *, extent: tuple[float, float, float, float], zorder: float, **_: object) -> Mark:
        """An image [rows, columns, RGBA] between left, right, bottom and top."""
        left, right, bottom, top = extent
        data = base64.b64encode(png(image)).decode()

        def draw(fx: Callable[[Any], Float], fy: Callable[[Any], Float]) -> str:
            (a, b), (t, u) = fx(np.array([left, right])).tolist(), fy(np.array([top, bottom])).tolist()
            at = f'x="{_n(a)}" y="{_n(t)}" width="{_n(b - a)}" height="{_n(u - t)}"'
            return (
                f'<image {at} preserveAspectRatio="none" style="image-rendering: pixelated" '
                f'href="data:image/png;base64,{data}"/>'
            )

        return self._add(draw, zorder, [left, right], [bottom, top])

    def svg(self, number: int, name: str) -> str:
        """The axes as groups: grid, marks in their order, ticks and names."""
        left, top, width, height = self.box
        (x0, x1), (y0, y1) = self.x.span(), self.y.span()

        def fx(v: Any) -> Float:
            if self.x.log:
                out: Float = left + width * np.log(np.maximum(v, 1e-300) / x0) / math.log(x1 / x0)
                return out
            return left + width * (np.asarray(v, dtype=np.float64) - x0) / (x1 - x0)

        def fy(v: Any) -> Float:
            return top + height * (1 - (np.asarray(v, dtype=np.float64) - y0) / (y1 - y0))

        clip, faint = f"clip-{name}-{number}", _stroke(self.faint, 0.7)
        ticks = [(float(fx(v)), text) for v, text in self.x.ticks()]
        ticks = [(at, text) for at, text in ticks if left - 0.5 <= at <= left + width + 0.5]
        down = [(float(fy(v)), text) for v, text in self.y.ticks()]
        lines = "".join(f'<path d="M{_n(left)} {_n(at)}h{_n(width)}" {faint}/>' for at, _ in down if self.grid == "y")
        across = "".join(
            f'<g id="xtick_{i + 1}">'
            + (f'<path d="M{_n(at)} {_n(top)}v{_n(height)}" {faint}/>' if self.grid == "x" else "")
            + _text(at, top + height + 12, text, SMALL, self.ink, "middle")
            + "</g>"
            for i, (at, text) in enumerate(ticks)
            if text
        )
        marks = ""
        for m in sorted(self.marks, key=lambda m: m.zorder):
            inner = f'<g clip-path="url(#{clip})">{m.draw(fx, fy)}</g>' if m.clipped else m.draw(fx, fy)
            marks += f'<g id="{escape(m.gid)}">{inner}</g>' if m.gid else inner
        names = [f'<path d="M{_n(left)} {_n(top + height)}h{_n(width)}" {faint}/>']
        names += [_text(left - 5, at + 3, text, SMALL, self.ink, "end") for at, text in down]
        if self.x.label:
            names.append(_text(left + width / 2, top + height + 26, self.x.label, LABEL, self.ink, "middle"))
        for i, line in enumerate(reversed(self.y.label.split("\n")) if self.y.label else ()):
            at = (left - 12 - self.widest() - 11 * i, top + height / 2)
            names.append(_text(*at, line, LABEL, self.ink, "middle", turned=True))
        if self.title:
            names.append(_text(left, top - 4, self.title, LABEL, self.ink, weight="bold"))
        return (
            f'<g id="axes_{number}"><clipPath id="{clip}"><rect x="{_n(left)}" y="{_n(top)}" width="{_n(width)}" '
            f'height="{_n(height)}"/></clipPath>{lines}<g id="xaxis">{across}</g>{marks}{"".join(names)}</g>'
        )

    def widest(self) -> float:
        """Width of the widest text at a tick of y."""
        return max((_width(text) for _, text in self.y.ticks()), default=0.0)


@dataclass(slots=True)
class Sketch:
    """A figure of rows and columns of axes; ``shared`` : neighbours share x (rows) or y (columns)."""

    width: float
    height: float
    rows: int = 1
    columns: int = 1
    label: str = ""
    axes: list[Axes] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.axes = [Axes() for _ in range(self.rows * self.columns)]

    def supylabel(self, label: str, **_: object) -> None:
        self.label = label

    def svg(self, name: str) -> str:
        """The figure as an <svg> element."""
        axes = self.axes
        if self.rows > 1:
            for axis in ("x", *("y" for _ in [0] if self.label)):
                _share([getattr(one, axis) for one in axes])
        if self.columns > 1:
            for one in axes[1:]:
                one.y.fixed = [(at, "") for at, _ in axes[0].y.ticks()]
        below = [30.0 if one.x.label else 16.0 if i >= len(axes) - self.columns else 6.0 for i, one in enumerate(axes)]
        above = [16.0 if one.title else 6.0 for one in axes]
        names = max((one.y.label.count("\n") + 1 if one.y.label else 0 for one in axes), default=0)
        side = 14.0 * bool(self.label)
        left = 8 + side + 12 * names + max(one.widest() for one in axes)
        wide = (self.width - left - 12 - 14 * (self.columns - 1)) / self.columns
        tall = (self.height - sum(above[:: self.columns]) - sum(below[:: self.columns])) / self.rows
        y = 0.0
        for i, one in enumerate(axes):
            row, column = divmod(i, self.columns)
            y += above[i] if not column else 0.0
            one.box = (left + column * (wide + 14), y, wide, tall)
            y += tall + below[i] if column == self.columns - 1 else 0.0
            if self.rows > 1 and row < self.rows - 1:
                one.x.fixed = [(at, "") for at, _ in one.x.ticks()]
        body = "".join(one.svg(i + 1, name) for i, one in enumerate(axes))
        if self.label:
            body += _text(10, self.height / 2, self.label, LABEL, axes[0].ink, "middle", turned=True)
        size = f"{_n(self.width)} {_n(self.height)}"
        return f'<svg width="{_n(self.width)}pt" height="{_n(self.height)}pt" viewBox="0 0 {size}">{body}</svg>'


def _share(scales: Sequence[Axis]) -> None:
    """Give all scales the limits that hold the data of each."""
    spans = [scale.span() for scale in scales]
    low, high = min(a for a, _ in spans), max(b for _, b in spans)
    for scale in scales:
        scale.limits = (low, high)


def png(image: Any) -> bytes:
    """An image [rows, columns, RGBA] of bytes as a PNG file."""
    rows, columns = image.shape[:2]
    raw = np.zeros((rows, 1 + 4 * columns), dtype=np.uint8)
    raw[:, 1:] = np.asarray(image, dtype=np.uint8).reshape(rows, -1)

    def chunk(kind: bytes, data: bytes) -> bytes:
        return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))

    header = struct.pack(">IIBBBBB", columns, rows, 8, 6, 0, 0, 0)
    return (
        b"\x89PNG\r\n\x1a\n"
        + chunk(b"IHDR", header)
        + chunk(b"IDAT", zlib.compress(raw.tobytes(), 9))
        + chunk(b"IEND", b"")
    )


def _n(v: float) -> str:
    return f"{v:.2f}".rstrip("0").rstrip(".")


def _lines(x: Float, y: Float) -> str:
    """The path through points; a NaN begins a new part."""
    points = [None if a != a or b != b else f"{_n(a)} {_n(b)}" for a, b in zip(x.tolist(), y.tolist())]
    return "".join(
        ("M" if before is None else "L") + point for before, point in pairwise([None, *points]) if point is not None
    )


def _stroke(color: str, lw: float, ls: Any = "-") -> str:
    dashes = "" if isinstance(ls, str) else "; stroke-dasharray: " + " ".join(_n(lw * v) for v in ls[1])
    return f'style="fill: none; stroke: {color}; stroke-width: {lw:g}{dashes}"'


def _width(text: str) -> float:
    """Estimated width of a text at a tick, in points: wide scripts take a whole em."""
    return SMALL * sum(1.0 if ord(c) > 0x2E80 else 0.6 for c in text)


def _text(
    x: float,
    y: float,
    text: str,
    size: float,
    color: str,
    anchor: str = "start",
    *,
    turned: bool = False,
    weight: str = "",
) -> str:
    at = f'transform="translate({_n(x)} {_n(y)}) rotate(-90)"' if turned else f'x="{_n(x)}" y="{_n(y)}"'
    bold = f"; font-weight: {weight}" if weight else ""
    look = f"font-size: {size:g}px; font-family: var(--font); text-anchor: {anchor}; fill: {color}{bold}"
    return f'<text {at} style="{look}">{escape(text)}</text>'
