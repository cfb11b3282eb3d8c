"""Accuracy of plans' forecasts of finishes, against the fraction of the time to the finish that had passed."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from themis.report.result import RunMetrics
from themis.report.style import WIDE, Drawing, Style, canvas, colour, dash, policy_key, tidy

BINS = 10


def forecast_accuracy(groups: Sequence[tuple[int, str, RunMetrics]], style: Style) -> Drawing:
    """Median error of forecast finishes and the band of four fifths of them; (place among all policies, label, run) each."""
    figure, (axis,) = canvas(style, WIDE, 3.1)
    edges = np.linspace(0.0, 1.0, BINS + 1)
    for i, _, run in groups:
        bins = np.clip(np.digitize(run.plans.life, edges) - 1, 0, BINS - 1)
        at = [b for b in range(BINS) if (bins == b).any()]
        low, middle, high = (
            [100 * float(np.quantile(run.plans.off[bins == b], q)) for b in at] for q in (0.1, 0.5, 0.9)
        )
        x = 100 * (edges[at] + 0.5 / BINS)
        axis.plot(x, middle, color=colour(i), ls=dash(i), lw=1.8, zorder=3)
        axis.fill_between(x, low, high, color=colour(i), alpha=0.18, lw=0, zorder=2)
    axis.axhline(0.0, color=style.ink, lw=0.8, ls=(0, (2, 2)), zorder=1)
    axis.set_xlim(0, 100)
    axis.set_xlabel("time from the first forecast to the finish that has passed, %")
    axis.set_ylabel("finish later than forecast,\n% of that time")
    tidy(axis, style)
    title = "Forecast finishes: how much later jobs ended than was forecast; the median, and a band with four of five forecasts"
    labels = policy_key([label for _, label, _ in groups])
    key = tuple((text, colour(i), dash(i)) for (text, _, _), (i, _, _) in zip(labels, groups))
    return Drawing(name="foresight", title=title, figure=figure, key=key)
