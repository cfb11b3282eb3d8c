"""Shared by all tests: where the real traces are, if they are."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings

# A busy machine is no fault of a test: how long drawing an example takes says nothing here.
settings.register_profile("themis", suppress_health_check=[HealthCheck.too_slow], deadline=None)
settings.load_profile("themis")


@pytest.fixture(scope="session")
def shared_data() -> Path:
    """The folder of real traces, or skip."""
    here = Path(os.environ.get("THEMIS_DATA", Path(__file__).parents[2] / "shared" / "data"))
    if not here.is_dir():
        pytest.skip(f"no real traces at {here}; set THEMIS_DATA to their folder")
    return here
