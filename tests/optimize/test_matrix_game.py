"""The mixture of columns whose largest entry is least, against a general solver."""

from __future__ import annotations

import numpy as np
import pytest
from scipy.optimize import linprog

from themis.errors import NotSolved
from themis.model.units import Float
from themis.optimize.matrix_game import GameProgram, MatrixGame
from tiers import seeds


def least(use: Float) -> float:
    columns, rows = use.shape
    found = linprog(
        np.append(1.0, np.zeros(columns)),
        A_ub=np.hstack([-np.ones((rows, 1)), use.T]),
        b_ub=np.zeros(rows),
        A_eq=np.append(0.0, np.ones(columns))[None, :],
        b_eq=[1.0],
        bounds=[(None, None)] + [(0.0, None)] * columns,
    )
    return float(found.fun)


@pytest.mark.parametrize("seed", seeds(8, 40))
def test_value_weights_and_worths_prove_each_other_and_agree_with_a_general_solver(seed: int) -> None:
    rng = np.random.default_rng(seed)
    use = rng.random((int(rng.integers(2, 30)), int(rng.integers(1, 8))))
    if seed % 3 == 0:
        use = np.round(3 * use) / 3  # many ties
    if seed % 5 == 0:
        use[rng.random(use.shape) < 0.5] = 0.0
    game = MatrixGame(use[:1])
    for column in use[1:]:
        game.add(column)
        value, weight, worth = game.solve()
        assert weight.min() >= 0
        assert worth.min() >= 0
        assert weight.sum() == pytest.approx(1.0)
        assert worth.sum() == pytest.approx(1.0)
        assert (weight @ game.use).max() <= value + 1e-12, "what the mixture reaches"
        assert (game.use @ worth).min() >= value - 1e-11, "what no mixture can better"
    assert value == pytest.approx(least(use), abs=1e-9)


def test_columns_that_hardly_differ_do_not_spoil_the_basis() -> None:
    rng = np.random.default_rng(1)
    near = 1.0 + 1e-10 * rng.standard_normal((60, 3))
    game = MatrixGame(near[:1])
    for column in near[1:]:
        game.add(column)
    value, weight, worth = game.solve()
    assert (game.use @ worth).min() >= value - 1e-11
    assert value == pytest.approx(1.0, abs=1e-9)
    assert weight.sum() == pytest.approx(1.0)


@pytest.mark.parametrize("seed", range(10))
def test_the_basis_of_another_game_is_a_place_to_begin_and_no_more(seed: int) -> None:
    rng = np.random.default_rng(seed)
    use = rng.random((20, 4))
    before = MatrixGame(use)
    before.solve()
    for other in (use, use + 0.01 * rng.random(use.shape), rng.random(use.shape), np.ones_like(use)):
        value, weight, worth = MatrixGame(other, before.basis).solve()
        assert value == pytest.approx(least(other), abs=1e-9)
        assert (other @ worth).min() >= value - 1e-11
        assert weight.min() >= 0


def test_several_columns_come_at_once() -> None:
    use = np.random.default_rng(4).random((30, 3))
    game = MatrixGame(use[:2])
    game.solve()
    game.add(use[2:])
    assert game.solve()[0] == pytest.approx(least(use), abs=1e-9)


@pytest.mark.parametrize("seed", range(6))
def test_where_the_small_simplex_does_not_end_a_general_solver_finds_the_same(
    seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    rng = np.random.default_rng(seed)
    use = rng.uniform(0.0, 3.0, (4 + 3 * seed, 2 + seed))
    game = MatrixGame(use)
    least, *_ = game.solve()

    def never(_: MatrixGame) -> None:
        raise NotSolved("it did not end.")

    monkeypatch.setattr(MatrixGame, "_improve", never)
    again, mixed, prices = game.solve()
    assert again == pytest.approx(least, rel=1e-9)
    assert (mixed @ use).max() == pytest.approx(again)
    assert (use @ prices).min() == pytest.approx(again, rel=1e-8), "the prices prove it"
    assert (mixed.sum(), prices.sum()) == (pytest.approx(1.0), pytest.approx(1.0))
    monkeypatch.undo()
    assert game.solve()[0] == pytest.approx(least, rel=1e-9)


@pytest.mark.parametrize("seed", range(8))
def test_the_program_kept_warm_and_the_small_simplex_agree_column_by_column(seed: int) -> None:
    rng = np.random.default_rng(seed)
    use = rng.uniform(0.0, 3.0, (20, 2 + seed % 4))
    simplex, program = MatrixGame(use[:1]), GameProgram(use[:1])
    for at in range(1, len(use), 3):
        simplex.add(use[at : at + 3])
        program.add(use[at : at + 3])
        (here, _, _), (there, weight, dual) = simplex.solve(), program.solve()
        assert there == pytest.approx(here, rel=1e-9)
        assert (weight @ program.use).max() == pytest.approx(here, rel=1e-9)
        assert (program.use @ dual).min() == pytest.approx(here, rel=1e-8), "its prices prove it"
        assert program.basis == np.flatnonzero(weight > 0).tolist()
