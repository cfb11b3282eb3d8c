"""Sentences that the report and the command line share; they are made without reading a log."""

from __future__ import annotations

from collections.abc import Mapping

TYPE_CHECKING = False
if TYPE_CHECKING:  # numpy loads in 0.1 s, for a name
    from themis.model.units import GpuSeconds


def delivered(entitled: GpuSeconds | None, received: GpuSeconds, missing: Mapping[str, GpuSeconds]) -> str:
    """Sentence on the GPU time that the app was entitled to and received; empty where it is entitled to none yet."""
    if entitled is None or not entitled > 0:
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
