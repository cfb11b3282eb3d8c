"""The terminal's table: one line a policy, within 80 columns, or 120 with all numbers; which runs is said below it."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace

from rich import box
from rich.table import Table
from rich.text import Text

from themis.report.columns import ComparisonColumn
from themis.report.compare import caption, columns_for, compare
from themis.report.findings import finding
from themis.report.intervals import Interval
from themis.report.promise import PROMISE
from themis.report.result import RunMetrics, scalar

BRIEF = {
    "rho_reference_max": "worst app,\n× own share",
    "promise_kept": "promise\nkept, %",
    "jct_mean": "",
    "makespan": "",
    "gpu_seconds": "",
    "utilisation": "",
}
"""Numbers of the table of 80 columns, and their titles there; empty: the number's own."""
BRIEF_NOTE = f"Promise kept: apps that took {PROMISE}. Best in green; --wide: all numbers."
NOTE = (
    "ρ = JCT / JCT on one's own share of the cluster, lower is better, at most 1 is fair. 'reference': the cluster divided at each "
    "instant among the apps it has not finished; 'paper': the Themis paper's T_id, 1/N on average; 'exact': the exact one. Best in "
    "green."
)


def summary_table(runs: Sequence[RunMetrics], *, wide: bool = False) -> Table:
    """Policies side by side; with several seeds the mean and, below it, the half width of its 95 % interval."""
    columns = [c for c in columns_for(runs) if (c.short if wide else c.name in BRIEF)]
    if not wide:
        columns = [replace(c, title=BRIEF[c.name] or c.title) for c in columns]
    rows = compare(runs, columns)
    many = any(len(row.runs) > 1 for row in rows)
    spread = " Mean over seeds ± half width of its 95 % confidence interval." if many else ""
    delivered = "\nReceived over entitled: " + "; ".join(
        f"{row.label} worst {_mean(row.runs, 'delivered_worst')}, mean {_mean(row.runs, 'delivered_mean')}"
        for row in rows
    )
    table = Table(
        title=Text(finding(rows, columns)),
        title_justify="left",
        title_style="bold",
        box=box.SIMPLE_HEAD,
        padding=(0, 1, 0, 0),
        caption=f"{caption(runs)}\n{NOTE if wide else BRIEF_NOTE}{spread}{f'{delivered}.' if wide else ''}",
        caption_justify="left",
        caption_style="dim",
        show_lines=False,
    )
    table.add_column("policy", overflow="fold", vertical="top", max_width=24 if wide else 20)
    for column in columns:
        table.add_column(column.title, justify="right", no_wrap=True)
    for row in rows:
        table.add_row(Text(row.label, style="bold"), *map(_text, columns, row.cells, row.best))
    return table


def _mean(runs: Sequence[RunMetrics], name: str) -> str:
    values = [value for run in runs if not math.isnan(value := scalar(run, name))]
    return f"{sum(values) / len(values):.2f}" if values else "–"


def _text(column: ComparisonColumn, cell: Interval, best: bool) -> Text:
    text = Text(column.text(cell.mean), style="bold green" if best else "")
    if cell.half == cell.half:
        text.append(f"\n±{column.text(cell.half)}", style="dim")
    return text
