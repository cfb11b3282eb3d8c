"""Auctions with room for everyone: what is proven without a search is what tables and search find, and nobody pays."""

from __future__ import annotations

from dataclasses import fields
from unittest.mock import patch

import numpy as np
import pytest
from auction_cases import bids, brute, check_outcome, offer
from hypothesis import given, settings
from hypothesis import strategies as st

from themis.optimize.winners.gang_packing import Packer
from themis.optimize.winners.work_limits import Limits
from themis.policies.auction import ANYWHERE, MACHINE, RACK, Bids, Outcome, Supply, clear, clearing
from themis.policies.auction.formulation import build
from themis.policies.auction.uncontested import Uncontested, plainly_uncontested, uncontested

seeds = st.integers(0, 2**31)


def roomy_case(seed: int, most: int = 4) -> tuple[Supply, Bids]:
    """Few bidders, rows of gangs of one size without anchors, some of equal worth, and expiring GPUs."""
    rng = np.random.default_rng(seed)
    n, types, racks = (int(rng.integers(1, high)) for high in (7, 3, 4))
    sale = offer(
        rng.choice([0, 1, 2, 4, 8], n).tolist(),
        rng.integers(0, racks, n).tolist(),
        rng.integers(0, types, n).tolist(),
    )
    sizes = ([1], [1, 2, 4], [2, 3], [4, 8])[int(rng.integers(4))]
    base, table = [], []
    for b in range(int(rng.integers(1, most + 1))):
        base.append(float(-rng.uniform(0, 3)))
        for _ in range(int(rng.integers(0, 4))):
            gangs = {int(rng.choice(sizes)): int(rng.choice([1, 1, 1, 2, 3]))}
            value = base[-1] + float(rng.choice([0.5, 1e-14, rng.uniform(0.1, 2)]))
            span = int(rng.choice([MACHINE, RACK, ANYWHERE]))
            table.append((b, gangs, value, span, int(rng.integers(types)), -1))
    held = [(int(rng.integers(len(base))), i, int(rng.integers(1, 5))) for i in range(n) if rng.random() < 0.5]
    return sale, bids(base, table, held)


def settled_without_a_search(sale: Supply, table: Bids) -> Uncontested | None:
    problem = build(sale, table)
    return uncontested(problem, Packer(problem, Limits().packing)) if problem.row.size else None


def through_the_problem(sale: Supply, table: Bids, payments: bool = True) -> Outcome:
    with patch.object(clearing, "plainly_uncontested", lambda offer, bids: None):
        return clear(sale, table, payments=payments)


def by_tables_and_search(sale: Supply, table: Bids, payments: bool = True) -> Outcome:
    with patch.object(clearing, "uncontested", lambda problem, packer: None):
        return through_the_problem(sale, table, payments)


@settings(max_examples=200, deadline=None)
@given(seed=seeds, payments=st.booleans())
def test_plain_numbers_and_the_problem_give_the_same_to_the_last_bit(seed: int, payments: bool) -> None:
    sale, table = roomy_case(seed)
    here, there = clear(sale, table, payments=payments), through_the_problem(sale, table, payments)
    for f in fields(Outcome):
        assert np.array_equal(getattr(here, f.name), getattr(there, f.name)), f.name


def test_plain_numbers_leave_what_takes_more_than_a_look() -> None:
    two = offer([1, 1])
    one_gpu = ({1: 1}, 1.0, MACHINE, 0, -1)
    assert plainly_uncontested(two, bids([0.0, 0.0, 0.0], [(b, *one_gpu) for b in range(3)])) is None
    assert plainly_uncontested(two, bids([0.0], [(0, {1: 1}, 1.0, MACHINE, 0, 1)])) is None
    assert plainly_uncontested(two, bids([0.0], [(0, *one_gpu), (0, *one_gpu)])) is None
    assert plainly_uncontested(two, bids([0.0], [])) is None
    assert plainly_uncontested(two, bids([0.0, 0.0], [(b, *one_gpu) for b in range(2)])) is not None


@settings(max_examples=150, deadline=None)
@given(seed=seeds, payments=st.booleans())
def test_tables_and_search_come_to_the_same(seed: int, payments: bool) -> None:
    sale, table = roomy_case(seed)
    here, there = clear(sale, table, payments=payments), by_tables_and_search(sale, table, payments)
    assert here.objective == pytest.approx(there.objective, abs=1e-9)
    assert here.bound == pytest.approx(there.bound, abs=1e-9)
    assert here.kept == pytest.approx(there.kept, abs=1e-9)
    assert (here.kept_low <= there.kept + 1e-9).all()
    assert (here.kept_high >= there.kept - 1e-9).all()


@settings(max_examples=100, deadline=None)
@given(seed=seeds)
def test_brute_force_finds_nothing_better_with_or_without_anybody(seed: int) -> None:
    sale, table = roomy_case(seed, most=3)
    if settled_without_a_search(sale, table) is None:
        return
    out = clear(sale, table)
    check_outcome(sale, table, out)
    assert out.method == "all"
    assert out.objective == out.bound == pytest.approx(brute(sale, table), abs=1e-9)
    assert (out.kept == 1).all()
    for a in np.flatnonzero(out.row >= 0).tolist():
        others = out.objective - table.row_value[out.row[a]]
        assert brute(sale, table, a) == pytest.approx(others, abs=1e-9)


def test_many_of_these_auctions_are_settled_without_a_search() -> None:
    settled = sum(settled_without_a_search(*roomy_case(seed)) is not None for seed in range(400))
    assert 150 < settled < 350


def test_auctions_in_which_somebody_must_go_without_are_left_to_the_search() -> None:
    one_gpu = ({1: 1}, 1.0, MACHINE, 0, -1)
    three = bids([0.0, 0.0, 0.0], [(b, *one_gpu) for b in range(3)])
    assert settled_without_a_search(offer([1, 1]), three) is None
    assert clear(offer([1, 1]), three).method != "all"
    assert clear(offer([1, 1, 1]), three).method == "all"


def test_the_best_row_that_the_offer_could_hold_is_the_one_that_counts() -> None:
    rows = [(0, {4: 1}, 2.0, MACHINE, 0, -1), (0, {4: 1}, 1.0, ANYWHERE, 0, -1), (1, {1: 1}, 1.0, MACHINE, 0, -1)]
    served = settled_without_a_search(offer([3, 2], [0, 1]), bids([0.0, 0.0], rows))
    assert served is not None
    assert (served.rows, served.who) == ([1, 2], [0, 1])
