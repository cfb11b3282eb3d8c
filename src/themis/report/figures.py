"""The figures of a report: each is described once and drawn into a page or into files (``style``).

Distributions pool the seeds of a policy; bars are means over seeds with a 95 % confidence interval; what runs over
time, users and the Gantt show the first seed of each policy. What Themis' §6 shows is here: rho (figures 9 and 10),
GPU time (11, 12), placement scores (13), and who had which GPU when.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np

from themis.errors import InputError
from themis.model.units import Float
from themis.report.columns import HOUR, MINUTE
from themis.report.compare import ComparisonRow, caption, is_brief
from themis.report.forecast_accuracy import forecast_accuracy
from themis.report.gangs_over_time import over_time
from themis.report.gantt import gantt
from themis.report.intervals import Interval, t_interval
from themis.report.result import RunMetrics
from themis.report.sketch import Axes
from themis.report.style import (
    CRASH,
    FILE,
    LOCALITY_COLOURS,
    RESTART,
    WIDE,
    Drawing,
    Reading,
    Style,
    canvas,
    colour,
    dash,
    log_x,
    mark,
    of_width,
    panel,
    policy_key,
    save,
    shortened,
    ticks,
    tidy,
)
from themis.report.timeline import contention, usage
from themis.report.users import by_user

FORMATS = ("svg", "png")
LOCALITIES = ("slot", "machine", "rack", "cross-rack")
MOST_USERS = 8
"""Users in their figure; the table has more."""


def write_figures(folder: Path, rows: Sequence[ComparisonRow], kind: str = "svg") -> list[Path]:
    """Write every figure of a report into a folder and return where they are.

    Raises
    ------
    InputError : the format is unknown, or a file cannot be written.
    """
    if kind not in FORMATS:
        raise InputError(f"figure format is {kind!r}, expected one of {', '.join(FORMATS)}.")
    heading = caption([run for row in rows for run in row.runs])
    paths = []
    try:
        folder.mkdir(parents=True, exist_ok=True)
        for drawing in draw(rows, FILE):
            path = folder / f"{re.sub(r'[^A-Za-z0-9._=-]+', '-', drawing.name)}.{kind}"
            save(drawing, path, heading)
            paths.append(path)
    except OSError as error:
        raise InputError(f"cannot write figures into {folder}: {error.strerror}.") from None
    return paths


def draw(rows: Sequence[ComparisonRow], style: Style) -> list[Drawing]:
    """Draw all figures of these runs."""
    first = [(row.label, row.runs[0]) for row in rows]
    return [
        *distributions(rows, style),
        contention(first, style),
        usage(first, style),
        *placement(rows, style),
        *gpu_time(rows, style),
        users(first, style),
        *planned(first, style),
        *(over_time(label, run, style) for label, run in first if run.gangs),
        *(gantt(label, run, style, of=len(first)) for label, run in first),
    ]


def planned(first: Sequence[tuple[str, RunMetrics]], style: Style) -> list[Drawing]:
    """Accuracy of forecasts of finishes; empty if no policy made any."""
    some = [(i, label, run) for i, (label, run) in enumerate(first) if len(run.plans.life)]
    return [forecast_accuracy(some, style)] if some else []


# ---- distributions over apps ---------------------------------------------------------------------------------------


def distributions(rows: Sequence[ComparisonRow], style: Style) -> list[Drawing]:
    """CDFs over completed apps of rho in three forms and of JCT; seeds of a policy are pooled."""
    unit, name = _unit(rows)
    return [
        _cdf("rho-reference", "Time over that on one's own share", "× own share", 1.0, rows, style),
        _cdf("rho-paper", "Finish-time fairness, the paper's form", "ρ, paper's T_id", 1.0, rows, style),
        _cdf("rho-exact", "Finish-time fairness, exact form", "ρ, exact T_id", 1.0, rows, style),
        _cdf("jct", "App completion time (JCT)", f"JCT ({name})", unit, rows, style),
    ]


def _cdf(name: str, title: str, label: str, scale: float, rows: Sequence[ComparisonRow], style: Style) -> Drawing:
    field = name.replace("-", "_")
    drawing, axis = panel(name, f"{title}: CDF over completed apps", style)
    given = [np.array([getattr(app, field) / scale for run in row.runs for app in run.completed]) for row in rows]
    pooled = [np.sort(x[~np.isnan(x)]) for x in given]
    mixed = len({run.simulated for row in rows for run in row.runs}) > 1
    key = [
        (label, hue, "--" if mixed and row.runs[0].simulated else line)
        for row, (label, hue, line) in zip(rows, policy_key([row.label for row in rows]))
    ]
    for i, x in enumerate(pooled):
        if len(x):
            x, y = _thin(x, np.arange(1, len(x) + 1) / len(x))
            (line,) = axis.step(
                np.append(x[:1], x), np.append(0.0, y), where="post", color=key[i][1], ls=key[i][2], lw=1.6, zorder=3
            )
            mark(line, f"p{i}", style)
    if field != "jct":
        axis.axvline(1.0, color=style.ink, lw=0.8, ls=(0, (2, 2)), zorder=1)
    axis.set_xlabel(label + _scale_of(axis, np.concatenate(pooled), at_least=1.1 if field != "jct" else 1e-3))
    axis.set_ylabel("fraction of apps")
    axis.set_ylim(0, 1.02)
    read = Reading(
        name=label.replace(f"({name})", name) if field == "jct" else label, value="of apps at or below", per_cent=True
    )
    return replace(drawing, key=tuple(key), reads=(read,))


def _scale_of(axis: Axes, x: Float, *, at_least: float) -> str:
    """Limits of a CDF's axis; a long tail is drawn on a log scale, and the label says so."""
    highest = max(float(x.max(initial=0.0)) * 1.03, at_least)
    if not len(x) or x.min() <= 0 or highest < 25 * np.median(x):
        axis.set_xlim(0, highest)
        ticks(axis, "x", 6)
        return ""
    log_x(axis)
    axis.set_xlim(float(x.min()) / 1.1, highest * 1.1)
    return ", log scale"


def _thin(x: Float, y: Float, most: int = 600) -> tuple[Float, Float]:
    """Evenly spaced ranks of a long CDF, ends kept."""
    if len(x) <= most:
        return x, y
    at = np.unique(np.linspace(0, len(x) - 1, most).round().astype(int))
    return x[at], y[at]


# ---- placement -----------------------------------------------------------------------------------------------------


def placement(rows: Sequence[ComparisonRow], style: Style) -> list[Drawing]:
    """Placement scores: their distribution over leased GPU time, and how far gangs were spread."""
    scores = _scores(rows, style)
    spread, axis = panel(
        "localities", "Leased GPU time by the widest boundary that gangs span", style, height=_tall(rows)
    )
    for i, row in enumerate(rows):
        seconds = np.sum([run.localities for run in row.runs], axis=0)
        share = 100 * seconds / max(float(seconds.sum()), 1e-12)
        axis.barh(i, share, left=np.cumsum(share) - share, height=0.62, color=LOCALITY_COLOURS, lw=0)
    axis.set_xlim(0, 100)
    axis.set_xlabel("leased GPU time (%)")
    _policies_down(axis, rows, style)
    key = tuple((name, c, "-") for name, c in zip(LOCALITIES, LOCALITY_COLOURS))
    return [scores, Drawing(name=spread.name, title=spread.title, figure=spread.figure, key=key)]


def _scores(rows: Sequence[ComparisonRow], style: Style) -> Drawing:
    drawing, axis = panel("placement", "Placement scores (1 is best): CDF over leased GPU time", style)
    lowest = 1.0
    for i, row in enumerate(rows):
        seconds: dict[float, float] = {}
        for run in row.runs:
            for score, s in run.placements:
                seconds[score] = seconds.get(score, 0.0) + s
        if not seconds:
            continue
        x = np.array(sorted(seconds))
        y = np.cumsum([seconds[s] for s in x.tolist()])
        lowest = min(lowest, float(x[0]))
        # From the left edge to the right one, so that a policy that is always at 1 can be seen too.
        x, y = np.concatenate([[0.0], x, [1.2]]), np.concatenate([[0.0], y / y[-1], [1.0]])
        (line,) = axis.step(x, y, where="post", color=colour(i), ls=dash(i), lw=1.6, zorder=3)
        mark(line, f"p{i}", style)
    left = max(0.0, lowest - 0.06)
    axis.set_xlim(left, 1 + 0.04 * (1 - left))
    axis.set_ylim(0, 1.02)
    axis.set_xlabel("placement score, 1 / slowdown")
    axis.set_ylabel("fraction of leased GPU time")
    read = Reading(name="placement score", value="of leased GPU time at or below", per_cent=True)
    return replace(drawing, key=policy_key([r.label for r in rows]), reads=(read,))


def _unit(rows: Sequence[ComparisonRow]) -> tuple[float, str]:
    """(seconds, name) in which times read best."""
    return (MINUTE, "minutes") if is_brief([run for row in rows for run in row.runs]) else (HOUR, "hours")


# ---- GPU time, and lost GPU time -----------------------------------------------------------------------------------


def gpu_time(rows: Sequence[ComparisonRow], style: Style) -> list[Drawing]:
    """GPU time of the whole workload, GPU time lost, and restarts; a bar a policy."""
    unit, name = _unit(rows)
    used, axis = panel("gpu-time", "GPU time that the workload took (lower: better use)", style, height=_tall(rows))
    _bars(axis, rows, [("gpu_seconds", None)], unit, style)
    axis.set_xlabel(f"GPU time (GPU-{name})")
    lost, axis = panel("lost-gpu-time", "GPU time lost to restarts and crashes", style, height=_tall(rows))
    _bars(axis, rows, [("restart_seconds", RESTART), ("crash_seconds", CRASH)], unit, style)
    axis.set_xlabel(f"lost GPU time (GPU-{name})")
    restarts, axis = panel("restarts", "Restarts: grants beyond a job's first", style, height=_tall(rows))
    _bars(axis, rows, [("restarts", None)], 1.0, style)
    axis.set_xlabel("restarts")
    key = (("restarts", RESTART, "-"), ("crashes", CRASH, "-"))
    return [used, Drawing(name=lost.name, title=lost.title, figure=lost.figure, key=key), restarts]


def _bars(
    axis: Axes, rows: Sequence[ComparisonRow], parts: Sequence[tuple[str, str | None]], scale: float, style: Style
) -> None:
    """Means over seeds, stacked, each with its number; a whisker is the 95 % interval of the sum."""
    highest = 0.0
    for i, row in enumerate(rows):
        total = t_interval([sum(getattr(run, name) for name, _ in parts) / scale for run in row.runs])
        left = 0.0
        for name, paint in parts:
            value = float(np.mean([getattr(run, name) for run in row.runs])) / scale
            (bar,) = axis.barh(i, value, left=left, height=0.62, color=paint or colour(i), lw=0)
            mark(bar, f"p{i}", style)
            left += value
        highest = max(highest, _end_of(total))
        if total.half == total.half:
            axis.errorbar(total.mean, i, xerr=total.half, color=style.ink, lw=1.0, capsize=2.5, capthick=1.0)
    for i, row in enumerate(rows):
        total = t_interval([sum(getattr(run, name) for name, _ in parts) / scale for run in row.runs])
        text = f"{total.mean:,.0f}" if highest >= 20 or scale == 1 else f"{total.mean:,.1f}"
        x = _end_of(total) + 0.02 * highest
        axis.text(x, i, text, va="center", fontsize=8.5, color=style.ink)
    axis.set_xlim(0, max(highest * 1.2, 1e-9))
    ticks(axis, "x", 5, text=lambda value: f"{value:,.6g}")
    _policies_down(axis, rows, style)


def _end_of(cell: Interval) -> float:
    return cell.mean + (cell.half if cell.half == cell.half else 0.0)


def _policies_down(axis: Axes, rows: Sequence[ComparisonRow], style: Style) -> None:
    axis.set_yticks(range(len(rows)), [shortened(row.label, 22) for row in rows])
    axis.set_ylim(len(rows) - 0.4, -0.6)
    tidy(axis, style, grid="x")


def _tall(rows: Sequence[ComparisonRow]) -> float:
    return 0.8 + max(0.54 * min(len(rows), 4), 0.27 * len(rows))  # inches; few bars stay slim


# ---- users ---------------------------------------------------------------------------------------------------------


def users(groups: Sequence[tuple[str, RunMetrics]], style: Style, width: float = WIDE) -> Drawing:
    """Worst (filled) and median (open) of each user's apps, times their own share; a line a policy."""
    most = sorted(by_user(groups[0][1]), key=lambda row: (-row.gpu_seconds, row.user))[:MOST_USERS]
    names = [row.user for row in most]
    height = 0.9 + max(len(names), 1) * max(0.32, 0.11 * len(groups) + 0.12)
    figure, axes = canvas(style, width, height)
    for axis in axes:
        for i, (_, run) in enumerate(groups):
            offset = (i - (len(groups) - 1) / 2) * 0.78 / len(groups)
            found = {row.user: row for row in by_user(run)}
            rows = [found.get(name) for name in names]
            y = np.arange(len(names)) + offset
            worst = np.array([row.rho_reference_worst if row else np.nan for row in rows])
            median = np.array([row.rho_reference_median if row else np.nan for row in rows])
            drawn = (
                axis.hlines(y, median, worst, color=colour(i), lw=1.3, ls=dash(i), zorder=2),
                axis.scatter(worst, y, s=17, color=colour(i), lw=0, zorder=3),
                axis.scatter(median, y, s=13, facecolor=style.paper, edgecolor=colour(i), lw=1.1, zorder=3),
            )
            for artist in drawn:
                mark(artist, f"p{i}", style)
        axis.axvline(1.0, color=style.ink, lw=0.8, ls=(0, (2, 2)), zorder=1)
        axis.set_xlim(0, max(axis.get_xlim()[1], 1.1))
        ticks(axis, "x", 7)
        axis.set_xlabel("× own share: median (open) and worst (filled) app")
        axis.set_ylim(len(names) - 0.4, -0.6)
        tidy(axis, style, grid="x")
    for between in range(1, len(names)):
        for axis in axes:
            axis.axhline(between - 0.5, color=style.faint, lw=0.7, zorder=0)
    axes[0].set_yticks(range(len(names)), [shortened(name, 22) for name in names])
    title = f"Fairness by user: worst and median app, times the own share ({len(names)} users with the most GPU time)"
    return Drawing(
        name=of_width("users", width),
        title=title,
        figure=figure,
        key=policy_key([label for label, _ in groups]),
    )
