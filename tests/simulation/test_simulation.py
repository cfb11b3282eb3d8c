"""Seeded histories of the whole service in one process: no promise is broken, one seed is one story, mutations are found.

``THEMIS_SIMULATED_SEEDS`` is the number of histories, ``THEMIS_SIMULATED_FIRST`` the first seed; ``make soak`` runs 10,000.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from simulation.mutations import BY_HAND, find
from simulation.mutations import MUTATIONS as ALL
from simulation.shrink import report
from simulation.world import history, run

pytestmark = pytest.mark.slow
SEEDS = int(os.environ.get("THEMIS_SIMULATED_SEEDS", "96"))
FIRST = int(os.environ.get("THEMIS_SIMULATED_FIRST", "0"))
PARTS = 4
"""Tests that share the seeds, for pytest-xdist."""
MUTATIONS = int(os.environ.get("THEMIS_SIMULATED_MUTATIONS", "0"))
"""Seeds, from 0 on, in which each mutation must be found that is not told by hand.

0: ``QUICK`` alone, each from a seed near the one that finds it."""
QUICK = {
    "unrecorded steps move the clock": 4,
    "journals leave no trace outside": 10,
    "strays are found by their environment alone": 25,
    "answers go out before the commit": 9,
    "commits are not synced": 0,
    "the grace is forgotten": 0,
    "GPUs are free before JobStopped": 5,
    "a fold drops the last record": 0,
    "accounts do not know GPUs that came": 4,
    "a start takes its settings as given": 1,
    "leases that fail are not written to the accounts": 0,
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
        found = run(seed)
        assert not found.wrong, report(history(seed))


def test_the_same_seed_gives_the_same_story(tmp_path: Path) -> None:
    for seed in range(1000, 1002):
        first, second = run(seed), run(seed)
        assert first == second
        assert len(first.story) > 5


@pytest.mark.parametrize("name", [name for name in ALL if name not in BY_HAND] if MUTATIONS else QUICK)
@pytest.mark.timeout(450 if not MUTATIONS else 10 * MUTATIONS)
def test_faults_that_are_put_into_the_code_are_found(name: str) -> None:
    found = find(name, MUTATIONS or 40, first=0 if MUTATIONS else QUICK[name])
    assert found is not None, f"no history breaks a promise although {name}"
    print(f"{name}: found by seed {found[0]}: {found[1].wrong}")
