"""Rounds of gangs: against all sequences of sets, a list of all sets, and limits that end the search."""

from __future__ import annotations

from dataclasses import replace
from itertools import product

import numpy as np
import pytest
from windows import random_window

from themis.optimize.rounds import gang_rounds
from themis.optimize.rounds.gang_rounds import GangRounds, best_rounds, maximal_sets
from themis.optimize.rounds.knapsack import best_counts
from themis.optimize.rounds.window import Window
from themis.policies.planning.order import evenly, in_time


def of_odd_gangs(seed: int, jobs: int = 5) -> Window:
    """A small window of gangs of any size."""
    rng = np.random.default_rng(seed)
    capacity = int(rng.integers(3, 8))
    price = float(rng.choice([0.0, 0.3, 10.0]))
    window = random_window(seed, jobs=jobs, capacity=capacity, rounds=3, price=price)
    return replace(window, gpus=rng.integers(1, capacity + 1, jobs))


def fitting_sets(gpus: np.ndarray, room: int) -> list[tuple[int, ...]]:
    """All sets to which no gang can be added, by trying."""
    fits = [c for c in product((0, 1), repeat=len(gpus)) if gpus @ c <= room]
    return [c for c in fits if all(mine or gpus @ c + z > room for mine, z in zip(c, gpus.tolist()))]


def best_by_trying(w: Window) -> float:
    """The optimum over all sequences of sets that fit."""
    reached = {(0,) * w.jobs}
    for _ in range(w.rounds):
        reached = {
            tuple(a + b for a, b in zip(n, chosen)) for n in reached for chosen in fitting_sets(w.gpus, w.capacity)
        }
    return max(w.objective(w.reached(np.array(n))) for n in reached)


def improved(w: Window, gap: float = 0.0) -> GangRounds:
    """From idle rounds."""
    idle = np.zeros((w.jobs, w.rounds), dtype=np.int64)
    counts = best_counts(w, gap=gap)
    choice, floor = counts.chances(w, counts.idle)
    return best_rounds(w, idle, choice, floor, bound=counts.bound, gap=gap, nodes=2000)


@pytest.mark.parametrize("seed", range(20))
def test_from_nothing_to_the_best_of_all_sequences(seed: int) -> None:
    window = of_odd_gangs(seed)
    found, best = improved(window), best_by_trying(window)
    assert found.objective == pytest.approx(best, rel=1e-9, abs=1e-9)
    assert found.bound == pytest.approx(best, rel=1e-6, abs=1e-6)
    assert found.times.sum() <= window.rounds
    assert (found.sets @ window.gpus <= window.capacity).all()


@pytest.mark.parametrize("seed", range(6))
def test_all_sets_are_listed_or_it_is_said(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    rng = np.random.default_rng(seed)
    gpus, price = rng.integers(1, 5, 9), np.round(rng.uniform(0, 1, 9), 1)
    found, complete = maximal_sets(gpus, 8, price, 1.0)
    dear = {c for c in fitting_sets(gpus, 8) if price @ c >= 1.0}
    assert complete
    assert {tuple(one.astype(int).tolist()) for one in found} == dear
    monkeypatch.setattr(gang_rounds, "LISTED", 2)
    few, complete = maximal_sets(gpus, 8, price, 1.0)
    assert (len(few), complete) == (2, False)


@pytest.mark.parametrize("limit", ["LARGEST", "SETS", "LISTED"])
@pytest.mark.parametrize("seed", range(4))
def test_at_a_limit_the_bound_still_holds(seed: int, limit: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gang_rounds, limit, 1)
    window = of_odd_gangs(seed)
    found, best = improved(window), best_by_trying(window)
    assert found.objective <= best + 1e-9
    assert found.bound >= best - 1e-9


@pytest.mark.parametrize("seed", range(6))
def test_gangs_of_one_size_find_all_their_rounds(seed: int) -> None:
    """Counts that fit in sum fit side by side: by rank one of the three may lose its last rounds."""
    window = replace(random_window(seed, jobs=12, capacity=9, rounds=6), gpus=np.full(12, 3))
    n = best_counts(window).n
    run = evenly(window, n)
    assert (run.sum(axis=1) == window.takes(n)).all()
    assert (window.gpus @ run <= window.capacity).all()


def test_rounds_come_in_the_order_of_who_runs_or_of_ranks() -> None:
    window = replace(random_window(0, jobs=3, capacity=2, rounds=4), gpus=np.array([2, 1, 1]))
    sets, times = np.array([[True, False, False], [False, True, True]]), np.array([2, 2])
    given = {"running": np.array([False, True, True]), "rank": np.array([0.0, 1.0, 1.0])}
    for stay, first in ((True, 1), (False, 0)):
        run = in_time(window, sets, times, stay=stay, **given)
        assert run[:, :2].T.tolist() == [sets[first].astype(int).tolist()] * 2
        assert run[:, 2:].T.tolist() == [sets[1 - first].astype(int).tolist()] * 2
