"""Sentences that the report and the command line share; they are made without reading a log."""

from __future__ import annotations

from collections.abc import Mapping

TYPE_CHECKING = False
if TYPE_CHECKING:  # numpy loads in 0.1 s, for a name
    from themis.model.units import GpuSeconds


LEAST_S = 30.0
"""GPU-seconds below which what an app was entitled to says nothing: the first lease takes as long."""


def delivered(entitled: GpuSeconds | None, received: GpuSeconds, missing: Mapping[str, GpuSeconds]) -> str:
    """Sentence on the GPU time that the app was entitled to and received; empty while that is little."""
    if entitled is None or not entitled >= LEAST_S:
        return ""
    # Minutes where hours would be printed as 0.0.
    size, unit = (3600.0, "hours") if max(entitled, received) > 360 else (60.0, "minutes")
    causes = {name: value / size for name, value in missing.items() if abs(value) >= 0.005 * entitled}
    # What would be printed as 0.0 explains nothing.
    parts = ", ".join(f"{name} {value:+.1f}" for name, value in causes.items() if abs(value) >= 0.05)
    return (
        f"It received {received / size:.1f} of the {entitled / size:.1f} GPU {unit} that it was entitled to "
        f"({received / entitled:.0%}){f'; missing by cause: {parts}' if parts else ''}."
    )


def span(seconds: float) -> str:
    """A duration in the unit that reads best: ``44 s``, ``4.5 min``, ``3.0 h``, ``12.0 d``; 0 or more."""
    for limit, unit, size in ((120.0, "s", 1.0), (7200.0, "min", 60.0), (172800.0, "h", 3600.0)):
        if seconds < limit:
            return f"{seconds / size:.{0 if size == 1.0 else 1}f} {unit}"
    return f"{seconds / 86400.0:.1f} d"


ALIKE_S = 5.0
"""Seconds below which two ends are one."""


def sooner(seconds: float) -> str:
    """``12.0 min sooner``, ``30 s later``, ``the same``: an end against that on one's own share; below 0 is later."""
    if abs(seconds) < ALIKE_S:
        return "the same"
    return f"{span(abs(seconds))} {'sooner' if seconds > 0 else 'later'}"


def against_own_share(seconds: float) -> str:
    """``12.0 min sooner than on its own share``."""
    return (
        "at the same time as on its own share" if abs(seconds) < ALIKE_S else f"{sooner(seconds)} than on its own share"
    )
