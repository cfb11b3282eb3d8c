"""What the auction says was paid is what was paid."""

from __future__ import annotations

import math
from collections.abc import Iterator

from themis.model.answers import GpuGrant, Proof
from themis.model.events import Allocated
from themis.model.log import Record
from themis.model.units import Seconds
from themis.sim.plan import Plan


def test_a_winner_that_is_charged_nothing_is_logged_to_keep_all() -> None:
    run, records = (
        Plan(workload="demo:hours=2", policies=("themis",)).runs()[0].simulation,
        list[tuple[Seconds, Record]](),
    )
    run.run(sink=lambda time, record: records.append((time, record)))
    full = 0
    for time, answer, proof in _auctions(records):
        for app, won, kept, leftover in zip(proof.app, proof.won, proof.kept, proof.leftover, strict=True):
            if won and not leftover:
                until = answer.until[answer.app == app].max()
                assert until - time <= 600.0 * kept + 60.0 + 1e-6, (
                    "longer than what the payment leaves, to the next tick"
                )
                full += until - time >= 600.0
            assert kept > math.exp(-20.0), "no winner pays all but nothing"
    assert full > 5


def _auctions(records: list[tuple[Seconds, Record]]) -> Iterator[tuple[Seconds, GpuGrant, Proof]]:
    for time, record in records:
        if isinstance(record, Allocated) and isinstance(record.solved.answer, GpuGrant) and record.solved.proof:
            yield time, record.solved.answer, record.solved.proof
