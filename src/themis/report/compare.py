"""Runs side by side: grouped by policy over seeds, mean and 95 % confidence interval, the best of each column.

The terminal's tables and the HTML report show ``COLUMNS``.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Literal

import numpy as np

from themis.errors import counted
from themis.model.units import Float
from themis.report.definitions import DEFINITIONS
from themis.report.intervals import Interval, p99_interval, t_interval
from themis.report.result import RHO_FORMS, RunMetrics, scalar
from themis.report.speeds import sentence

HOUR, MINUTE = 3600.0, 60.0
BRIEF = 2 * HOUR
"""Runs that end sooner are told in minutes."""
Better = Literal["low", "high", ""]


@dataclass(frozen=True, slots=True, kw_only=True)
class Column:
    """One number of a comparison.

    Attributes
    ----------
    name : as ``result.scalar`` knows it. ``title`` : short, with its unit. ``scale`` : the number is divided by it.
    short : whether the terminal's table has room for it.
    """

    name: str
    title: str
    scale: float = 1.0
    digits: int = 2
    better: Better = "low"
    short: bool = True

    def text(self, value: float) -> str:
        """The number as shown; a dash where there is none."""
        return "–" if math.isnan(value) else f"{value / self.scale:,.{self.digits}f}"

    def signed(self, value: float) -> str:
        """A difference as shown, with its sign; what rounds to 0 has none."""
        if math.isnan(value):
            return "–"
        text = f"{value / self.scale:+,.{self.digits}f}"
        return text if text.strip("+-0.,") else text[1:]

    def in_minutes(self) -> Column:
        """The same, minutes in place of hours."""
        if self.scale != HOUR:
            return self
        return replace(self, scale=MINUTE, title=f"{self.title.removesuffix('h')}min", digits=max(self.digits, 1))

    @property
    def heading(self) -> str:
        """The title in one line."""
        return self.title.replace("-\n", "").replace("\n", " ").strip()

    @property
    def definition(self) -> str:
        """What it means."""
        for form in RHO_FORMS:
            if self.name.startswith(form):
                return f"{DEFINITIONS['rho' + self.name.removeprefix(form)]} {DEFINITIONS[form]}"
        return DEFINITIONS[self.name]


COLUMNS = (
    Column(name="rho_paper_max", title="max ρ\npaper"),
    Column(name="rho_paper_median", title="med ρ\npaper"),
    Column(name="rho_paper_mean", title="mean ρ\npaper", short=False),
    Column(name="rho_paper_p99", title="p99 ρ\npaper", short=False),
    Column(name="rho_paper_above_1", title="ρ > 1\npaper %", scale=0.01, digits=0),
    Column(name="rho_exact_max", title="max ρ\nexact"),
    Column(name="rho_exact_median", title="med ρ\nexact", short=False),
    Column(name="rho_exact_mean", title="mean ρ\nexact", short=False),
    Column(name="rho_exact_p99", title="p99 ρ\nexact", short=False),
    Column(name="rho_exact_above_1", title="ρ > 1\nexact %", scale=0.01, digits=0),
    Column(name="rho_paper_jain", title="Jain\npaper", better="high", short=False),
    Column(name="rho_exact_jain", title="Jain\nexact", better="high"),
    Column(name="rho_static_max", title="max ρ\nstatic", short=False),
    Column(name="rho_static_mean", title="mean ρ\nstatic", short=False),
    Column(name="rho_static_above_1", title="ρ > 1\nstatic %", scale=0.01, digits=1, short=False),
    Column(name="rho_static_above_1_05", title="ρ > 1.05\nstatic %", scale=0.01, digits=1, short=False),
    Column(name="rho_static_above_1_1", title="ρ > 1.1\nstatic %", scale=0.01, digits=1, short=False),
    Column(name="rho_contention_max", title="max ρ\ncontention", short=False),
    Column(name="rho_contention_mean", title="mean ρ\ncontention", short=False),
    Column(name="rho_contention_above_1", title="ρ > 1\ncontention %", scale=0.01, digits=1, short=False),
    Column(name="rho_contention_above_1_05", title="ρ > 1.05\ncontention %", scale=0.01, digits=1, short=False),
    Column(name="rho_contention_above_1_1", title="ρ > 1.1\ncontention %", scale=0.01, digits=1, short=False),
    Column(name="jct_mean", title="JCT\nmean h", scale=HOUR, digits=1),
    Column(name="jct_median", title="JCT\nmed h", scale=HOUR, digits=1, short=False),
    Column(name="jct_p99", title="JCT\np99 h", scale=HOUR, digits=1),
    Column(name="makespan", title="make-\nspan h", scale=HOUR, digits=1),
    Column(name="gpu_seconds", title="GPU\ntime h", scale=HOUR, digits=0),
    Column(name="utilisation", title="util.\n%", scale=0.01, digits=1, better="high"),
    Column(name="useful", title="useful\n%", scale=0.01, digits=1, better="high"),
    Column(name="placement", title="place-\nment", digits=3, better="high"),
    Column(name="restarts", title="restarts\n", digits=0, short=False),
    Column(name="lost_seconds", title="lost\nGPU h", scale=HOUR, digits=1, short=False),
    Column(name="restart_seconds", title="restart\nGPU h", scale=HOUR, digits=1, short=False),
    Column(name="crash_seconds", title="crash\nGPU h", scale=HOUR, digits=1, short=False),
    Column(name="failures", title="failed\nleases", digits=0, short=False),
    Column(name="delivered_worst", title="worst\ndelivered", better="high", short=False),
    Column(name="delivered_mean", title="mean\ndelivered", better="high", short=False),
    Column(name="wait_mean", title="queueing\nmean min", scale=60.0, digits=1, short=False),
    Column(name="wait_median", title="queueing\nmed min", scale=60.0, digits=1, short=False),
    Column(name="wait_p99", title="queueing\np99 min", scale=60.0, digits=1, short=False),
    Column(name="wait_max", title="queueing\nmax min", scale=60.0, digits=1, short=False),
    Column(name="contention", title="demand /\ncapacity", digits=2, better="", short=False),
    Column(name="contention_max", title="peak dem.\n/ capacity", digits=2, better="", short=False),
    Column(name="apps_mean", title="apps\nmean", digits=1, better="", short=False),
    Column(name="apps_max", title="apps\nmost", digits=0, better="", short=False),
    Column(name="decisions", title="deci-\nsions", digits=0, better="", short=False),
    Column(name="auctions", title="auc-\ntions", digits=0, better="", short=False),
    Column(name="bidders", title="mean\nbidders", digits=1, better="", short=False),
    Column(name="offered", title="GPUs\noffered", digits=1, better="", short=False),
    Column(name="payment", title="hidden\npayment %", scale=0.01, digits=1, better="", short=False),
    Column(name="leftover", title="GPUs\nleft over", digits=1, better="", short=False),
)


PER_APP = {
    "rho_paper_p99": "rho_paper", "rho_exact_p99": "rho_exact", "jct_p99": "jct", "wait_p99": "wait",
}  # fmt: skip
"""Percentiles over apps, and the app's number that they are of: their intervals need the apps."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """One policy (under one set of conditions) over its seeds; ``best`` marks the cells that read best of their column."""

    label: str
    runs: tuple[RunMetrics, ...]
    cells: tuple[Interval, ...]
    best: tuple[bool, ...]


def is_brief(runs: Sequence[RunMetrics]) -> bool:
    """Whether minutes say more than hours."""
    return max((run.makespan for run in runs), default=0.0) < BRIEF


def columns_for(runs: Sequence[RunMetrics]) -> tuple[Column, ...]:
    """``COLUMNS`` in the units that suit these runs."""
    return tuple(c.in_minutes() for c in COLUMNS) if is_brief(runs) else COLUMNS


def compare(runs: Sequence[RunMetrics], columns: Sequence[Column] | None = None) -> tuple[Row, ...]:
    """A row for each policy, in order of first appearance; by default with all ``columns_for`` these runs."""
    columns = columns_for(runs) if columns is None else columns
    groups: dict[str, list[RunMetrics]] = {}
    for label, run in zip(labels(runs), runs):
        groups.setdefault(label, []).append(run)
    table = [tuple(_cell(c.name, group) for c in columns) for group in groups.values()]
    best = [_best([cells[i].mean for cells in table], column) for i, column in enumerate(columns)]
    return tuple(
        Row(label=label, runs=tuple(group), cells=cells, best=tuple(marks[k] for marks in best))
        for k, ((label, group), cells) in enumerate(zip(groups.items(), table))
    )


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
    """What a percentile is over: all who waited, but only the completed for the rest."""
    x = np.array([getattr(app, field) for app in (run.apps if field == "wait" else run.completed)], dtype=np.float64)
    known: Float = x[np.isfinite(x)]
    return known


def _best(means: Sequence[float], column: Column) -> list[bool]:
    """What reads as the best number, unless all read alike."""
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
