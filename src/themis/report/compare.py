"""Runs side by side: grouped by policy over seeds, mean and 95 % confidence interval, the best of each column.

The terminal's tables and the HTML report show ``COLUMNS``.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from themis.errors import counted
from themis.model.units import Float
from themis.report.columns import HOUR, ComparisonColumn
from themis.report.intervals import Interval, p99_interval, t_interval
from themis.report.numbers import COLUMNS
from themis.report.result import RunMetrics, scalar
from themis.report.speeds import sentence

BRIEF = 2 * HOUR
"""Seconds; shorter runs are shown in minutes."""
PER_APP = {column.name: column.per_app for column in COLUMNS if column.per_app}
"""Percentiles over apps, and the app's number that they are of: their intervals need the apps."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ComparisonRow:
    """One policy (under one set of conditions) over its seeds; ``best`` marks the cells that read best of their column."""

    label: str
    runs: tuple[RunMetrics, ...]
    cells: tuple[Interval, ...]
    best: tuple[bool, ...]


def is_brief(runs: Sequence[RunMetrics]) -> bool:
    """True if minutes say more than hours."""
    return max((run.makespan for run in runs), default=0.0) < BRIEF


def columns_for(runs: Sequence[RunMetrics]) -> tuple[ComparisonColumn, ...]:
    """``COLUMNS`` in the units that suit these runs."""
    return tuple(c.in_minutes() for c in COLUMNS) if is_brief(runs) else COLUMNS


def compare(runs: Sequence[RunMetrics], columns: Sequence[ComparisonColumn] | None = None) -> tuple[ComparisonRow, ...]:
    """A row for each policy, in order of first appearance; by default with all ``columns_for`` these runs.

    Nothing is marked as the best where the runs were not given the ``same_apps``.
    """
    columns = columns_for(runs) if columns is None else columns
    groups: dict[str, list[RunMetrics]] = {}
    for label, run in zip(labels(runs), runs):
        groups.setdefault(label, []).append(run)
    table = [tuple(_cell(c.name, group) for c in columns) for group in groups.values()]
    best = [_best([cells[i].mean for cells in table], column) for i, column in enumerate(columns)]
    if not same_apps(runs):
        best = [[False] * len(table)] * len(columns)
    return tuple(
        ComparisonRow(label=label, runs=tuple(group), cells=cells, best=tuple(marks[k] for marks in best))
        for k, ((label, group), cells) in enumerate(zip(groups.items(), table))
    )


def same_apps(runs: Sequence[RunMetrics]) -> bool:
    """True if the runs of each seed were given the same apps; of live runs by user and name, as no two arrive at one instant."""
    given: dict[int, set[object]] = {}
    for run in runs:
        apps = run.inputs.apps if run.simulated else frozenset((app.user, app.name, app.jobs) for app in run.apps)
        given.setdefault(run.seed, set()).add((run.workload, apps))
    return len({run.workload for run in runs}) < 2 and all(len(of) == 1 for of in given.values())


def labels(runs: Sequence[RunMetrics]) -> list[str]:
    """The policy's name, and of the other conditions those that differ between the runs."""
    conditions = [{"workload": r.workload, "cluster": r.cluster, **dict(r.settings)} for r in runs]
    names = dict.fromkeys(name for c in conditions for name in c)
    vary = [name for name in names if len({str(c.get(name)) for c in conditions}) > 1]
    return [
        ", ".join(
            [r.policy, *(f"{name}={c[name]}" if name in r.settings else str(c[name]) for name in vary if name in c)]
        )
        for r, c in zip(runs, conditions)
    ]


def _cell(name: str, runs: Sequence[RunMetrics]) -> Interval:
    if name in PER_APP and len(runs) > 1:
        return p99_interval([_of_apps(run, PER_APP[name]) for run in runs])
    return t_interval([scalar(run, name) for run in runs])


def _of_apps(run: RunMetrics, field: str) -> Float:
    """Finite values that percentiles are computed over: all apps for waits, completed apps for other fields."""
    x = np.array([getattr(app, field) for app in (run.apps if field == "wait" else run.completed)], dtype=np.float64)
    known: Float = x[np.isfinite(x)]
    return known


def _best(means: Sequence[float], column: ComparisonColumn) -> list[bool]:
    """Mask of the policies whose displayed number is the best; all False if all displayed numbers are equal."""
    shown = [math.nan if math.isnan(mean) else float(column.text(mean).replace(",", "")) for mean in means]
    numbers = [v for v in shown if not math.isnan(v)]
    if not column.better or len(set(numbers)) < 2:
        return [False] * len(shown)
    best = min(numbers) if column.better == "low" else max(numbers)
    return [value == best for value in shown]


def caption(runs: Sequence[RunMetrics]) -> str:
    """The conditions in one sentence."""
    workloads = ", ".join(dict.fromkeys(run.workload for run in runs))
    clusters = ", ".join(dict.fromkeys(f"{run.cluster} ({counted(run.gpus, 'GPU')})" for run in runs))
    seeds = sorted({run.seed for run in runs})
    apps = sorted({len(run.apps) for run in runs})
    count = f"{apps[0]}" if len(apps) == 1 else f"{apps[0]} to {apps[-1]}"
    text = f"{kind_of(runs).capitalize()}: workload {workloads}, {count} apps, on {clusters}; {_seeds(seeds)}."
    return f"{text} {sentence(runs)}".rstrip()


def kind_of(runs: Sequence[RunMetrics]) -> str:
    """Whether the numbers were simulated or measured on real machines."""
    simulated = {run.simulated for run in runs}
    return "simulated" if simulated == {True} else "measured" if simulated == {False} else "simulated and measured"


def _seeds(seeds: Sequence[int]) -> str:
    if len(seeds) == 1:
        return f"seed {seeds[0]}"
    if len(seeds) > 2 and seeds == list(range(seeds[0], seeds[-1] + 1)):
        return f"seeds {seeds[0]} to {seeds[-1]}"
    return f"seeds {', '.join(map(str, seeds))}"
