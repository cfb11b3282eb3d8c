"""The report as one HTML file that needs nothing else: no network, no fonts, no scripts from elsewhere.

Its size is bounded whatever was run: curves and Gantts are thinned where they are drawn, and tables keep their worst rows.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup

from themis.errors import InputError, counted
from themis.report import course, figures, gangs_over_time, gantt, look, timeline
from themis.report.columns import HOUR, MINUTE, SOONER, ComparisonColumn, RowField, cells_of
from themis.report.compare import ComparisonRow, caption, columns_for, compare, is_brief, kind_of
from themis.report.definitions import DEFINITIONS, RHO_DEFINITIONS
from themis.report.intervals import Interval
from themis.report.look.palette import POLICY_COLOURS
from themis.report.paired import paired
from themis.report.plans import PlanRow
from themis.report.result import RunMetrics
from themis.report.rows import AppRow
from themis.report.sentences import sooner
from themis.report.style import (
    CSS_DASHES,
    DASHES,
    PAGE,
    PHONE,
    VARIABLES,
    WIDE,
    Drawing,
    dash,
    inline_svg,
    policy_key,
)
from themis.report.summary import summary
from themis.report.table import BRIEF
from themis.report.users import UserRow, by_user

MOST_APPS = (400, 2000)
"""Rows in one policy's table of apps, and in all of them; the worst are shown."""
MOST_USERS = (200, 1000)
MOST_PLANS = (400, 1000)
WORDS = {title: words for title, words in BRIEF.items() if words} | {
    "rho_reference_median": "median app,\n× own share",
    "rho_reference_above_1_1": "later than\n1.1 ×, %",
}
"""Titles of numbers of fairness on the page; its other forms are shown on demand, with their symbols."""
SYMBOLS = ("rho_paper", "rho_exact", "rho_attainable")
MOST_LIT = 400
"""Apps that a user's row lights in the figures."""


def write_report(path: str | Path, runs: Sequence[RunMetrics], *, title: str = "", baseline: str = "") -> Path:
    """Write the report of these runs and return where it is.

    Raises
    ------
    InputError : there are no runs, no run has the baseline's label, or the file cannot be written.
    """
    path = Path(path)
    text = render(runs, title=title, baseline=baseline)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
    except OSError as error:
        raise InputError(f"cannot write the report {path}: {error.strerror}.") from None
    return path


def render(runs: Sequence[RunMetrics], *, title: str = "", baseline: str = "") -> str:
    """The report as HTML; with a baseline, also what each policy differs from it by, over common seeds."""
    if not runs:
        raise InputError("a report needs at least one run; none was given.")
    rows = compare(runs)
    first = [(row.label, row.runs[0]) for row in rows]
    seeds = max(len(row.runs) for row in rows)
    many_runs = " The first seed of each policy." if seeds > 1 else ""
    environment = Environment(
        loader=PackageLoader("themis.report", "templates"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    gantts = [_gantt(label, run, len(first)) for label, run in first]
    used = [(i, _in_words(column)) for i, column in _used(rows, columns_for(runs))]
    one = first[0][1] if len(rows) == 1 else None
    brief = is_brief(runs)
    app_columns, user_columns, plan_columns = (_in_units(cells_of(row), brief) for row in (AppRow, UserRow, PlanRow))
    planned = [(label, run) for label, run in first if run.plans.rows]
    return environment.get_template("report.html.j2").render(
        title=title or f"{runs[0].workload} on {runs[0].cluster}",
        kind=kind_of(runs),
        caption=caption(runs),
        summary=summary(rows, columns_for(runs)),
        seeds=seeds,
        first_seed=many_runs,
        look=Markup(f"{look.tokens()}{look.text('base.css')}"),
        scripts=Markup(f"{look.text('tables.js')}{look.text('figures.js')}"),
        columns=[_Head.of(c) for _, c in used],
        table=[_table_row(i, row, used) for i, row in enumerate(rows)],
        differences=_differences(rows, baseline, used) if baseline else None,
        policy_key=_key(policy_key([row.label for row in rows]), lights=True),
        one=one is not None,
        course=_both(partial(course.course, one)) if one else "",
        course_key=_key(course.course(one).key) if one else [],
        course_left_out=course.left_out(one) if one else 0,
        distributions=[_figure(d) for d in figures.distributions(rows, PAGE) if d.name in ("rho-reference", "jct")],
        contention=_both(partial(timeline.contention, first, PAGE)),
        usage=_both(partial(timeline.usage, first, PAGE)),
        elastic=[
            (
                label,
                gangs_over_time.said(run),
                _both(partial(gangs_over_time.over_time, label, run, PAGE)),
                _key(drawn.key),
            )
            for label, run in first
            if run.gangs
            for drawn in [gangs_over_time.over_time(label, run, PAGE)]
        ],
        placement=[_figure(d) for d in figures.placement(rows, PAGE)],
        gpu_time=[_figure(d) for d in figures.gpu_time(rows, PAGE)],
        users=_both(partial(figures.users, first, PAGE)),
        gantts=gantts,
        hover=any('data-series="a' in one.svg for one in gantts),
        users_tables=[_users(label, run, user_columns, len(first)) for label, run in first],
        apps_tables=[_apps(label, run, app_columns, len(first)) for label, run in first],
        coverage=[text for label, run in first if (text := _coverage(label, run))],
        foresight=[_figure(d) for d in figures.planned(first, PAGE)],
        plans=[_quality(label, run) for label, run in planned],
        plans_tables=[_plans(label, run, plan_columns, len(planned)) for label, run in planned],
        plan_head=_heads(plan_columns),
        user_head=_heads(user_columns),
        app_head=_heads(app_columns),
        definitions=[(name.replace("_", " "), text) for name, text in DEFINITIONS.items()],
        conditions=_conditions(runs),
    )


# ---- figures -------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class _Figure:
    title: str
    svg: Markup
    key: list[_KeyEntry]


@dataclass(frozen=True, slots=True, kw_only=True)
class _Gantt:
    label: str
    seed: int
    svg: Markup
    key: list[_KeyEntry]
    dropped: int


def _svg(drawing: Drawing) -> Markup:
    return Markup(inline_svg(drawing))


def _both(draw: Callable[[float], Drawing]) -> Markup:
    """A wide figure for the page, and one for narrow screens."""
    narrow = inline_svg(draw(PHONE)).replace("<svg ", '<svg class="phone" ', 1)
    return _svg(draw(WIDE)) + Markup(narrow)


def _figure(drawing: Drawing) -> _Figure:
    """A panel; the legend of policies stands once, above the panels, so that panels keep only legends of their own."""
    own = () if drawing.name in ("rho-reference", "rho-exact", "jct", "placement") else drawing.key
    return _Figure(title=drawing.title, svg=_svg(drawing), key=_key(own))


_KeyEntry = tuple[str, str, str, str]
"""(series that it lights, or none; text; colour and dashes as CSS knows them)."""


def _key(entries: Sequence[tuple[str, str, Any]], *, lights: bool = False) -> list[_KeyEntry]:
    """A legend; ``lights`` where its i-th entry is the i-th policy."""
    return [
        (f"p{i}" if lights else "", text, VARIABLES.get(colour, colour), CSS_DASHES[DASHES.index(dash)])
        for i, (text, colour, dash) in enumerate(entries)
    ]


def _gantt(label: str, run: RunMetrics, of: int) -> _Gantt:
    drawn = gantt.gantt(label, run, PAGE, of=of)
    svg = Markup(gantt.inline_gantt(drawn, run))
    return _Gantt(label=label, seed=run.seed, svg=svg, key=_key(drawn.key), dropped=run.gantt.dropped)


# ---- policies side by side -----------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class _Head:
    name: str
    title: str
    definition: str
    extra: bool

    @classmethod
    def of(cls, column: ComparisonColumn) -> _Head:
        title = column.title.replace("-\n", "").strip()
        return cls(name=column.name, title=title, definition=column.definition, extra=not column.short)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Shown:
    text: str
    spread: str
    best: bool
    sort: float | str
    extra: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class _TableRow:
    series: str
    label: str
    sample: tuple[str, str]
    cells: list[_Shown]


def _used(rows: Sequence[ComparisonRow], columns: Sequence[ComparisonColumn]) -> list[tuple[int, ComparisonColumn]]:
    """Columns in which any policy has a number."""
    return [(i, c) for i, c in enumerate(columns) if any(not math.isnan(row.cells[i].mean) for row in rows)]


def _table_row(i: int, row: ComparisonRow, used: Sequence[tuple[int, ComparisonColumn]]) -> _TableRow:
    cells = [_shown(c, row.cells[k], row.best[k]) for k, c in used]
    return _TableRow(series=f"p{i}", label=row.label, sample=_sample(i), cells=cells)


def _in_words(column: ComparisonColumn) -> ComparisonColumn:
    shown = "all" if column.name.startswith(SYMBOLS) and column.shown == "short" else column.shown
    return replace(column, title=WORDS.get(column.name, column.title), shown=shown)


def _sample(i: int) -> tuple[str, str]:
    """Colour and dashes of the i-th policy."""
    return f"var(--p{i % len(POLICY_COLOURS)})", CSS_DASHES[DASHES.index(dash(i))]


def _shown(column: ComparisonColumn, cell: Interval, best: bool) -> _Shown:
    return _Shown(
        text=column.text(cell.mean),
        spread="" if math.isnan(cell.half) else f"±{column.text(cell.half)}",
        best=best,
        sort="" if math.isnan(cell.mean) else round(cell.mean, 9),
        extra=not column.short,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class _Differences:
    baseline: str
    note: str
    rows: list[_TableRow]


def _differences(
    rows: Sequence[ComparisonRow], baseline: str, used: Sequence[tuple[int, ComparisonColumn]]
) -> _Differences:
    columns = [c for _, c in used]
    found = paired(rows, baseline, columns)
    shown = [
        _TableRow(
            series=f"p{i}",
            label=row.label,
            sample=_sample(i),
            cells=[_difference(c, cell) for c, cell in zip(columns, found.differences[row.label])],
        )
        for i, row in enumerate(rows)
        if row.label != baseline
    ]
    return _Differences(baseline=baseline, note=found.note, rows=shown)


def _difference(column: ComparisonColumn, cell: Interval) -> _Shown:
    known = not math.isnan(cell.mean)
    return _Shown(
        text=column.signed(cell.mean) + ("*" if cell.excludes_zero else ""),
        spread="" if math.isnan(cell.half) else f"±{column.text(cell.half)}",
        best=cell.excludes_zero,
        sort=round(cell.mean, 9) if known else "",
        extra=not column.short,
    )


# ---- users and apps ------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class _Group:
    label: str
    seed: int
    left_out: int
    rows: list[list[tuple[str, Any]]]
    lights: list[str]
    """Figure elements that each row highlights; empty where none."""


def _apps(label: str, run: RunMetrics, columns: Sequence[RowField], of: int) -> _Group:
    order = sorted(run.apps, key=lambda app: -app.rho_reference if app.rho_reference == app.rho_reference else math.inf)
    return _group(label, run, order, columns, _most(MOST_APPS, of), lambda app: f"a{app.app}")


def _users(label: str, run: RunMetrics, columns: Sequence[RowField], of: int) -> _Group:
    theirs: dict[str, str] = {}
    for app in run.apps[:MOST_LIT]:
        theirs[app.user] = f"{theirs.get(app.user, '')} a{app.app}".strip()
    return _group(label, run, by_user(run), columns, _most(MOST_USERS, of), lambda row: theirs.get(row.user, ""))


def _plans(label: str, run: RunMetrics, columns: Sequence[RowField], of: int) -> _Group:
    order = sorted(run.plans.rows, key=lambda row: -abs(row.off) if row.off == row.off else -math.inf)
    return _group(label, run, order, columns, _most(MOST_PLANS, of))


def _coverage(label: str, run: RunMetrics) -> str:
    """Coverage of the run's own 80 % intervals of apps' starts and finishes; empty without any."""
    c = run.coverage
    if not c.finishes:
        return ""
    starts = f", and {c.of_starts:.0%} of {counted(c.starts, 'wait')}" if c.starts else ""
    return f"{label}: of forecasts with an 80 % interval, {c.of_finishes:.0%} of {c.finishes} finishes held{starts}."


def _quality(label: str, run: RunMetrics) -> str:
    """Accuracy of a policy's forecasts, in words."""
    cut = (
        f" {counted(run.plans.cut, 'plan')} ended at the limit of the search, short of the gap asked for."
        if run.plans.cut
        else ""
    )
    if run.plans.uncontested:
        cut += (
            f" {run.plans.uncontested} of {counted(run.plans.made, 'plan')} had nothing to solve: every job got all the rounds"
            " that it could use."
        )
    if math.isnan(run.plans.error):
        return f"{label}: no job has ended yet.{cut}"
    within = "" if math.isnan(run.plans.within) else f"; {run.plans.within:.0%} of those with an interval ended in it"
    if not math.isnan(run.plans.started_within):
        within += f", {run.plans.started_within:.0%} of those that were to wait started in theirs"
    return f"{label}: half of the jobs ended within {run.plans.error:.0%} of the time that was forecast at first{within}.{cut}"


def _in_units(cells: Sequence[RowField], brief: bool) -> list[RowField]:
    """Columns that the page shows, in minutes where nothing takes an hour."""
    return [
        replace(cell, title=f"{cell.title.removesuffix('h')}min", scale=MINUTE)
        if brief and cell.scale == HOUR
        else cell
        for cell in cells
        if cell.title
    ]


def _most(limits: tuple[int, int], of: int) -> int:
    return max(20, min(limits[0], limits[1] // of))


def _group(
    label: str,
    run: RunMetrics,
    order: Sequence[Any],
    columns: Sequence[RowField],
    most: int,
    light: Callable[[Any], str] = lambda _: "",
) -> _Group:
    rows = [[_text(getattr(row, cell.name), cell.scale) for cell in columns] for row in order[:most]]
    return _Group(
        label=label, seed=run.seed, left_out=max(len(order) - most, 0), rows=rows, lights=[*map(light, order[:most])]
    )


def _text(value: Any, by: float) -> tuple[str, Any]:
    """(text, what to sort by)."""
    if isinstance(value, str) or by == 0:
        return str(value), str(value)
    if math.isnan(value):
        return "–", ""
    if by == SOONER:
        return sooner(value), f"{value:.6g}"
    return f"{value / by:,.{2 if by == 1 else 1}f}", f"{value:.6g}"


def _heads(columns: Sequence[RowField]) -> list[tuple[str, str]]:
    return [(cell.title, cell.definition or RHO_DEFINITIONS.get(cell.name, "")) for cell in columns]


# ---- conditions ----------------------------------------------------------------------------------------------------


def _conditions(runs: Sequence[RunMetrics]) -> list[list[str]]:
    """A row for each policy and its seeds: policy, parameters, workload, cluster, settings, version."""
    seeds: dict[tuple[str, ...], list[str]] = {}
    for run in runs:
        key = (
            run.policy,
            _pairs(run.params) or "–",
            re.sub(r", seed \d+$", "", run.source) or run.workload,
            f"{run.cluster}: {counted(run.gpus, 'GPU')} on {counted(run.machines, 'machine')}",
            _pairs(run.settings),
            run.version,
            "simulated" if run.simulated else "measured",
        )
        seeds.setdefault(key, []).append(str(run.seed))
    return [[*key[:2], ", ".join(of), *key[2:]] for key, of in seeds.items()]


def _pairs(values: Mapping[str, Any]) -> str:
    return ", ".join(f"{name}={v:g}" if isinstance(v, float) else f"{name}={v}" for name, v in values.items())
