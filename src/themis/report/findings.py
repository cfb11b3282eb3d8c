"""Main finding of a comparison in one plain sentence, with which a report begins."""

from __future__ import annotations

import math
from collections.abc import Sequence

from themis.report.columns import ComparisonColumn
from themis.report.compare import ComparisonRow, same_apps

UNLIKE = "The runs were given different apps, so no policy is named as the best."

_CLAIMS = (
    (
        "rho_reference_max",
        "is|are",
        "fairest to the worst-off app ({} times as long as on its own share of the cluster)",
    ),
    ("jct_mean", "finishes|finish", "apps soonest ({} {} on average)"),
    ("gpu_seconds", "uses|use", "the least GPU time ({} GPU {})"),
)
"""Columns, and what is said of the policy, or policies, best in it: the verb of one or of several, and the rest with blanks
for the value and its unit."""


def finding(rows: Sequence[ComparisonRow], columns: Sequence[ComparisonColumn]) -> str:
    """The policy that is best at each measure, or one policy's treatment of its apps.

    Parameters
    ----------
    rows : of ``compare``, with these columns.
    """
    at = {column.name: i for i, column in enumerate(columns)}
    known = [name for name, _, _ in _CLAIMS if name in at and all(not math.isnan(r.cells[at[name]].mean) for r in rows)]
    if "jct_mean" in at and "jct_mean" not in known:
        return "No app has completed yet." if len(rows) == 1 else "Not every policy has completed an app yet."
    if len(rows) == 1:
        return _alone(rows[0], columns, at)
    if not same_apps([run for row in rows for run in row.runs]):
        return UNLIKE
    claims_of: dict[str, list[str]] = {}
    for name, verbs, claim in _CLAIMS:
        if name in known:
            i = at[name]
            best = [row for row in rows if row.best[i]]
            if best:
                column = columns[i]
                verb = verbs.split("|")[len(best) > 1]
                text = f"{verb} {claim.format(column.text(best[0].cells[i].mean), unit(column))}"
                claims_of.setdefault(" and ".join(row.label for row in best), []).append(text)
    if not claims_of:
        return (
            f"The {len(rows)} policies do not differ in fairness to the worst-off app, completion times and GPU time."
        )
    best_at = _list([f"{who} {_list(claims)}" for who, claims in claims_of.items()], ";")
    return f"Of {len(rows)} policies, {best_at}.{doubt(rows, [at[name] for name in known])}"


def doubt(rows: Sequence[ComparisonRow], shown: Sequence[int]) -> str:
    """Note that chance may be the reason: one seed, or intervals that overlap in these columns; empty where neither holds."""
    if any(len(row.runs) < 2 for row in rows):
        return " One seed does not show how much of this is chance."
    overlap = False
    for i in shown:
        best = [row.cells[i] for row in rows if row.best[i]]
        others = [row.cells[i] for row in rows if not row.best[i]]
        overlap |= any(a.low <= b.high and b.low <= a.high for a in best for b in others)
    return " The 95 % intervals overlap: more seeds may change this." if overlap else ""


def _alone(row: ComparisonRow, columns: Sequence[ComparisonColumn], at: dict[str, int]) -> str:
    def value(name: str) -> str:
        return columns[at[name]].text(row.cells[at[name]].mean)

    jct = columns[at["jct_mean"]] if "jct_mean" in at else None
    took = f"apps took {value('jct_mean')} {unit(jct)} on average" if jct else "apps completed"
    worst = ""
    if "rho_reference_max" in at and not math.isnan(row.cells[at["rho_reference_max"]].mean):
        worst = f", the worst-off one {value('rho_reference_max')} times as long as on its own share of the cluster"
    return f"Under {row.label} {took}{worst}."


def unit(column: ComparisonColumn) -> str:
    """The unit of time at the end of a column's title."""
    return "min" if column.heading.endswith("min") else "h"


def _list(parts: Sequence[str], comma: str = ",") -> str:
    """``a, b and c``."""
    if len(parts) < 2:
        return "".join(parts)
    return f"{f'{comma} '.join(parts[:-1])}{comma if comma == ';' else ''} and {parts[-1]}"
