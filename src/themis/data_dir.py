"""The default data directory of the service, its clients and the simulator."""

from __future__ import annotations

import os
from pathlib import Path

DATA_DIR, HOME = "THEMIS_DATA_DIR", "THEMIS_HOME"
"""Environment variables that name the data directory; ``THEMIS_HOME`` is an alias."""


def default_home() -> Path:
    """The default data directory: ``$THEMIS_DATA_DIR``, ``$THEMIS_HOME``, or ``~/.themis``."""
    return Path(os.environ.get(DATA_DIR, "") or os.environ.get(HOME, "") or Path.home() / ".themis").absolute()
