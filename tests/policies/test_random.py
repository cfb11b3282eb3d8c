"""Random: drawn anew for each decision, the same for the same seed."""

from __future__ import annotations

from dataclasses import replace

from policy_cases import dealt

from themis.policies.random import Random
from themis.testing.builders import app, job, machines, snapshot_of


def test_every_app_gets_its_turn_about_equally_often() -> None:
    s = snapshot_of(machines(1), [app(n, [job(900.0)]) for n in "abc"])
    turns = [dealt(Random(), replace(s, round=r)) for r in range(300)]
    assert all(80 <= sum(column) <= 120 for column in zip(*turns))


def test_another_seed_draws_another_order() -> None:
    s = snapshot_of(machines(1), [app(n, [job(900.0)]) for n in "abc"])
    draws = {tuple(tuple(dealt(Random(), replace(s, seed=seed, round=r))) for r in range(20)) for seed in range(5)}
    assert len(draws) == 5
