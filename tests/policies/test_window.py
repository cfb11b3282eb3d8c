"""What rounds are worth: equations 7, 9 and 10 of Shockwave by hand."""

from __future__ import annotations

import numpy as np
import pytest

from themis.model.forecast import Ahead
from themis.policies.planning.round_window import all_work, budgets, columns, forecast_rho, progress, window_of

# Appendix G's example: at epoch 5 of 30, epochs of 2 minutes up to epoch 15, then of 1 minute.
EXAMPLE = Ahead(
    ptr=np.array([0, 2]),
    share=np.array([10 / 30, 15 / 30]),
    seconds=np.array([1200.0, 900.0]),
    progress=np.array([5 / 30]),
    isolated_s=np.array([2700.0]),
    contention=np.array([3.0]),
)


def test_progress_follows_the_regimes_in_order() -> None:
    """Appendix G: the second regime starts in the 20th minute of the window, and is twice as fast."""
    done = progress(EXAMPLE, np.array([[0.0, 600.0, 1200.0, 1260.0, 1800.0, 2100.0, 9000.0]]))[0] * 30
    assert done == pytest.approx([5, 10, 15, 16, 25, 30, 30])


def test_progress_of_many_jobs_is_each_ones_own() -> None:
    both = Ahead(
        ptr=np.array([0, 2, 3]),
        share=np.array([0.2, 0.3, 1.0]),
        seconds=np.array([100.0, 50.0, 400.0]),
        progress=np.array([0.5, 0.0]),
        isolated_s=np.array([300.0, 400.0]),
        contention=np.ones(2),
    )
    assert progress(both, np.array([[100.0, 125.0], [100.0, 800.0]])).tolist() == [
        pytest.approx([0.7, 0.85]),
        pytest.approx([0.25, 1.0]),
    ]


def test_rho_is_one_at_arrival_and_follows_equation_9() -> None:
    fresh = Ahead(
        ptr=np.array([0, 1]),
        share=np.ones(1),
        seconds=np.array([1000.0]),
        progress=np.zeros(1),
        isolated_s=np.array([1000.0]),
        contention=np.array([2.5]),
    )
    assert forecast_rho(fresh, np.zeros(1)) == pytest.approx([1.0])
    # 1000 s later with 600 s of service and 400 s of waiting: (600 + 400 + 2100 * 3) / (2700 * 3)
    assert forecast_rho(EXAMPLE, np.array([1000.0])) == pytest.approx([(1000 + 6300) / 8100])


def test_budgets_are_bounded_and_average_one() -> None:
    found = budgets(np.array([0.0, 1.0, 2.0, 1e9]), 5.0, np.ones(4))
    assert found.mean() == pytest.approx(1.0)
    assert found / found[1] == pytest.approx([0.2**5, 1.0, 32.0, 5.0**5])


def test_a_job_of_twice_the_weight_has_twice_the_budget() -> None:
    assert budgets(np.ones(2), 5.0, np.array([1.0, 2.0])) == pytest.approx([2 / 3, 4 / 3])


def test_the_windows_columns_by_hand() -> None:
    """H of equation 10, with gangs: max(sum z R / M, max R); UTIL counts one isolated round for everybody."""
    window = window_of(
        EXAMPLE,
        np.array([2]),
        weight=np.array([1.5]),
        skipped=np.array([20.0]),
        started=np.array([0.0]),
        lengths=np.ones(20, dtype=np.int64),
        round_s=120.0,
        pull=0.25,
        capacity=4,
    )
    assert window.left[0, :3] == pytest.approx([2100.0, 2000.0, 1880.0])
    assert window.value[0, 1] == pytest.approx(1.5 * np.log((5 + 100 / 120) / 30 + 120 / 2700))
    assert window.useful.tolist() == [18]  # 20 s and 2,100 s are 17.7 rounds
    assert window.makespan(np.array([1])) == 2000.0  # one long job outweighs 2 * 2000 / 4
    assert window.objective(np.array([1])) == pytest.approx(window.value[0, 1] - 0.25 * 2000.0)


def test_progress_before_the_window_counts() -> None:
    window = window_of(
        EXAMPLE,
        np.array([1]),
        weight=np.ones(1),
        skipped=np.zeros(1),
        started=np.array([60.0]),
        lengths=np.ones(3, dtype=np.int64),
        round_s=120.0,
        pull=0.0,
        capacity=1,
    )
    assert window.left[0].tolist() == pytest.approx([2040.0, 1920.0, 1800.0, 1680.0])


def test_columns_grow_and_hold_what_was_asked_for() -> None:
    found = columns(1000)
    assert found[:20].tolist() == [1] * 20
    assert (np.diff(found) >= 0).all()
    assert 1000 <= found.sum() < 1100
    assert len(found) < 70
    assert columns(7).tolist() == [1] * 7


def test_a_window_of_all_work_is_the_longest_job_after_everything_else() -> None:
    assert all_work(np.array([10, 30]), np.array([4, 2]), 8) == 13 + 30
    assert all_work(np.zeros(0, dtype=np.int64), np.zeros(0, dtype=np.int64), 8) == 1


def test_no_choice_takes_more_rounds_than_the_job_needs() -> None:
    """17.7 rounds of work with the start: columns end at 16 and 20, and the choice at the second takes 18."""
    window = window_of(
        EXAMPLE,
        np.array([1]),
        weight=np.ones(1),
        skipped=np.array([20.0]),
        started=np.zeros(1),
        lengths=np.array([8, 8, 4, 10]),
        round_s=120.0,
        pull=0.0,
        capacity=1,
    )
    assert window.spent[0].tolist() == [0, 8, 16, 18, 18]
    assert window.useful.tolist() == [3]
    assert window.left[0].tolist() == pytest.approx([2100.0, 1160.0, 200.0, 0.0, 0.0])
    assert window.reached(np.array([17])).tolist() == [2]
    assert window.reached(np.array([18])).tolist() == [3]
