"""Figures over time: contention and apps in the system, GPUs in use. One run a policy, at most 380 steps a line."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from themis.model.units import Float
from themis.report.result import RunMetrics
from themis.report.series import Series
from themis.report.sketch import Axes
from themis.report.style import (
    WIDE,
    Drawing,
    Reading,
    Style,
    canvas,
    colour,
    dash,
    mark,
    of_width,
    policy_key,
    ticks,
    tidy,
)

HOUR, DAY = 3600.0, 86400.0
MOST_STEPS = 380


def time_unit(span: float) -> tuple[float, str]:
    """(seconds, name) of the unit in which this time reads best."""
    return (DAY, "days") if span > 5 * DAY else (HOUR, "hours") if span > 2 * HOUR else (60.0, "minutes")


def contention(groups: Sequence[tuple[str, RunMetrics]], style: Style, width: float = WIDE) -> Drawing:
    """Demand over capacity, and apps in the system, over time; a line a policy."""
    figure, rows = canvas(style, width, 4.1, rows=2)
    unit, name = _unit_of(groups)
    steps = MOST_STEPS if len(groups) <= 4 else MOST_STEPS // 2  # many lines over each other are read by their trend
    for i, (_, run) in enumerate(groups):
        zero = run.gpus_in_use.start
        edges, wanted = rebin(run.gpus_wanted, steps)
        _, service = rebin(run.gpus_in_service, steps)
        ratio = np.divide(wanted, service, out=np.full_like(wanted, np.nan), where=service > 0)
        _line(rows[0], ratio, (edges - zero) / unit, i, style)
        edges, apps = rebin(run.active_apps, steps)
        _line(rows[1], apps, (edges - zero) / unit, i, style)
    rows[0].axhline(1.0, color=style.ink, lw=0.8, ls=(0, (2, 2)), zorder=1)
    rows[0].set_ylabel("demand / capacity\n(GPUs / GPUs)")
    rows[1].set_ylabel("apps in the system")
    rows[1].set_xlabel(since(name))
    for axis in rows:
        axis.margins(x=0)
        axis.set_ylim(bottom=0)
        ticks(axis, "y", 4)
        tidy(axis, style)
    ticks(rows[1], "y", 4, integer=True)
    title = "Contention over time: GPUs that the apps in the system could use over GPUs in service; apps in the system"
    reads = tuple(
        Reading(name=since(name), value=value, seconds=unit) for value in ("demand / capacity", "apps in the system")
    )
    key = policy_key([label for label, _ in groups])
    return Drawing(name=of_width("contention", width), title=title, figure=figure, key=key, reads=reads)


def usage(groups: Sequence[tuple[str, RunMetrics]], style: Style, width: float = WIDE) -> Drawing:
    """GPUs in use over time, those in restart darker; one row a policy."""
    figure, rows = canvas(style, width, 0.55 + 1.15 * len(groups), rows=len(groups), share_y=True)
    unit, name = _unit_of(groups)
    for i, (axis, (label, run)) in enumerate(zip(rows, groups)):
        zero = run.gpus_in_use.start
        for series, alpha, note in (
            (run.gpus_in_use, 0.45, "under lease"),
            (run.gpus_starting, 0.95, "restarting"),
        ):
            edges, value = rebin(series, MOST_STEPS)
            area = axis.stairs(value, (edges - zero) / unit, fill=True, color=colour(i), lw=0, alpha=alpha)
            mark(area, f"p{i}", style, note)
        edges, value = rebin(run.gpus_in_service, MOST_STEPS)
        line = axis.stairs(value, (edges - zero) / unit, baseline=None, color=style.ink, lw=0.8, ls=(0, (4, 2)))
        mark(line, f"p{i}", style, "in service")
        ticks(axis, "y", 3, integer=True)
        axis.set_title(label, loc="left", fontsize=9, fontweight="bold", pad=3, color=style.ink)
        axis.margins(x=0)
        axis.set_ylim(bottom=0)
        tidy(axis, style)
    rows[-1].set_xlabel(since(name))
    figure.supylabel("GPUs in use", fontsize=9, color=style.ink)
    title = "GPUs under lease over time (darker: restarting, not yet training; dashed: in service)"
    read = Reading(name=since(name), value="GPUs", seconds=unit)
    return Drawing(name=of_width("gpu-use", width), title=title, figure=figure, reads=(read,) * len(groups))


def shares(groups: Sequence[tuple[str, RunMetrics]], style: Style, most: int = 6) -> Drawing:
    """Each user's part of the GPUs in service over time, stacked, as in Gavel's figures 12 and 13; a row a policy.

    ``most`` : users with an area of their own, those with the most GPU time; the others share one.
    """
    figure, rows = canvas(style, WIDE, 0.55 + 1.5 * len(groups), rows=len(groups), share_y=True)
    unit, name = _unit_of(groups)
    time = dict[str, float]()
    for _, run in groups:
        held = run.gantt.end - run.gantt.start
        for user, seconds in zip((run.apps[a].user for a in run.gantt.app.tolist()), held.tolist()):
            time[user] = time.get(user, 0.0) + seconds
    users = sorted(time, key=lambda user: (-time[user], user))
    named = users[:most] if len(users) > most + 1 else users
    labels = [*named, *["all others"] * (len(users) > len(named))]
    for axis, (label, run) in zip(rows, groups):
        zero, end = run.gpus_in_use.start, run.gpus_in_use.end
        edges, row = np.linspace(zero, max(end, zero + 1e-9), MOST_STEPS + 1), {user: i for i, user in enumerate(named)}
        held = np.zeros((len(labels), MOST_STEPS))
        for app, start, stop in zip(run.gantt.app.tolist(), run.gantt.start.tolist(), run.gantt.end.tolist()):
            part = np.clip(np.minimum(edges[1:], stop) - np.maximum(edges[:-1], start), 0.0, None)
            held[row.get(run.apps[app].user, len(labels) - 1)] += part / np.diff(edges)
        stacked = np.cumsum(held / max(run.gpus, 1), axis=0)
        for i in reversed(range(len(labels))):
            axis.stairs(stacked[i], (edges - zero) / unit, fill=True, color=colour(i), lw=0)
        axis.set_title(label, loc="left", fontsize=9, fontweight="bold", pad=3, color=style.ink)
        axis.margins(x=0)
        axis.set_ylim(0, 1.02)
        ticks(axis, "y", 3)
        tidy(axis, style)
    rows[-1].set_xlabel(since(name))
    figure.supylabel("share of GPUs", fontsize=9, color=style.ink)
    title = "Share of the GPUs by user over time"
    return Drawing(name="shares", title=title, figure=figure, key=policy_key(labels))


def since(name: str) -> str:
    """The label of an axis of time in this unit."""
    return f"{name} since the first arrival"


def _line(axis: Axes, value: Float, edges: Float, i: int, style: Style) -> None:
    mark(axis.stairs(value, edges, baseline=None, color=colour(i), ls=dash(i), lw=1.5, zorder=3), f"p{i}", style)


def _unit_of(groups: Sequence[tuple[str, RunMetrics]]) -> tuple[float, str]:
    return time_unit(max((run.gpus_in_use.end - run.gpus_in_use.start for _, run in groups), default=0.0))


def rebin(series: Series, most: int) -> tuple[Float, Float]:
    """(edges, values) of at most ``most`` bins; areas stay as they are."""
    if not len(series.value):
        return np.array([0.0, 1e-9]), np.zeros(1)
    edges = series.edges
    area = np.concatenate([[0.0], np.cumsum(series.value * np.diff(edges))])
    at = np.unique(np.linspace(0, len(edges) - 1, min(most, len(series.value)) + 1).round().astype(int))
    return edges[at], np.diff(area[at]) / np.maximum(np.diff(edges[at]), 1e-12)
