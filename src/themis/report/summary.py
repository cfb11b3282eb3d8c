"""A report's first paragraph: what the numbers say, in plain words. Every word that claims something is a fold over the runs."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from themis.errors import counted
from themis.report.columns import ComparisonColumn
from themis.report.compare import ComparisonRow, is_brief, same_apps
from themis.report.findings import UNLIKE, doubt, unit
from themis.report.rows import AppRow
from themis.report.style import shortened

LATE = 1.01
"""An app finished later than on its own share if ``rho_reference`` is above this; less is not reported."""
MOST_POLICIES = 3
"""Number of policies up to which the paragraph names late apps of each; above, of the best and the worst."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Lateness:
    """Apps that finished later than on their own share under one policy, seeds pooled.

    Attributes
    ----------
    completed : apps that did. ``late``, ``known`` : of these, apps that were late, and those of which that is known.
    late_users, users : whose apps they are.
    worst : the app with the highest ``rho_reference`` of those that were late, None where none was.
    active : apps that had not ended when the log ended.
    """

    completed: int
    late: int
    known: int
    late_users: int
    users: int
    worst: AppRow | None
    active: int

    @property
    def share(self) -> float:
        """Part of the apps that finished late, 0 to 1; NaN where nothing is known."""
        return self.late / self.known if self.known else math.nan


def lateness(row: ComparisonRow) -> Lateness:
    """Lateness of the apps under one policy, against their own share."""
    known = [app for run in row.runs for app in run.completed if not math.isnan(app.rho_reference)]
    late = [app for app in known if app.rho_reference > LATE]
    return Lateness(
        completed=sum(len(run.completed) for run in row.runs),
        late=len(late),
        known=len(known),
        late_users=len({app.user for app in late}),
        users=len({app.user for app in known}),
        worst=max(late, key=lambda app: app.rho_reference, default=None),
        active=sum(app.outcome == "active" for run in row.runs for app in run.apps),
    )


def summary(rows: Sequence[ComparisonRow], columns: Sequence[ComparisonColumn]) -> str:
    """The paragraph: late apps by policy, the quickest policy, GPU time, confidence, simulated or measured.

    Parameters
    ----------
    rows : of ``compare``, with these columns.
    """
    found = {row.label: lateness(row) for row in rows}
    named = _named(found)
    sentences = [_late(found, named, _scale(rows))]
    between = sum(of.known > 0 for of in found.values()) - len(named)
    if between:
        sentences.append(f"The share of late apps under the other {between} policies is between these.")
    if same_apps([run for row in rows for run in row.runs]):
        sentences += [*(_extremes(rows, columns, *claim) for claim in _CLAIMS), doubt(rows, _claimed(columns)).strip()]
    else:
        sentences.append(UNLIKE)
    sentences += [_unfinished(found), _kind(rows)]
    return " ".join(filter(None, sentences))


def _named(found: dict[str, Lateness]) -> list[str]:
    """Labels of the policies to say something about, those with the fewest late apps first."""
    known = sorted((label for label in found if found[label].known), key=lambda label: found[label].share)
    return known if len(known) <= MOST_POLICIES else [known[0], known[-1]]


def _late(found: dict[str, Lateness], named: Sequence[str], scale: tuple[float, str]) -> str:
    """Sentence on the apps that finished late under each of these policies."""
    parts = []
    for i, label in enumerate(named):
        of = found[label]
        if of.worst is None:
            late = " finished later than on its own share of the cluster" if i == 0 else ""
            parts.append(f"under {label} no app{late}")
            continue
        than = " finished later than on their own share of the cluster" if i == 0 else " did"
        users = f" of {counted(of.late_users, 'user')}" if of.late_users < of.users else ""
        later = (of.worst.rho_reference - 1) * of.worst.t_reference / scale[0]
        worst = f"{shortened(of.worst.name, 40)} of {shortened(of.worst.user, 40)}"
        parts.append(
            f"under {label} {of.late} of {counted(of.known, 'app')}{users}{than}, {worst} by the largest factor: "
            f"{of.worst.rho_reference:.2f} times as long, {later:,.1f} {scale[1]} more"
        )
    text = "; ".join(parts)
    return f"{text[0].upper()}{text[1:]}." if text else ""


_CLAIMS = (
    ("jct_mean", "Apps finished soonest under {}, after {} {} on average", "; last under {}, after {} {}"),
    ("gpu_seconds", "The work took the least GPU time under {}, {} GPU {}", "; the most under {}, {} GPU {}"),
)
"""A number, and phrases for the policies with its minimum and its maximum."""


def _extremes(
    rows: Sequence[ComparisonRow], columns: Sequence[ComparisonColumn], name: str, first: str, last: str
) -> str:
    at = next((i for i, column in enumerate(columns) if column.name == name), None)
    if at is None or any(math.isnan(row.cells[at].mean) for row in rows):
        return ""
    column, order = columns[at], sorted(rows, key=lambda row: row.cells[at].mean)
    low, high = (column.text(order[i].cells[at].mean) for i in (0, -1))
    if len(rows) == 1:
        verb = "Apps took {} {} on average." if name == "jct_mean" else "The work took {} GPU {}."
        return verb.format(low, unit(column))
    if low == high:
        return ""
    return first.format(order[0].label, low, unit(column)) + last.format(order[-1].label, high, unit(column)) + "."


def _claimed(columns: Sequence[ComparisonColumn]) -> list[int]:
    return [i for i, column in enumerate(columns) if column.name in {name for name, _, _ in _CLAIMS}]


def _unfinished(found: dict[str, Lateness]) -> str:
    active = {label: of.active for label, of in found.items() if of.active}
    if not active:
        return ""
    most = max(active, key=lambda label: active[label])
    if not any(of.completed for of in found.values()):
        return "No app has completed yet."
    more = f", up to {active[most]} (under {most})" if len(active) > 1 else f" under {most}: {active[most]}"
    return f"Apps that had not ended when the log ended are not counted{more}."


def _kind(rows: Sequence[ComparisonRow]) -> str:
    """Sentence on which results are simulated, and which were measured."""
    simulated = [row.label for row in rows if all(run.simulated for run in row.runs)]
    if len(simulated) == len(rows):
        return "All of this is simulated: no GPU ran."
    if not any(run.simulated for row in rows for run in row.runs):
        return "All of this was measured on a running cluster."
    return f"Simulated: {', '.join(simulated) or 'some seeds'}; the rest was measured on a running cluster."


def _scale(rows: Sequence[ComparisonRow]) -> tuple[float, str]:
    return (60.0, "min") if is_brief([run for row in rows for run in row.runs]) else (3600.0, "h")
