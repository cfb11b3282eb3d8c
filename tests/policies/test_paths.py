"""Auctions without each winner are walked together: the same choices as one by one, and sums without listing them."""

from __future__ import annotations

from types import SimpleNamespace
from typing import cast

import numpy as np
import pytest

from themis.optimize.programs import Ints
from themis.optimize.winners import bid_tables, prices
from themis.optimize.winners.auction_problem import WinnerProblem
from themis.optimize.winners.bid_tables import Choices, Tables


def random_tables(seed: int, bidders: int = 12) -> tuple[Tables, Ints]:
    """Tables over GPUs in sum, and what each row takes."""
    rng = np.random.default_rng(seed)
    who = np.sort(rng.integers(0, bidders, 5 * bidders))
    gpus, score = rng.integers(1, 9, len(who)), rng.integers(1, 200, len(who))
    problem = cast(WinnerProblem, SimpleNamespace(row=np.arange(len(who)), who=who, score=score, bidders=bidders))
    return bid_tables.build(
        problem, gpus[:, None], np.array([int(rng.integers(20, 40))]), prices.unpriced(problem)
    ), gpus


@pytest.mark.parametrize("seed", range(6))
def test_choices_without_each_bidder_are_worth_what_the_tables_say_and_fit(seed: int) -> None:
    table, gpus = random_tables(seed)
    spots = np.arange(table.who.size)
    found = [table.without(i) for i in spots.tolist()]
    choices = table.choices_without(spots, np.array([state for _, state in found]))
    sums = choices.sums(np.column_stack([table.score, gpus]))
    for i, (worth, _) in enumerate(found):
        assert sums[i, 0] == worth
        assert sums[i, 1] <= table.caps[0]


@pytest.mark.parametrize("seed", range(6))
def test_sums_are_those_of_the_rows_and_each_walk_is_that_of_its_own(seed: int) -> None:
    table, gpus = random_tables(seed)
    spots = np.arange(table.who.size)
    states = np.array([table.without(i)[1] for i in spots.tolist()])
    together = table.choices_without(spots, states)
    rows = together.rows()
    listed = [row[row >= 0] for row in rows]
    assert together.sums(gpus[:, None])[:, 0].tolist() == [int(gpus[row].sum()) for row in listed]
    for i in spots.tolist():
        alone: Choices = table.choices_without(spots[i : i + 1], states[i : i + 1])
        assert alone.rows()[0].tolist() == rows[i].tolist()
        assert rows[i, i] == -1
