"""A program that grows by columns stays at its optimum, or raises."""

from __future__ import annotations

import numpy as np
import pytest
from scipy.sparse import csc_array

from themis.errors import NotSolved
from themis.optimize import column_generation
from themis.optimize.column_generation import ColumnProgram


@pytest.mark.parametrize("interior", [False, True])
def test_the_optimum_follows_the_columns(interior: bool) -> None:
    """Maximise x + 2y + 4z within x + y <= 3 and y + 2z <= 4, column by column."""
    program = ColumnProgram(np.full(2, -np.inf), np.array([3.0, 4.0]), interior=interior)
    program.add(np.array([1.0, 2.0]), csc_array(np.array([[1.0, 1.0], [0.0, 1.0]])))
    assert program.solve().objective == pytest.approx(6.0)
    program.add_dense(np.array([4.0]), np.array([[0.001, 2.0]]))
    found = program.solve()
    assert found.objective == pytest.approx(2.998 + 8.0)
    assert found.x == pytest.approx([2.998, 0.0, 2.0])
    assert (found.duals >= 0).all()
    assert found.duals @ np.array([3.0, 4.0]) == pytest.approx(found.objective), "prices prove the optimum"


def test_changed_coefficients_count_and_tight_prices_stay_right() -> None:
    program = ColumnProgram(np.array([-np.inf]), np.array([6.0]))
    program.add_dense(np.array([1.0]), np.array([[2.0]]))
    assert program.solve().x == pytest.approx([3.0])
    program.change_column(0, np.array([0]), np.array([3.0]))
    assert program.tighten()
    assert not program.tighten()
    assert program.solve().x == pytest.approx([2.0])


def test_columns_outside_the_basis_can_be_deleted() -> None:
    program = ColumnProgram(np.array([-np.inf]), np.array([6.0]))
    program.add_dense(np.array([1.0, 3.0, 2.0]), np.array([[2.0], [2.0], [2.0]]))
    assert program.solve().x == pytest.approx([0.0, 3.0, 0.0])
    assert program.drop(np.array([False, True, True])).tolist() == [False, False, True], "the basis stays"
    assert program.columns == 2
    program.refresh()
    assert program.solve().x == pytest.approx([0.0, 3.0])
    program.add_dense(np.array([4.0]), np.array([[2.0]]))
    assert program.solve().x == pytest.approx([0.0, 0.0, 3.0])


def test_a_program_that_pivots_too_long_is_solved_from_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(column_generation, "_PIVOTS", 0)
    rng = np.random.default_rng(0)
    use, gain = rng.uniform(0.1, 1.0, (40, 6)), rng.uniform(0.1, 1.0, 40)
    program, whole = (ColumnProgram(np.full(6, -np.inf), np.ones(6)) for _ in range(2))
    whole.add_dense(gain, use)
    for some in np.split(np.arange(40), 8):
        program.add_dense(gain[some], use[some])
        found = program.solve()
    assert found.objective == pytest.approx(whole.solve().objective)


def test_a_program_without_an_optimum_raises() -> None:
    endless = ColumnProgram(np.array([0.0]), np.array([np.inf]))
    endless.add_dense(np.array([1.0]), np.array([[1.0]]))
    with pytest.raises(NotSolved, match="expected optimal"):
        endless.solve()
