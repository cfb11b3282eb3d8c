"""Optimus by hand: marginal throughput, GPU by GPU."""

from __future__ import annotations

from policy_cases import dealt

from themis.model.speed import ANY_TYPE, Curve, Profile, ProfileBook, linear
from themis.policies.api import Workbench
from themis.policies.optimus import Optimus
from themis.testing.builders import app, job, machines, snapshot_of

SUBLINEAR = Profile(name="sublinear", curves={(ANY_TYPE, 0): Curve(gpus=(1, 2, 3, 4), rate=(1.0, 1.5, 1.8, 2.0))})
BOOK = ProfileBook.of([SUBLINEAR, linear("flat", 1.0)])


def test_gpus_go_where_throughput_scales_most() -> None:
    # a scales by 1.5, 1.2, 1.11 and b by 2, 1.5, 1.33 with GPUs 2, 3, 4; at 1.5 both a's second and b's third: a came first.
    apps = [app("a", [job(900.0, (1, 4), model="sublinear")]), app("b", [job(900.0, (1, 4))], 1.0)]
    split = {n: dealt(Optimus(), snapshot_of(machines(n), apps, now=1.0, book=BOOK)) for n in range(1, 9)}
    assert split == {
        1: [1, 0],
        2: [1, 1],
        3: [1, 2],
        4: [2, 2],
        5: [2, 3],
        6: [2, 4],
        7: [3, 4],
        8: [4, 4],
    }


def test_gpu_in_another_rack_counts_for_what_it_brings() -> None:
    # The third GPU would bring a, which is slowed down by 1.6 across racks, 2 / 1.6 = 1.25, and b 2.
    apps = [app("a", [job(900.0, (1, 2), model="chatty")]), app("b", [job(900.0, (1, 2))], 1.0)]
    assert dealt(Optimus(), snapshot_of(machines(1, 1, 1, per_rack=1), apps, now=1.0)) == [1, 2]
    assert dealt(Optimus(), snapshot_of(machines(3), apps, now=1.0)) == [2, 1]


def test_throughput_that_an_app_has_already_counts() -> None:
    # a holds 2 GPUs beyond this instant and would scale by 1.5 with one more; b has nothing.
    apps = [app("a", [job(900.0, 2), job(900.0)]), app("b", [job(900.0), job(900.0)], 1.0)]
    s = snapshot_of(machines(4), apps, held=[(0, (0, 1), 600.0)], now=1.0)
    assert dealt(Optimus(), s) == [0, 2]


def test_leases_given_while_a_gang_is_larger_than_the_offer_end_with_the_others() -> None:
    apps = [app("a", [job(9000.0, 3)]), app("b", [job(9000.0)], 1.0), app("c", [job(9000.0)], 1.0)]
    s = snapshot_of(machines(3), apps, held=[(1, (0,), 400.0), (2, (1,), 600.0)], now=400.0)
    answer = Optimus()(s, Workbench()).answer
    assert answer.until.tolist() == [600.0]  # type: ignore[union-attr]
