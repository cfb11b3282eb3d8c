"""First in, first out by hand, and what all policies that deal in an order share."""

from __future__ import annotations

from policy_cases import dealt

from themis.policies.fifo import Fifo
from themis.testing.builders import app, job, machines, snapshot_of


def test_the_first_takes_its_demand_and_gangs_that_do_not_fit_are_passed_over() -> None:
    apps = [app("a", [job(900.0, (1, 3))]), app("b", [job(900.0, 2)], 1.0), app("c", [job(900.0)], 2.0)]
    assert dealt(Fifo(), snapshot_of(machines(4), apps, now=2.0)) == [3, 0, 1]


def test_gpu_that_an_elastic_gang_declines_goes_to_the_next_app() -> None:
    # A third GPU in another rack would slow a down: 3 / 1.6 < 2.
    apps = [app("a", [job(900.0, (1, 3), model="chatty")]), app("b", [job(900.0)], 1.0)]
    assert dealt(Fifo(), snapshot_of(machines(2, 1, per_rack=1), apps, now=1.0)) == [2, 1]
