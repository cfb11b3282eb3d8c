"""Pairs of gangs in the live service: an arbiter in process, eight GPUs on two machines."""

from __future__ import annotations

from pathlib import Path

from fake import request, world

from themis.schema import messages as schema
from themis.service.api.submission import submit
from themis.testing.builders import shared_book


def of_flat(gpus: int) -> schema.SubmitRequest:
    """A gang of a model that keeps 0.9 of its speed beside another."""
    asked = request(f"gang-of-{gpus}", gpus=(gpus, gpus), steps=1e4)
    asked.jobs[0].model = "flat"
    return asked  # type: ignore[no-any-return]


def test_two_gangs_of_four_share_the_gpus_of_a_machine_and_a_gang_of_two_shares_with_none(tmp_path: Path) -> None:
    """Four gangs of 4 on 8 GPUs: all of them run, at 0.9 of their speed in place of half of the time."""
    policy = "max_min_fairness:sharing=true,round_s=2"
    with world(tmp_path, 4, 4, book=shared_book(0.9), policy=policy) as w:
        for _ in range(4):
            w.ask(lambda arbiter: submit(arbiter, of_flat(4)))
        w.turn(2.0)
        w.turn(2.0)
        machines = {(0, 1, 2, 3), (4, 5, 6, 7)}
        assert set(w.held()) == {0, 1, 2, 3}
        assert sorted(w.held().values()) == sorted([*machines, *machines])
        # No other gang has its size.
        small = w.ask(lambda arbiter: submit(arbiter, of_flat(2))).app
        shared = alone = 0
        for _ in range(40):
            w.turn(2.0)
            held = w.held()
            mine = held.pop(small, ())
            assert all(set(mine).isdisjoint(other) for other in held.values())
            assert all(gang in machines for gang in held.values())
            alone += bool(mine)
            shared += len(held) > len(set(held.values()))
        assert alone > 0
        assert shared > 30
    with world(tmp_path, 4, 4, book=shared_book(0.9), policy=policy) as again:
        again.turn(2.0)
        again.turn(2.0)
        assert len(again.held()) > len(set(again.held().values())), "restored, pairs share again"
