"""Where the real traces are, for the tests that need them."""

from __future__ import annotations

import os
from pathlib import Path

import pytest


@pytest.fixture
def shared_data() -> Path:
    """The folder of real traces, or a skip."""
    root = Path(os.environ.get("THEMIS_DATA") or Path(__file__).parents[2] / "../shared/data")
    if not root.is_dir():
        pytest.skip(f"real traces are not at {root}; set THEMIS_DATA")
    return root
