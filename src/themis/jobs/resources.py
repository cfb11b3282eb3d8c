"""Values with units, from their former place; see ``themis.sizes``."""

from __future__ import annotations

from themis.sizes import DURATION, Unreadable, duration, gpus, memory

__all__ = ["DURATION", "Unreadable", "duration", "gpus", "memory"]
