"""A comparison for the screen and for other programs: numbers down, policies across, differences to a baseline."""

from __future__ import annotations

import csv
import io
import math
from collections.abc import Sequence
from typing import Any

import orjson
from rich import box
from rich.table import Table
from rich.text import Text

from themis.errors import UnknownName
from themis.report.columns import ComparisonColumn
from themis.report.compare import ComparisonRow, caption, columns_for, kind_of
from themis.report.findings import finding
from themis.report.intervals import Interval
from themis.report.numbers import COLUMNS
from themis.report.paired import Paired
from themis.report.table import NOTE

CSV = (
    "metric",
    "policy",
    "seeds",
    "mean",
    "low",
    "high",
    "method",
    "baseline",
    "common_seeds",
    "difference",
    "difference_low",
    "difference_high",
    "difference_method",
    "significant",
)


def columns_of(names: Sequence[str], rows: Sequence[ComparisonRow], *, every: bool = True) -> list[int]:
    """The columns of ``COLUMNS`` to show: the named ones, or those in which any policy has a number.

    Parameters
    ----------
    every : False leaves out what fits the screen badly and is asked for seldom.

    Raises
    ------
    UnknownName : no such number.
    """
    known = [c.name for c in COLUMNS]
    for name in names:
        if name not in known:
            raise UnknownName("metric", name, known)
    if names:
        return [known.index(name) for name in dict.fromkeys(names)]
    return [
        i
        for i, column in enumerate(COLUMNS)
        if (every or column.shown != "all") and any(not math.isnan(r.cells[i].mean) for r in rows)
    ]


# ---- tables --------------------------------------------------------------------------------------------------------


def tables(rows: Sequence[ComparisonRow], shown: Sequence[int], difference: Paired | None, width: int) -> list[Table]:
    """Tables no wider than the screen, if a policy's column fits at all: means, then differences to the baseline."""
    out = [
        _table(part, shown, "" if i else finding(rows, _columns(rows)))
        for i, part in enumerate(_parts(rows, shown, width))
    ]
    if difference:
        others = [row for row in rows if row.label != difference.baseline]
        for part in _parts(others, shown, width):
            out.append(_difference_table(part, shown, difference))
    return out


def notes(rows: Sequence[ComparisonRow], difference: Paired | None) -> str:
    """Notes below the comparison tables."""
    runs = [run for row in rows for run in row.runs]
    seeds = sorted({len(row.runs) for row in rows})
    lines = [
        caption(runs),
        NOTE,
    ]
    if seeds[-1] == 1:
        lines.append("One seed a policy: no confidence interval can be given; run more, as in --seeds 0-4.")
    else:
        count = f"{seeds[-1]}" if len(seeds) == 1 else f"{seeds[0]} to {seeds[-1]}"
        lines.append(f"Mean over {count} seeds ± half the width of its 95 % confidence interval (docs/report.md).")
    if difference:
        lines.append(difference.note)
    return "\n".join(lines)


def _parts(rows: Sequence[ComparisonRow], shown: Sequence[int], width: int) -> list[list[ComparisonRow]]:
    """Groups of policies that fit side by side."""
    columns = _columns(rows)
    head = 2 + max(len(columns[i].heading) for i in shown)
    parts: list[list[ComparisonRow]] = []
    used = width
    for row in rows:
        cells = [_cell(columns[i], row.cells[i]) for i in shown]
        wide = 2 + max(*(len(cell) + 1 for cell in cells), min(len(row.label), 24))
        if used + wide > width:
            parts.append([])
            used = head
        parts[-1].append(row)
        used += wide
    return parts


def _table(rows: Sequence[ComparisonRow], shown: Sequence[int], title: str) -> Table:
    table, columns = _empty(title, rows), _columns(rows)
    for i in shown:
        cells = [Text(_cell(columns[i], r.cells[i]), style="bold green" if r.best[i] else "") for r in rows]
        table.add_row(columns[i].heading, *cells)
    return table


def _difference_table(rows: Sequence[ComparisonRow], shown: Sequence[int], difference: Paired) -> Table:
    table, columns = _empty(f"Difference to {difference.baseline}", rows), _columns(rows)
    for k, i in enumerate(shown):
        cells = []
        for row in rows:
            cell = difference.differences[row.label][k]
            text = columns[i].signed(cell.mean) + _half(columns[i], cell) + ("*" if cell.excludes_zero else " ")
            cells.append(Text(text, style="bold" if cell.excludes_zero else ""))
        table.add_row(columns[i].heading, *cells)
    return table


def _columns(rows: Sequence[ComparisonRow]) -> Sequence[ComparisonColumn]:
    return columns_for([run for row in rows for run in row.runs])


def _empty(title: str, rows: Sequence[ComparisonRow]) -> Table:
    table = Table(box=box.SIMPLE_HEAD, padding=(0, 2, 0, 0), title=Text(title) if title else None, title_justify="left")
    table.add_column("", no_wrap=True)
    for row in rows:
        table.add_column(Text(row.label, overflow="fold"), justify="right", max_width=24)
    return table


def _cell(column: ComparisonColumn, cell: Interval) -> str:
    return column.text(cell.mean) + _half(column, cell)


def _half(column: ComparisonColumn, cell: Interval) -> str:
    return "" if math.isnan(cell.half) else f" ± {column.text(cell.half)}"


# ---- for other programs --------------------------------------------------------------------------------------------


def to_json(
    rows: Sequence[ComparisonRow], shown: Sequence[int], difference: Paired | None, doubts: Sequence[str]
) -> str:
    """Means, intervals and differences in seconds and fractions, with the definition of each number."""
    runs = [run for row in rows for run in row.runs]
    out: dict[str, Any] = {
        "kind": kind_of(runs),
        "conditions": caption(runs),
        "doubts": list(doubts),
        "baseline": difference.baseline if difference else None,
        "policies": [
            {
                "policy": row.label,
                "seeds": [run.seed for run in row.runs],
                "metrics": {COLUMNS[i].name: _interval(row.cells[i]) for i in shown},
                "differences": {
                    COLUMNS[i].name: {**_interval(d), "significant": d.excludes_zero}
                    for i, d in zip(shown, difference.differences[row.label])
                }
                if difference
                else None,
                "common_seeds": difference.seeds[row.label] if difference else None,
            }
            for row in rows
        ],
        "definitions": {COLUMNS[i].name: COLUMNS[i].definition for i in shown},
    }
    return orjson.dumps(out, option=orjson.OPT_INDENT_2).decode()


def to_csv(rows: Sequence[ComparisonRow], shown: Sequence[int], difference: Paired | None) -> str:
    """A row for each number of each policy; empty without any."""
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n")
    writer.writerow(CSV)
    for k, i in enumerate(shown):
        for row in rows:
            c, d = row.cells[i], difference.differences[row.label][k] if difference else None
            line: list[object] = [COLUMNS[i].name, row.label, len(row.runs), c.mean, c.low, c.high, c.method]
            if difference and d:
                seeds = difference.seeds[row.label]
                line += [difference.baseline, seeds, d.mean, d.low, d.high, d.method, int(d.excludes_zero)]
            else:
                line += [""] * 7
            writer.writerow(["" if isinstance(v, float) and math.isnan(v) else v for v in line])
    return out.getvalue()


def _interval(cell: Interval) -> dict[str, Any]:
    return {"mean": cell.mean, "low": cell.low, "high": cell.high, "method": cell.method or None}
