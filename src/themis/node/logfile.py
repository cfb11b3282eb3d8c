"""Logs of our own processes, bounded where they begin anew."""

from __future__ import annotations

import contextlib
import os
from pathlib import Path

MOST = 16 << 20
"""Bytes; with the one before it twice as many are kept."""


def turned(path: Path) -> Path:
    """The log to append to; one that is long becomes ``NAME.1`` before, in place of the last of that name."""
    with contextlib.suppress(OSError):
        if path.lstat().st_size > MOST:
            os.replace(path, f"{path}.1")
    return path
