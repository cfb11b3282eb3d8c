"""Seeded histories of the whole service in one process: no promise is broken, one seed is one story, mutations are found.

``THEMIS_SIMULATED_SEEDS`` is the number of histories, ``THEMIS_SIMULATED_FIRST`` the first seed; ``make soak`` runs 10,000.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from simulation.plan import draw
from simulation.shrink import report
from simulation.world import run

pytestmark = pytest.mark.slow
SEEDS = int(os.environ.get("THEMIS_SIMULATED_SEEDS", "96"))
FIRST = int(os.environ.get("THEMIS_SIMULATED_FIRST", "0"))
PARTS = 4
"""Tests that share the seeds, for pytest-xdist."""
QUICKLY_FOUND = {
    "a supervisor takes words in order": 102,
}


@pytest.fixture(autouse=True)
def _quiet() -> Iterator[None]:
    """Simulated disks are full, and the service says so."""
    logging.disable(logging.ERROR)
    yield
    logging.disable(logging.NOTSET)


@pytest.mark.parametrize("part", range(PARTS))
@pytest.mark.timeout(450 if SEEDS <= 1000 else 4 * SEEDS)
def test_no_promise_is_broken_in_any_simulated_history(part: int) -> None:
    for seed in range(FIRST + part, FIRST + SEEDS, PARTS):
        history = run(seed)
        assert not history.wrong, report(draw(seed))


def test_the_same_seed_gives_the_same_story(tmp_path: Path) -> None:
    for seed in range(1000, 1004):
        first, second = run(seed), run(seed)
        assert first == second
        assert len(first.story) > 5
