"""Figure of elastic jobs of a run: GPUs, goodput, statistical efficiency and batch size over time (``report.gangs``)."""

from __future__ import annotations

import math

import numpy as np

from themis.model.units import Float
from themis.report.gangs import MOST, Piece
from themis.report.look.palette import APP_COLOURS
from themis.report.result import RunMetrics
from themis.report.style import WIDE, Drawing, Reading, Style, canvas, of_width, shortened, ticks, tidy
from themis.report.timeline import since, time_unit

MOST_JOBS = 6
"""Jobs with a line: those with the most GPU time."""


def over_time(label: str, run: RunMetrics, style: Style, width: float = WIDE) -> Drawing:
    """The jobs with the most GPU time: their GPUs, goodput, efficiency and batch size over time; a gap while they do not train."""
    of: dict[int, list[Piece]] = {}
    for piece in run.gangs:
        if piece.end > piece.start:
            of.setdefault(piece.job, []).append(piece)
    shown = sorted(sorted(of, key=lambda j: (-run.jobs.gpu_seconds[j], j))[:MOST_JOBS])
    adaptive = any(not math.isnan(piece.batch) for j in shown for piece in of[j])
    names = ["GPUs", "goodput\n(part of its largest)", *(["efficiency", "batch size"] if adaptive else [])]
    figure, rows = canvas(style, width, 0.6 + 1.25 * len(names), rows=len(names))
    zero = run.gpus_in_use.start
    unit, name = time_unit(run.gpus_in_use.end - zero)
    key = []
    for i, j in enumerate(shown):
        paint = APP_COLOURS[i % len(APP_COLOURS)]
        key.append((shortened(run.jobs.name[j]), paint, "-"))
        most = max(piece.goodput for piece in of[j]) or 1.0
        values = [[p.gpus, p.goodput / most, p.efficiency, p.batch] for p in of[j]]
        edges, columns = _with_gaps(of[j], np.array(values, dtype=np.float64))
        for axis, value in zip(rows, columns.T):
            axis.stairs(value, (edges - zero) / unit, baseline=None, color=paint, lw=1.4, zorder=3)
    for axis, text in zip(rows, names):
        axis.set_ylabel(text)
        axis.margins(x=0)
        axis.set_ylim(bottom=0)
        ticks(axis, "y", 4)
        tidy(axis, style)
    rows[-1].set_xlabel(since(name))
    title = f"Elastic jobs over time under {label}, seed {run.seed}: those with the most GPU time"
    reads = tuple(Reading(name=since(name), value=text.partition("\n")[0], seconds=unit) for text in names)
    return Drawing(name=of_width(f"gangs-{label}", width), title=title, figure=figure, key=tuple(key), reads=reads)


def _with_gaps(pieces: list[Piece], values: Float) -> tuple[Float, Float]:
    """(edges [E + 1], values [E, columns]) of stairs that are NaN between pieces."""
    edges, out = [pieces[0].start], list[Float]()
    for piece, row in zip(pieces, values):
        if piece.start > edges[-1]:
            edges.append(piece.start)
            out.append(np.full(values.shape[1], np.nan))
        edges.append(piece.end)
        out.append(row)
    return np.array(edges), np.array(out)


def said(run: RunMetrics) -> str:
    """GPU hours of elastic jobs, and what their starts took, in a sentence."""
    jobs = {piece.job for piece in run.gangs}
    lost = sum(piece.start_s * piece.gpus for piece in run.gangs)
    held = float(sum(run.jobs.gpu_seconds[j] for j in jobs))
    seconds = sum(piece.start_s for piece in run.gangs)
    first = f"Of the first {MOST:,} stretches of training: " if len(run.gangs) == MOST else ""
    return (
        f"{first}{len(jobs):,} elastic jobs held {held / 3600:,.1f} GPU hours; their gangs took {seconds:,.0f} s to start, "
        f"{lost / 3600:,.1f} GPU hours."
    )
