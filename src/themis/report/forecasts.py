"""Errors of forecasts as a table and as a figure against progress (Shockwave figure 5)."""

from __future__ import annotations

from pathlib import Path

import matplotlib
from matplotlib.figure import Figure
from rich import box
from rich.table import Table

from themis.errors import InputError
from themis.fairness.forecasts.evaluate import KINDS, RULES, Errors
from themis.report.look.palette import POLICY_COLOURS
from themis.report.style import DASHES, FILE

TITLES = {"regimes": "regimes' shares", "batches": "epochs at a wrong batch size", "run_time": "run time"}
FORMATS = (".png", ".svg")


def check_name(path: Path) -> None:
    """Raise InputError where the name's ending is no format that can be drawn."""
    if path.suffix.lower() not in FORMATS:
        raise InputError(f"cannot draw {str(path)!r}: the name ends in {path.suffix!r}, expected .png or .svg.")


def table(errors: Errors) -> Table:
    """A row a rule: mean errors in percent over all dynamic jobs, and over those that do change their batch size."""
    out = Table(box=box.SIMPLE_HEAD, padding=(0, 1, 0, 0))
    out.add_column("rule")
    some = [False, *([True] if errors.changes.any() and not errors.changes.all() else [])]
    for changing in some:
        for kind in KINDS:
            out.add_column(f"{TITLES[kind]}, %{chr(10)}{'jobs that change' if changing else 'all'}", justify="right")
    for rule in RULES:
        cells = [f"{100 * errors.mean(rule, kind, changing=changing):.1f}" for changing in some for kind in KINDS]
        out.add_row(str(rule), *cells)
    return out


def write_errors(path: Path, errors: Errors, *, title: str) -> None:
    """Draw mean errors against progress: solid over jobs that change their batch size, if any does not.

    Raises
    ------
    InputError : the name's ending is neither ``.png`` nor ``.svg``, or the file cannot be written.
    """
    check_name(path)
    metadata = {"Date": None} if path.suffix.lower() == ".svg" else {"Software": None}
    with matplotlib.rc_context({"svg.hashsalt": "themis", "svg.fonttype": "none", "font.size": 9}):
        figure = Figure(figsize=(10.5, 3.6), layout="constrained")
        for axis, kind in zip(figure.subplots(1, len(KINDS)), KINDS):
            for i, rule in enumerate(RULES):
                for changing in (True, False):
                    if changing and not errors.changes.any():
                        continue
                    axis.plot(
                        100 * errors.progress,
                        100 * errors.curve(rule, kind, changing=changing),
                        color=POLICY_COLOURS[i],
                        linestyle=DASHES[0 if changing else 1],
                        linewidth=1.6,
                        label=f"{rule}, {'jobs that change' if changing else 'all dynamic jobs'}",
                    )
            axis.set(
                title=f"Error of {TITLES[kind]}",
                xlabel="epochs done, %",
                ylabel="mean error, %",
                xlim=(0, 100),
                ylim=(0, None),
            )
            axis.grid(color=FILE.faint)
            axis.spines[["top", "right"]].set_visible(False)
        figure.suptitle(title, fontsize=10, fontweight="bold")
        figure.legend(*axis.get_legend_handles_labels(), loc="outside lower center", ncols=3, frameon=False)
        try:
            figure.savefig(path, dpi=150, metadata=metadata)
        except OSError as error:
            raise InputError(f"cannot write {str(path)!r}: {error.strerror}.") from None
