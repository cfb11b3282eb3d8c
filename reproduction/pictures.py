"""Figures of the reproduction pages, in the look of the reports."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

import matplotlib
import numpy as np
from matplotlib.figure import Figure

from themis.report.style import DASHES, FILE, POLICY_COLOURS

POINTS = 150
"""Points of a line at most: the least and the greatest value, and quantiles between."""


def distributions(path: Path, panels: Mapping[str, Mapping[str, Sequence[float]]]) -> None:
    """Cumulative distributions of ρ, a panel each; the line at 1 is what an app's own 1/N would give."""
    with matplotlib.rc_context({"svg.hashsalt": "themis", "svg.fonttype": "none", "font.size": 9}):
        figure = Figure(figsize=(10.5, 6.6), layout="constrained")
        axes = figure.subplots(2, 2).ravel()
        for axis, (title, lines) in zip(axes, panels.items()):
            for i, (label, values) in enumerate(lines.items()):
                x = np.sort(np.asarray(values))
                shown = np.unique(np.linspace(0, len(x) - 1, POINTS).astype(np.int64))
                axis.step(
                    x[shown],
                    100 * (shown + 1) / len(x),
                    where="post",
                    label=label,
                    linewidth=1.6,
                    color=POLICY_COLOURS[i % len(POLICY_COLOURS)],
                    linestyle=DASHES[i % len(DASHES)],
                )
            axis.axvline(1.0, color=FILE.ink, linewidth=0.8)
            axis.set(
                title=title, xscale="log", xlabel="ρ (lower is better; 1 = own 1/N)", ylabel="apps, %", ylim=(0, 101)
            )
            axis.grid(color=FILE.faint)
            axis.spines[["top", "right"]].set_visible(False)
        figure.legend(*axes[0].get_legend_handles_labels(), loc="outside lower center", ncols=7, frameon=False)
        figure.savefig(path, metadata={"Date": None})


def against(
    path: Path, label: str, at: Sequence[float], panels: Sequence[tuple[str, Mapping[str, Sequence[float]]]]
) -> None:
    """Lines over something that was varied, a panel a figure."""
    with matplotlib.rc_context({"svg.hashsalt": "themis", "svg.fonttype": "none", "font.size": 9}):
        figure = Figure(figsize=(10.5, 3.4), layout="constrained")
        axes = figure.subplots(1, len(panels)).ravel()
        for axis, (title, lines) in zip(axes, panels):
            for i, (name, values) in enumerate(lines.items()):
                axis.plot(
                    at,
                    values,
                    label=name,
                    linewidth=1.6,
                    marker="o",
                    markersize=3.5,
                    color=POLICY_COLOURS[i % len(POLICY_COLOURS)],
                    linestyle=DASHES[i % len(DASHES)],
                )
            axis.set(title=title, xlabel=label, xticks=list(at))
            axis.set_ylim(bottom=0)
            axis.grid(color=FILE.faint)
            axis.spines[["top", "right"]].set_visible(False)
        figure.legend(*axes[0].get_legend_handles_labels(), loc="outside lower center", ncols=5, frameon=False)
        figure.savefig(path, metadata={"Date": None})
