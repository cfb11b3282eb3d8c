"""What one machine sends ends at that machine: the service goes on, its journal folds, and other machines' jobs run."""

from __future__ import annotations

import time

import pytest

from extremes import count
from simulation.liar import LIAR, LyingWorld, lying
from themis.model.events import MachineFailed
from themis.service.engine.journal import Journal


def _audited(world: LyingWorld) -> list[MachineFailed]:
    """The failures of machines by the journal, which is whole and folds."""
    world.service.stop()
    world.checks.at_end()
    journal = Journal(world.disk.path)
    try:
        return [record for _, record in journal.records() if isinstance(record, MachineFailed)]
    finally:
        journal.db.close()


@pytest.mark.slow
def test_messages_near_to_right_ones_end_at_their_machine_and_each_refusal_says_why() -> None:
    most = count("THEMIS_FUZZ", 2000)
    began = time.process_time()
    with lying(None, most) as world:
        failures = _audited(world)
        print(
            f"{most} messages, {sum(world.refused.values())} refused in {len(world.refused)} sentences, "
            f"{world.turns} turns, {world.given} tasks, {world.submitted} apps, {time.process_time() - began:.1f} CPU s"
        )
        assert world.refused_right == []
        assert sum(world.refused.values()) > most / 10
        assert all(reason.isprintable() and reason.endswith(".") for reason in world.refused)
        assert world.given > most / 200
        assert {failed.machine for failed in failures} == {LIAR}
