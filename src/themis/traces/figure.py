"""Demand against capacity, drawn: one figure, as PNG or SVG. Equal workloads give equal bytes."""

from __future__ import annotations

from pathlib import Path

import matplotlib
from matplotlib.figure import Figure

from themis.errors import InputError
from themis.traces.demand import DemandCurve

FORMATS = (".png", ".svg")
_DEMAND, _CAPACITY = "#0072b2", "#d55e00"


def check_name(path: Path) -> None:
    """Raise InputError where the name's ending is no format that can be drawn."""
    if path.suffix.lower() not in FORMATS:
        raise InputError(f"cannot draw {str(path)!r}: the name ends in {path.suffix!r}, expected .png or .svg.")


def write_demand(path: Path, wanted: DemandCurve, *, title: str, capacity: int | None = None) -> None:
    """Draw demand over time, with a line at the cluster's GPUs.

    Raises
    ------
    InputError : the name's ending is neither ``.png`` nor ``.svg``, or the file cannot be written.
    """
    check_name(path)
    span = float(wanted.edges[-1] - wanted.edges[0])
    unit, name = (86400.0, "days") if span > 3 * 86400 else (3600.0, "hours")
    figure = Figure(figsize=(9, 3.2), layout="constrained")
    axis = figure.subplots()
    axis.stairs(
        wanted.gpus, (wanted.edges - wanted.edges[0]) / unit, fill=True, color=_DEMAND, alpha=0.75, label="wanted"
    )
    if capacity is not None:
        axis.axhline(capacity, color=_CAPACITY, lw=1.5, label=f"capacity, {capacity}")
        axis.legend(loc="upper right", frameon=False)
    axis.set(xlabel=f"{name} from the first arrival", ylabel="GPUs", title=title, xlim=(0, span / unit))
    axis.set_ylim(0, max(float(wanted.gpus.max()), capacity or 0) * 1.08)
    axis.spines[["top", "right"]].set_visible(False)
    metadata = {"Date": None} if path.suffix.lower() == ".svg" else {"Software": None}
    try:
        with matplotlib.rc_context({"svg.hashsalt": "themis", "svg.fonttype": "none"}):
            figure.savefig(path, dpi=150, metadata=metadata)
    except OSError as error:
        raise InputError(f"cannot write {str(path)!r}: {error.strerror}.") from None
