"""Difference of each policy from a baseline, paired by seed: both ran the same apps, so most of the noise cancels.

The difference of a number is taken seed by seed and its mean gets a 95 % interval (``intervals``). A difference whose
interval excludes 0 is marked. There is no correction for multiple comparisons: of twenty true differences of 0, one is
marked on average.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from themis.errors import UnknownName
from themis.model.units import Float
from themis.report.columns import ComparisonColumn
from themis.report.compare import PER_APP, ComparisonRow
from themis.report.intervals import Interval, p99_interval, t_interval
from themis.report.result import RunMetrics, scalar


@dataclass(frozen=True, slots=True, kw_only=True)
class Paired:
    """Differences to the baseline.

    Attributes
    ----------
    seeds : common with the baseline, by label. ``differences`` : by label, one for each column, policy less baseline.
    """

    baseline: str
    seeds: Mapping[str, int]
    differences: Mapping[str, tuple[Interval, ...]]

    @property
    def note(self) -> str:
        """Description of the differences in a sentence or two."""
        counts = sorted({count for label, count in self.seeds.items() if label != self.baseline})
        if not counts or counts[-1] == 0:
            return f"No policy has a seed in common with {self.baseline}, so there is no difference to show."
        if counts[-1] == 1:
            return f"Each policy less {self.baseline}, on the one common seed: no interval can be given."
        over = f"{counts[0]}" if len(counts) == 1 else f"{counts[0]} to {counts[-1]}"
        return (
            f"Each policy less {self.baseline}, paired over {over} common seeds: mean ± half the width of its 95 % "
            "confidence interval. *: the interval excludes 0; that is so for 1 in 20 differences that are none."
        )


def paired(rows: Sequence[ComparisonRow], baseline: str, columns: Sequence[ComparisonColumn]) -> Paired:
    """Differences of every policy to the one with this label; the baseline's own are 0.

    Raises
    ------
    UnknownName : no policy has the baseline's label.
    """
    base = next((row for row in rows if row.label == baseline), None)
    if base is None:
        raise UnknownName("baseline", baseline, [row.label for row in rows])
    of_seed = {run.seed: run for run in base.runs}
    seeds, differences = {}, {}
    for row in rows:
        pairs = [(run, of_seed[run.seed]) for run in row.runs if run.seed in of_seed]
        seeds[row.label] = len(pairs)
        differences[row.label] = tuple(_difference(column.name, pairs) for column in columns)
    return Paired(baseline=baseline, seeds=seeds, differences=differences)


def _difference(name: str, pairs: Sequence[tuple[RunMetrics, RunMetrics]]) -> Interval:
    if name in PER_APP:
        both = [_common(PER_APP[name], run, base) for run, base in pairs]
        return p99_interval([x for x, _ in both], [b for _, b in both])
    return t_interval([scalar(run, name) - scalar(base, name) for run, base in pairs])


def _common(field: str, run: RunMetrics, base: RunMetrics) -> tuple[Float, Float]:
    """One number an app from either run, for the apps that have it in both; apps have equal numbers."""
    n = min(len(run.apps), len(base.apps))
    x, b = (np.array([getattr(app, field) for app in r.apps[:n]], dtype=np.float64) for r in (run, base))
    known = np.isfinite(x) & np.isfinite(b)
    return x[known], b[known]
