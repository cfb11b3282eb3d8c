"""Charts that the server draws: SVG without styles of its own, read by ``report/look/figures.js`` as the report's figures are.

``Chart.svg`` carries ``data-axes``; a group of one user is ``g[data-series=uN]``, its legend entry ``button[data-key=uN]``.
"""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from dataclasses import dataclass

from markupsafe import Markup, escape

WIDTH, HEIGHT = 1400, 260
LEFT, RIGHT, TOP, BOTTOM = 56, 8, 24, 30
"""Margins for the labels."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Line:
    """One user's values. ``number`` : of the legend's entry. ``colour`` : number of the colour."""

    number: int
    name: str
    colour: int
    values: Sequence[float]


@dataclass(frozen=True, slots=True, kw_only=True)
class Chart:
    """A drawn chart with its legend."""

    svg: Markup
    lines: Sequence[Line]


def over_time(lines: Sequence[Line], start_s: float, width_s: float, end_s: float, *, label: str, of: str) -> Chart:
    """Lines of values at the end of each stretch of time.

    Parameters
    ----------
    start_s, width_s, end_s : seconds; stretch i ends at start + (i + 1) width, the last one at the end.
    label : the chart in a sentence. ``of`` : what the values are.
    """
    unit, name = (3600.0, "hours") if end_s - start_s > 7200 else (60.0, "minutes")
    span = max((end_s - start_s) / unit, 1e-9)
    low, high = _range([v for line in lines for v in line.values] or [0.0])
    frame = _Frame(low, high)
    parts = [frame.grid(of), frame.times(span, name)]
    for line in lines:
        ends = [min((i + 1) * width_s / unit, span) for i in range(len(line.values))]
        at = [(0.0, 0.0), *zip(ends, line.values)]
        path = " L ".join(f"{frame.x(x / span):.2f} {frame.y(y):.2f}" for x, y in at)
        parts.append(
            Markup(
                '<g data-series="u{}" class="a{} line"><path d="M {}" fill="none" stroke="currentColor" stroke-width="1.8" '
                'vector-effect="non-scaling-stroke" clip-path="url(#plot)"/></g>'
            ).format(line.number, line.colour, path)
        )
    axes = frame.axes(x=[0.0, span], seconds=unit, name=f"{name} since the beginning", value=of)
    return Chart(svg=frame.svg(label, axes, Markup("").join(parts)), lines=lines)


def by_day(lines: Sequence[Line], days: Sequence[str], *, label: str, of: str) -> Chart:
    """Stacked bars, one a day. ``days`` : names of the days; each line has a value for each of them."""
    sums = [sum(line.values[i] for line in lines) for i in range(len(days))]
    low, high = _range([0.0, *sums])
    frame = _Frame(low, high)
    parts, base = [frame.grid(of)], [0.0] * len(days)
    wide = (WIDTH - LEFT - RIGHT) / max(len(days), 1)
    for line in lines:
        bars = []
        for i, value in enumerate(line.values):
            if value <= 0:
                continue
            top, bottom = frame.y(base[i] + value), frame.y(base[i])
            base[i] += value
            bars.append(
                Markup(
                    '<g data-series="u{}"><title>{}</title><rect x="{:.1f}" y="{:.1f}" width="{:.1f}" height="{:.1f}" '
                    'class="a{}"/></g>'
                ).format(
                    line.number,
                    f"{line.name}, {days[i]}: {value:,.3g} {of}",
                    LEFT + i * wide + 0.12 * wide,
                    top,
                    0.76 * wide,
                    max(bottom - top, 0.5),
                    line.colour,
                )
            )
        parts += bars
    every = max(1, -(-len(days) // 14))
    for i in range(len(days) - 1, -1, -every):
        x = LEFT + (i + 0.5) * wide
        parts.append(
            Markup('<text x="{:.1f}" y="{}" text-anchor="middle">{}</text>').format(x, HEIGHT - 10, days[i][5:])
        )
    axes = frame.axes(x=[0.0, float(len(days))], seconds=0.0, name="", value=of)
    return Chart(svg=frame.svg(label, axes, Markup("").join(parts)), lines=lines)


@dataclass(frozen=True, slots=True)
class _Frame:
    """Position of values. ``low``, ``high`` : of y."""

    low: float
    high: float

    def x(self, part: float) -> float:
        return LEFT + part * (WIDTH - LEFT - RIGHT)

    def y(self, value: float) -> float:
        return TOP + (self.high - value) / (self.high - self.low) * (HEIGHT - TOP - BOTTOM)

    def grid(self, of: str) -> Markup:
        step = _step(self.high - self.low)
        values = [k * step for k in range(math.ceil(self.low / step), math.floor(self.high / step) + 1)]
        lines = [
            Markup(
                '<line x1="{}" x2="{}" y1="{:.1f}" y2="{:.1f}" class="{}"/><text x="{}" y="{:.1f}" text-anchor="end">{:,.6g}</text>'
            ).format(
                LEFT,
                WIDTH - RIGHT,
                self.y(v),
                self.y(v),
                "zero" if abs(v) < step / 1e6 else "grid",
                LEFT - 6,
                self.y(v) + 4,
                v,
            )
            for v in values
        ]
        return Markup("").join(lines) + Markup('<text x="{}" y="{}" class="of">{}</text>').format(0, 12, of)

    def times(self, span: float, name: str) -> Markup:
        step = _step(span)
        at = [k * step for k in range(math.floor(span / step + 1e-9) + 1)]
        labels = [
            Markup('<g id="xtick_{}"><text x="{:.1f}" y="{}" text-anchor="middle">{:g}</text></g>').format(
                i, self.x(v / span), HEIGHT - 12, v
            )
            for i, v in enumerate(at)
        ]
        return Markup('<g data-xaxis="">{}</g>').format(Markup("").join(labels)) + Markup(
            '<text x="{}" y="{}" text-anchor="end" class="of">{}</text>'
        ).format(WIDTH - RIGHT, HEIGHT - 1, name)

    def axes(self, *, x: list[float], seconds: float, name: str, value: str) -> str:
        box = [LEFT, TOP, WIDTH - LEFT - RIGHT, HEIGHT - TOP - BOTTOM]
        found = {"box": box, "x": x, "y": [self.low, self.high], "log": False, "per_cent": False}
        return json.dumps([{**found, "seconds": seconds, "name": name, "value": value}])

    def svg(self, label: str, axes: str, content: Markup) -> Markup:
        return Markup(
            '<svg class="drawn latest" width="100%" viewBox="0 0 {} {}" role="img" aria-label="{}" data-axes="{}">'
            '<clipPath id="plot"><rect x="{}" y="0" width="{}" height="{}"/></clipPath><g id="axes_1">{}</g></svg>'
        ).format(WIDTH, HEIGHT, label, axes, LEFT, WIDTH - LEFT - RIGHT, HEIGHT, content)


def _range(values: Sequence[float]) -> tuple[float, float]:
    """Limits that hold all values and 0, with some room."""
    low, high = min(0.0, *values), max(0.0, *values)
    room = max((high - low) * 0.06, 1e-3)
    return (low - room if low < 0 else 0.0), high + room


def _step(span: float) -> float:
    """A round distance of about five marks in a span."""
    raw = max(span / 8, 1e-9)
    power = 10.0 ** math.floor(math.log10(raw))
    return next((m * power for m in (1, 2, 5) if m * power >= raw), 10 * power)


def legend(chart: Chart) -> Markup:
    """A button for each line: pointed at it lights the line, pressed it hides it."""
    entries = [
        Markup(
            '<button type="button" data-key="u{}" aria-pressed="true"><svg viewBox="0 0 20 8" width="20" height="8" '
            'aria-hidden="true"><line x1="0" y1="4" x2="20" y2="4" stroke="var(--a{})" stroke-width="7"/></svg>{}</button>'
        ).format(line.number, line.colour, escape(line.name))
        for line in chart.lines
    ]
    return Markup('<div class="key">{}</div>').format(Markup("").join(entries))
