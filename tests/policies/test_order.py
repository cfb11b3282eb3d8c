"""Which rounds: nothing overfilled, nothing lost without need, few restarts."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from windows import plain_window, random_window

from themis.optimize.rounds.knapsack import best_counts
from themis.optimize.rounds.window import Window
from themis.policies.planning.order import Schedule, ordered


def plain(gpus: list[int], capacity: int, rounds: int) -> Window:
    return plain_window(gpus, capacity, np.tile(np.arange(rounds + 1.0), (len(gpus), 1)), left=rounds)


def lay(
    window: Window,
    n: list[int],
    running: list[bool] | None = None,
    rank: list[float] | None = None,
    stay: bool = True,
) -> Schedule:
    jobs = window.jobs
    return ordered(
        window,
        np.array(n),
        running=np.array(running or [False] * jobs),
        rank=np.array(rank or [0.0] * jobs),
        stay=stay,
        by_rank=20,
    )


@settings(max_examples=60, deadline=None)
@given(st.data())
def test_jobs_of_one_gpu_lose_nothing(data: st.DataObject) -> None:
    """McNaughton: whatever fits the window in sum, and no job longer than it, can be laid out."""
    rounds, capacity = data.draw(st.integers(1, 8)), data.draw(st.integers(1, 4))
    n = data.draw(
        st.lists(st.integers(0, rounds), min_size=1, max_size=8).filter(lambda x: sum(x) <= rounds * capacity)
    )
    rank = data.draw(st.lists(st.floats(0, 9), min_size=len(n), max_size=len(n)))
    found = lay(plain([1] * len(n), capacity, rounds), n, rank=rank)
    assert (found.run.sum(axis=1) >= n).all()
    assert (found.run.sum(axis=0) <= capacity).all()


@pytest.mark.parametrize("seed", range(10))
def test_no_round_is_overfilled_and_what_is_lost_is_told(seed: int) -> None:
    window = random_window(seed, jobs=40, capacity=32)
    n = best_counts(window).n
    found = ordered(window, n, running=np.zeros(40, dtype=bool), rank=np.arange(40.0), stay=True, by_rank=20)
    assert (window.gpus @ found.run <= window.capacity).all()
    idle, planned, laid_out = (window.objective(c) for c in (0 * n, n, found.run.sum(axis=1)))
    assert found.loss == pytest.approx(planned - laid_out)
    assert found.loss <= 1e-2 * (planned - idle)


def test_gangs_that_cannot_be_side_by_side_lose_a_round() -> None:
    """Three gangs of 2 on 3 GPUs for two rounds: 6 GPU-rounds in sum, but only one gang fits at a time."""
    found = lay(plain([2, 2, 2], 3, 2), [1, 1, 1])
    assert found.run.sum() == 2
    assert found.loss == pytest.approx(1.0)


def test_what_a_gang_cannot_use_goes_to_someone_else() -> None:
    """The gang of 2 does not fit beside the job of all rounds: the third job gets the GPU, beyond what it was to have."""
    found = lay(plain([1, 2, 1], 2, 3), [3, 1, 1], rank=[0.0, 2.0, 1.0])
    assert found.run.sum(axis=1).tolist() == [3, 0, 3]


def test_who_runs_goes_on_and_has_its_rounds_in_one_piece() -> None:
    found = lay(plain([1, 1], 1, 4), [2, 2], running=[False, True])
    assert found.run.astype(int).tolist() == [[0, 0, 1, 1], [1, 1, 0, 0]]


def test_of_equals_the_lower_rank_goes_first() -> None:
    found = lay(plain([1, 1], 1, 2), [1, 1], rank=[5.0, 1.0])
    assert found.run.astype(int).tolist() == [[0, 1], [1, 0]]


def test_who_needs_every_round_begins_at_once() -> None:
    found = lay(plain([1, 1, 1], 1, 4), [4, 0, 0], running=[False, True, True], rank=[9.0, 1.0, 1.0])
    assert found.run[0].all()
    spread = lay(plain([1, 1, 1], 2, 4), [4, 2, 2], running=[False, True, True], rank=[9.0, 1.0, 1.0])
    assert spread.run[0].all()
    assert spread.loss == 0.0


def test_the_lower_rank_goes_before_who_runs_unless_it_is_to_stay() -> None:
    for stay, first in ((True, 0), (False, 1)):
        found = lay(plain([1, 1], 1, 4), [2, 2], running=[True, False], rank=[5.0, 1.0], stay=stay)
        assert found.run[first].tolist() == [1, 1, 0, 0]


@pytest.mark.parametrize("seed", range(6))
def test_long_columns_hold_all_work_and_none_is_overfilled(seed: int) -> None:
    """A window that holds all work is laid out in full; whoever is in a column ends within it."""
    window = random_window(seed, jobs=40, capacity=8, rounds=1000, fine=20)
    found = ordered(
        window, window.useful, running=np.zeros(40, dtype=bool), rank=np.arange(40.0), stay=False, by_rank=20
    )
    assert (window.gpus @ found.run <= window.capacity * window.lengths).all()
    assert (found.run <= window.lengths).all()
    assert (found.run.sum(axis=1) == window.takes(window.useful)).all()
    assert (found.until <= window.lengths).all()
    assert (found.until >= found.run).all()
    assert found.loss == 0.0
