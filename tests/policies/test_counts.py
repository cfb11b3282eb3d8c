"""How many rounds each job gets: against brute force, an independent program, and what must not matter."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from windows import best_by_trying, plain_window, random_window

from themis.optimize.rounds.knapsack import Choices, PricedJobs, best_counts, fitting
from themis.optimize.rounds.window import Window
from themis.optimize.rounds.window_program import best_of_choices


def permuted(w: Window, order: np.ndarray) -> Window:
    rows = {name: getattr(w, name)[order] for name in ("gpus", "spent", "value", "left", "useful")}
    return replace(w, **rows)


def everything(w: Window, seed: int = 0) -> float:
    """The optimum by an integer program over all choices, solved to no gap."""
    nothing = np.zeros(w.jobs, dtype=np.int64)
    choice = np.arange(w.value.shape[1]) <= w.useful[:, None]
    n, bound = best_of_choices(w, choice, nothing, nothing, gap=0.0, nodes=100_000, seed=seed)
    assert bound == pytest.approx(w.objective(n), abs=1e-7)
    return w.objective(n)


@pytest.mark.parametrize("seed", range(12))
@pytest.mark.parametrize("price", [0.0, 0.3, 10.0])
def test_small_windows_match_brute_force(seed: int, price: float) -> None:
    window = random_window(seed, jobs=5, capacity=4, rounds=4, price=price)
    found = best_counts(window, gap=0.0)
    assert found.objective == pytest.approx(best_by_trying(window), rel=1e-9)
    assert found.objective == pytest.approx(window.objective(found.n))


@pytest.mark.parametrize("seed", range(8))
@pytest.mark.parametrize("price", [0.0, 0.3, 10.0])
def test_columns_of_several_rounds_match_brute_force(seed: int, price: float) -> None:
    """Two single rounds, then one of two and one of three: whoever needs less than a column takes no more of it."""
    window = random_window(seed, jobs=5, capacity=4, rounds=7, price=price, fine=2)
    assert (window.spent.max(axis=1) <= 7).all()
    found = best_counts(window, gap=0.0)
    assert found.objective == pytest.approx(best_by_trying(window), rel=1e-9)
    assert int(window.gpus @ window.takes(found.n)) <= window.room


@pytest.mark.parametrize("seed", range(6))
@pytest.mark.parametrize("price", [0.0, 0.1, 1.0, 10.0])
def test_the_bound_holds_and_the_gap_is_what_was_asked_for(seed: int, price: float) -> None:
    window = random_window(seed, price=price)
    found = best_counts(window, gap=1e-3)
    optimum = everything(window)
    assert found.objective <= optimum + 1e-9
    assert found.bound >= optimum - 1e-9
    assert found.gap <= 1e-3


@pytest.mark.parametrize("seed", range(4))
def test_any_prices_bound_the_optimum(seed: int) -> None:
    window = random_window(seed, jobs=12, price=1.0)
    optimum, choices = everything(window), Choices(window)
    rng = np.random.default_rng(seed)
    for _ in range(20):
        priced = PricedJobs(choices, float(rng.uniform(0, 0.1)), float(rng.uniform(0, window.pull)))
        assert priced.bound >= optimum - 1e-9


def test_choices_of_the_best_plan_are_never_ruled_out() -> None:
    window = random_window(3, jobs=12, price=1.0)
    found = best_counts(window, gap=0.0)
    priced = PricedJobs(Choices(window), found.price, 0.5 * window.pull)
    chance, floor = priced.chances(found.objective - 1e-9)
    assert chance[np.arange(window.jobs), found.n].all()
    assert (found.n >= floor).all()


@pytest.mark.parametrize("seed", range(5))
def test_the_order_of_jobs_and_the_solvers_seed_do_not_matter(seed: int) -> None:
    window = random_window(seed, jobs=20, price=1.0)
    order = np.random.default_rng(seed).permutation(window.jobs)
    here, there = best_counts(window, gap=1e-6), best_counts(permuted(window, order), gap=1e-6)
    assert there.objective == pytest.approx(here.objective, rel=1e-5)
    assert everything(window, seed=1) == pytest.approx(everything(window, seed=7), abs=1e-7)


@pytest.mark.parametrize("seed", range(8))
def test_counts_fit_and_no_useful_gang_fits_what_is_left(seed: int) -> None:
    window = random_window(seed)
    n = best_counts(window).n
    room = window.capacity * window.rounds - int(window.gpus @ n)
    assert room >= 0
    assert ((n >= 0) & (n <= window.useful)).all()
    assert not ((n < window.useful) & (window.gpus <= room)).any()


def test_who_wants_less_than_there_is_gets_all_of_it() -> None:
    window = random_window(0, jobs=3, capacity=32, rounds=40)
    found = best_counts(window)
    assert (found.n == window.useful).all()
    assert found.gap == 0.0


def test_no_jobs_get_no_rounds() -> None:
    window = random_window(0, jobs=1)
    nobody = permuted(window, np.zeros(0, dtype=np.int64))
    assert len(best_counts(nobody).n) == 0


def test_a_job_that_speeds_up_late_is_not_taken_for_its_envelope() -> None:
    """One GPU, four rounds; the convex job is worth nothing before its last round, which a line above it would hide."""
    value = np.array([[0.0, 0.0, 0.0, 0.0, 3.0], [0.0, 1.0, 2.0, 2.5, 2.6]])
    window = plain_window([1, 1], 1, value, left=4)
    assert best_counts(window, gap=0.0).n.tolist() == [4, 0]


def test_rounds_that_do_not_fit_are_taken_from_whoever_loses_least() -> None:
    value = np.array([[0.0, 5.0, 9.0], [0.0, 3.0, 4.0]])
    window = plain_window([1, 1], 1, value, left=2)
    assert fitting(window, np.array([2, 2]), np.array([0, 0])).tolist() == [2, 0]


@pytest.mark.parametrize(
    "limits", [{"nodes": 1}, {"seconds": 0.0}]
)  # HiGHS may need no second node; no time ends every search
def test_a_search_that_is_cut_short_still_gives_a_plan_and_a_true_gap(limits: dict[str, float]) -> None:
    """The plan at hand and its bound stand: an optimum between them, and a gap that says how far they are apart."""
    gaps = []
    for seed in range(4):
        window = random_window(seed, price=1.0)
        found = best_counts(window, gap=0.0, **limits)  # type: ignore[arg-type]
        optimum = everything(window)
        assert found.objective <= optimum + 1e-9
        assert found.bound >= optimum - 1e-9
        assert found.objective == pytest.approx(window.objective(found.n))
        gaps.append(found.gap)
    assert "nodes" in limits or max(gaps) > 1e-6, "the limit was never hit, so this shows nothing"
