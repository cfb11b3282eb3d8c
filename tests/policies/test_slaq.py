"""SLAQ by hand: decreases of loss, GPU by GPU."""

from __future__ import annotations

from policy_cases import after, dealt

from themis.model.workload import LossCurve
from themis.policies.slaq import Slaq
from themis.testing.builders import app, job, machines, snapshot_of


def test_gpus_go_where_the_loss_falls_most_within_a_lease() -> None:
    # 600 steps per GPU and lease. a: 1 / (.01 i + 1) from 0 steps: GPUs bring .857, .066, .024.
    # b: 10 / (.01 i + 1) from 900 steps: .375, .170, .097, .063.
    a = app("a", [job(1e6, (1, 4), loss=LossCurve(a=1.0, b=0.01, c=7.0))])
    b = app("b", [job(1e6, (1, 4), loss=LossCurve(a=10.0, b=0.01))])
    split = {n: dealt(Slaq(), after(snapshot_of(machines(n), [a, b]), job_done=[0, 900])) for n in range(1, 7)}
    assert split == {1: [1, 0], 2: [1, 1], 3: [1, 2], 4: [1, 3], 5: [2, 3], 6: [2, 4]}


def test_loss_falls_no_further_than_the_job_trains() -> None:
    # Both fall alike, but a ends after 30 steps: 1 - 1 / 1.3 = .23 against 1 - 1 / 7 = .86.
    jobs = [job(steps, loss=LossCurve(a=1.0, b=0.01)) for steps in (30.0, 1e6)]
    s = snapshot_of(machines(1), [app("a", jobs[:1]), app("b", jobs[1:])])
    assert dealt(Slaq(), s) == [0, 1]


def test_jobs_whose_loss_is_flat_take_what_nobody_else_wants() -> None:
    flat, falling = job(900.0), job(900.0, loss=LossCurve(a=1.0, b=0.01))
    apps = [app("a", [flat]), app("b", [falling])]
    assert dealt(Slaq(), snapshot_of(machines(1), apps)) == [0, 1]
    assert dealt(Slaq(), snapshot_of(machines(2), apps)) == [1, 1]
