"""The report as one HTML file that needs nothing else: no network, no fonts, no scripts from elsewhere."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup

from themis.errors import InputError
from themis.report import figures
from themis.report.compare import COLUMNS, Cell, Column, Row, caption, compare, kind_of
from themis.report.definitions import APP_DEFINITIONS, DEFINITIONS, RHO_DEFINITIONS
from themis.report.result import AppRow, RunMetrics

MOST_APPS = 400
"""Rows in a policy's table of apps; the worst ones are shown."""
APP_COLUMNS = (
    ("name", "app", 0), ("user", "user", 0), ("jobs", "jobs", 0), ("weight", "weight", 1), ("arrival", "arrival h", 3600),
    ("wait", "wait min", 60), ("jct", "JCT h", 3600), ("rho_paper", "ρ paper", 1), ("rho_exact", "ρ exact", 1),
    ("contention", "N avg", 1), ("gpu_seconds", "GPU h", 3600), ("restarts", "restarts", 0),
    ("lost_seconds", "lost GPU h", 3600), ("outcome", "outcome", 0),
)  # fmt: skip
"""(field, title, divisor); divisor 0 is shown as it is."""


def write_report(path: str | Path, runs: Sequence[RunMetrics], *, title: str = "") -> Path:
    """Write the report of these runs and return where it is.

    Raises
    ------
    InputError : there are no runs, or the file cannot be written.
    """
    path = Path(path)
    text = render(runs, title=title)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
    except OSError as error:
        raise InputError(f"cannot write the report {path}: {error.strerror}.") from None
    return path


def render(runs: Sequence[RunMetrics], *, title: str = "") -> str:
    """The report as HTML."""
    if not runs:
        raise InputError("a report needs at least one run; none was given.")
    rows = compare(runs)
    first = [(row.label, row.runs[0]) for row in rows]
    gantts = [(label, run.seed, Markup(figures.gantt(label, run)), run.gantt.dropped) for label, run in first]
    environment = Environment(
        loader=PackageLoader("themis.report", "templates"), autoescape=True, undefined=StrictUndefined,
        trim_blocks=True, lstrip_blocks=True,
    )  # fmt: skip
    return environment.get_template("report.html.j2").render(
        title=title or f"{runs[0].workload} on {runs[0].cluster}",
        kind=kind_of(runs), caption=caption(runs),
        policies=[(row.label, Markup(figures.policy_colour(i))) for i, row in enumerate(rows)],
        dark_colours=Markup(_colours(_DARK)), light_colours=Markup(_colours(figures.POLICY_COLOURS)),
        columns=_columns(rows), table=[_table_row(i, row, _used(rows)) for i, row in enumerate(rows)],
        seeds=max(len(row.runs) for row in rows),
        distributions=Markup(figures.distributions([(row.label, row.runs) for row in rows])),
        usage=Markup(figures.usage(first)),
        gantts=gantts, hover=any("<title>" in svg for _, _, svg, _ in gantts),
        apps=[_apps(label, run) for label, run in first],
        app_columns=[(head, APP_DEFINITIONS.get(name, RHO_DEFINITIONS.get(name, ""))) for name, head, _ in APP_COLUMNS],
        definitions=_definitions(), conditions=_conditions(runs),
    )  # fmt: skip


_DARK = ("#4ba3dc", "#f0803c", "#2cc295", "#e39ac4", "#f2b53c", "#8ccbf0", "#a8a8a8")


def _colours(colours: Sequence[str]) -> str:
    return " ".join(f"--p{i}: {colour};" for i, colour in enumerate(colours))


@dataclass(frozen=True, slots=True, kw_only=True)
class _Shown:
    text: str
    spread: str
    best: bool
    sort: float
    extra: bool


def _used(rows: Sequence[Row]) -> list[tuple[int, Column]]:
    """Columns in which any policy has a number."""
    return [(i, c) for i, c in enumerate(COLUMNS) if any(not math.isnan(row.cells[i].mean) for row in rows)]


def _columns(rows: Sequence[Row]) -> list[tuple[str, str, bool]]:
    """(title, definition, only on demand)."""
    return [(c.title.replace("-\n", "").replace("\n", " ").strip(), c.definition, not c.short) for _, c in _used(rows)]


def _table_row(i: int, row: Row, used: Sequence[tuple[int, Column]]) -> tuple[str, Markup, list[_Shown]]:
    return row.label, Markup(figures.policy_colour(i)), [_shown(c, row.cells[k]) for k, c in used]


def _shown(column: Column, cell: Cell) -> _Shown:
    return _Shown(
        text=column.text(cell.mean), spread="" if math.isnan(cell.half) else f"±{column.text(cell.half)}",
        best=cell.best, sort=-math.inf if math.isnan(cell.mean) else cell.mean, extra=not column.short,
    )  # fmt: skip


def _apps(label: str, run: RunMetrics) -> tuple[str, int, int, list[list[tuple[str, Any]]]]:
    """(policy, seed, apps left out, rows), worst rho first."""
    order = sorted(run.apps, key=lambda app: -app.rho_paper if app.rho_paper == app.rho_paper else math.inf)
    rows = [[_app_cell(app, name, by) for name, _, by in APP_COLUMNS] for app in order[:MOST_APPS]]
    return label, run.seed, max(len(order) - MOST_APPS, 0), rows


def _app_cell(app: AppRow, name: str, by: int) -> tuple[str, Any]:
    """(text, what to sort by)."""
    value = getattr(app, name)
    if isinstance(value, str) or by == 0:
        return str(value), value
    if math.isnan(value):
        return "–", -1
    return f"{value / by:,.{2 if by == 1 else 1}f}", round(value, 6)


def _definitions() -> list[tuple[str, str]]:
    return [(name.replace("_", " "), text) for name, text in DEFINITIONS.items()]


def _conditions(runs: Sequence[RunMetrics]) -> list[list[str]]:
    """A row for each run: policy, parameters, seed, workload, cluster, settings, version."""
    return [
        [
            run.policy, _pairs(run.params) or "–", str(run.seed), run.source or run.workload,
            f"{run.cluster}: {run.gpus} GPUs on {run.machines} machines", _pairs(run.settings), run.version,
            "simulated" if run.simulated else "measured",
        ]
        for run in runs
    ]  # fmt: skip


def _pairs(values: Mapping[str, Any]) -> str:
    return ", ".join(f"{name}={v:g}" if isinstance(v, float) else f"{name}={v}" for name, v in values.items())
