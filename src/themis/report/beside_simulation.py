"""Live runs next to simulations of the same apps: the completion time of each app, live over simulated."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from themis.errors import InputError
from themis.model.units import Float
from themis.report.result import RunMetrics
from themis.report.style import Drawing, Reading, Style, colour, dash, log_x, mark, panel, policy_key, ticks


@dataclass(frozen=True, slots=True, kw_only=True)
class Beside:
    """A live run and its simulation.

    Attributes
    ----------
    ratios : completion time live over simulated of each app that completed in both, in order of the apps.
    """

    label: str
    live: RunMetrics
    simulated: RunMetrics
    ratios: Float

    @property
    def line(self) -> str:
        """The ratios in words: median and the range of nine in ten."""
        if not len(self.ratios):
            return f"{self.label}: no app completed on both sides."
        low, middle, high = np.quantile(self.ratios, [0.05, 0.5, 0.95]).tolist()
        mean = self.live.jct_mean / self.simulated.jct_mean
        ended = all(app.outcome != "active" for run in (self.live, self.simulated) for app in run.apps)
        makespan = f", makespan {self.live.makespan / self.simulated.makespan:.2f}" if ended else ""
        return (
            f"{self.label}: completion time live over simulated {middle:.2f} in the median of {len(self.ratios)} apps, "
            f"{low:.2f} to {high:.2f} for nine in ten; mean JCT {mean:.2f}{makespan}."
        )


def beside(label: str, live: RunMetrics, simulated: RunMetrics) -> Beside:
    """Compare app by app.

    Raises
    ------
    InputError : they do not have the same apps.
    """
    names = [[app.name for app in run.apps] for run in (live, simulated)]
    if names[0] != names[1]:
        raise InputError(f"{label}: the live run has {len(names[0])} apps and its simulation {len(names[1])} others.")
    both = [
        a.jct / b.jct
        for a, b in zip(live.apps, simulated.apps)
        if a.outcome == b.outcome == "completed" and a.jct and b.jct
    ]
    return Beside(label=label, live=live, simulated=simulated, ratios=np.array(both))


def ratios(compared: Sequence[Beside], style: Style) -> Drawing:
    """CDF over apps of the completion time live over simulated; a line a live run."""
    drawing, axis = panel("live-over-simulated", "Completion time, live over simulated: CDF over apps", style)
    for i, one in enumerate(compared):
        x = np.sort(one.ratios)
        if len(x):
            y = np.arange(1, len(x) + 1) / len(x)
            (line,) = axis.step(
                np.append(x[:1], x), np.append(0.0, y), where="post", color=colour(i), ls=dash(i), lw=1.6, zorder=3
            )
            mark(line, f"p{i}", style)
    axis.axvline(1.0, color=style.ink, lw=0.8, ls=(0, (2, 2)), zorder=1)
    pooled = np.concatenate([one.ratios for one in compared])
    if len(pooled) and pooled.max() > 25 * pooled.min():
        log_x(axis)
    else:
        ticks(axis, "x", 6)
    axis.set_xlabel("live / simulated")
    axis.set_ylabel("fraction of apps")
    axis.set_ylim(0, 1.02)
    read = Reading(name="live / simulated", value="of apps at or below", per_cent=True)
    return replace(drawing, key=policy_key([one.label for one in compared]), reads=(read,))
