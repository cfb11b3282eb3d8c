"""The auction of whole GPUs: exact against brute force, payments, ties, the paper's own instances."""

from __future__ import annotations

import dataclasses
import math

import numpy as np
import pytest
from auction_cases import bids, brute, check_outcome, offer, packs, random_case
from hypothesis import example, given, settings
from hypothesis import strategies as st

from themis.errors import InputError, NotSolved
from themis.optimize import MixedIntegerProgram, Solution, solve
from themis.optimize.winners import patterns
from themis.policies.auction import ANYWHERE, MACHINE, RACK, Bids, Limits, Supply, clear

LIMITS = [Limits(), Limits(leaves=1, states=1), Limits(states=1), Limits(leaves=1)]
seeds = st.integers(0, 2**31)


def true_kept(sale: Supply, table: Bids, a: int, row: int, objective: float) -> float:
    return math.exp(min(0.0, objective - table.row_value[row] - brute(sale, table, a)))


@pytest.mark.parametrize("limits", LIMITS, ids=["default", "no tables, no search", "no tables", "no search"])
@settings(max_examples=60, deadline=None)
@given(seed=seeds)
@example(seed=14111)  # rows that take the same capacities but pack differently
@example(seed=14675)
@example(seed=17482)
@example(seed=18922)
@example(seed=21227)
def test_objective_and_payments_equal_brute_force(limits: Limits, seed: int) -> None:
    sale, table = random_case(seed)
    out = clear(sale, table, limits)
    check_outcome(sale, table, out)
    assert out.objective == pytest.approx(brute(sale, table), abs=1e-6)
    assert out.gap <= limits.gap
    for a, row in enumerate(out.row.tolist()):
        if row >= 0:
            kept = true_kept(sale, table, a, row, out.objective)
            assert out.kept_low[a] - 1e-8 <= kept <= out.kept_high[a] + 1e-8
            assert out.kept_high[a] - out.kept_low[a] <= 1e-5


@settings(max_examples=60, deadline=None)
@given(seed=seeds)
def test_no_bidder_can_gain_without_a_loss_to_another(seed: int) -> None:
    sale, table = random_case(seed)
    row = clear(sale, table, payments=False).row
    for r in range(table.rows):
        b = table.row_bidder[r]
        if table.row_value[r] > (table.base[b] if row[b] < 0 else table.row_value[row[b]]) + 1e-9:
            assert not packs(sale, table, [*row[(row >= 0) & (np.arange(row.size) != b)].tolist(), r])


def shuffled(table: Bids, order: list[int]) -> Bids:
    rows = [(order.index(int(b)), r) for r, b in enumerate(table.row_bidder.tolist())]
    rows.sort()
    return bids(
        [float(table.base[b]) for b in order],
        [
            (b, table.gangs(r), table.row_value[r], table.row_span[r], table.row_type[r], table.row_anchor[r])
            for b, r in rows
        ],
    )


@settings(max_examples=60, deadline=None)
@given(seed=seeds, data=st.data())
def test_permuting_bidders_leaves_the_objective(seed: int, data: st.DataObject) -> None:
    sale, table = random_case(seed)
    order = data.draw(st.permutations(range(table.bidders)))
    assert clear(sale, table).objective == pytest.approx(clear(sale, shuffled(table, order)).objective, abs=1e-9)


@settings(max_examples=25, deadline=None)
@given(seed=seeds)
def test_tables_search_and_program_agree_on_larger_instances(seed: int) -> None:
    sale, table = random_case(seed, bidders=9, machines=12, gpus=30, rows=8)
    outs = [clear(sale, table, limits) for limits in LIMITS]
    for out in outs:
        check_outcome(sale, table, out)
        assert out.objective == pytest.approx(outs[0].objective, abs=1e-6)
        for a in ((out.row >= 0) & (out.row == outs[0].row)).nonzero()[0]:
            assert out.kept[a] == pytest.approx(outs[0].kept[a], abs=1e-5)


def alike(seed: int, bidders: int) -> tuple[Supply, Bids]:
    """Single jobs: one gang each, of few sizes, that gains less the further it reaches."""
    rng = np.random.default_rng(seed)
    sale = offer(rng.choice([1, 3, 3, 5], bidders - 1).tolist(), (np.arange(bidders - 1) // 2).tolist())
    rows = []
    for b in range(bidders):
        size, best, slow = int(rng.choice([2, 3])), float(rng.uniform(1, 3)), float(rng.uniform(0, 0.3))
        spans = (MACHINE,) if size == 1 else (MACHINE, RACK, ANYWHERE)
        rows += [(b, {size: 1}, best - slow * k, span) for k, span in enumerate(spans)]
    return sale, bids([0.0] * bidders, rows)


@settings(max_examples=40, deadline=None)
@given(seed=seeds)
def test_payments_learnt_from_others_who_ask_alike_equal_brute_force(seed: int) -> None:
    sale, table = alike(seed, 5)
    out = clear(sale, table, Limits(leaves=1, states=1))
    for a, row in enumerate(out.row.tolist()):
        if row >= 0:
            assert out.kept[a] == pytest.approx(true_kept(sale, table, a, row, out.objective), abs=1e-6)


def test_winners_who_ask_alike_share_a_program() -> None:
    sale, table = alike(0, 14)
    out = clear(sale, table, Limits(leaves=1, states=1))
    assert 1 < out.programs <= (out.row >= 0).sum() / 2


@settings(max_examples=40, deadline=None)
@given(seed=seeds, same=st.booleans())
def test_forgiven_payments_are_bounded_from_above(seed: int, same: bool) -> None:
    sale, table = alike(seed, 5) if same else random_case(seed)
    exact, out = clear(sale, table), clear(sale, table, forgiven=0.7)
    assert out.row.tolist() == exact.row.tolist()
    for a, row in enumerate(out.row.tolist()):
        if row >= 0:
            kept = true_kept(sale, table, a, row, out.objective)
            assert out.kept_low[a] - 1e-6 <= kept <= out.kept_high[a] + 1e-6
            if out.kept[a] != exact.kept[a]:
                assert out.kept[a] < 0.7
                assert out.kept_low[a] == 0


def test_forgiven_payments_need_no_program() -> None:
    sale, table = alike(0, 14)
    limits = Limits(leaves=1, states=1)
    exact, out = clear(sale, table, limits), clear(sale, table, limits, forgiven=0.7)
    assert out.programs < exact.programs
    assert ((exact.kept < 0.7) & (out.kept < 0.7)).sum() == (exact.kept < 0.7).sum()
    assert (out.kept_low[out.row >= 0] == 0).any()


@settings(max_examples=15, deadline=None)
@given(seed=seeds)
def test_huge_mode_bounds_the_exact_answer(seed: int) -> None:
    sale, table = random_case(seed, bidders=9, machines=12, gpus=30, rows=8)
    exact = clear(sale, table)
    huge = clear(sale, table, Limits(huge=0, states=1, gap_huge=0.05))
    check_outcome(sale, table, huge)
    assert huge.objective - 1e-9 <= exact.objective <= huge.bound + 1e-9
    assert huge.gap <= 0.05 + 1e-9


def test_outcome_does_not_change_from_run_to_run() -> None:
    sale, table = random_case(11, bidders=9, machines=12, gpus=30, rows=8)
    first, second = clear(sale, table), clear(sale, table)
    for field in dataclasses.fields(first):
        assert np.array_equal(getattr(first, field.name), getattr(second, field.name))


def test_nobody_bids_and_nothing_is_sold() -> None:
    out = clear(offer([4]), bids([-1.0, -2.0], []))
    assert out.row.tolist() == [-1, -1]
    assert out.objective == -3.0
    assert out.kept.tolist() == [1.0, 1.0]


def test_a_lone_bidder_pays_nothing() -> None:
    out = clear(offer([4]), bids([-1.0], [(0, {4: 1}, 1.0)]))
    assert out.kept.tolist() == [1.0]
    assert out.method == "all"


@pytest.mark.parametrize(("n", "kept"), [(2, 0.5), (3, 0.4444), (4, 0.4219), (8, 0.3927)])
def test_golden_identical_apps_keep_the_papers_share(n: int, kept: float) -> None:
    # V(g) = g over n * (n - 1) GPUs: both n and n - 1 apps share them evenly, as if they were divisible.
    total = n * (n - 1)
    table = bids([-20.0] * n, [(b, {1: g}, math.log(g)) for b in range(n) for g in range(1, total + 1)])
    out = clear(offer([total]), table)
    assert out.win_gpus.tolist() == [n - 1] * n
    assert out.kept == pytest.approx([((n - 1) / n) ** (n - 1)] * n, abs=1e-8)
    assert out.kept[0] == pytest.approx(kept, abs=5e-5)


def test_golden_six_gpus_with_time_elapsed() -> None:
    value = [-math.log(5 + 20 / g) for g in range(1, 7)]
    table = bids([-10.0] * 2, [(b, {1: g}, value[g - 1]) for b in range(2) for g in range(1, 7)])
    assert clear(offer([4, 2]), table).kept == pytest.approx([0.7143, 0.7143], abs=5e-5)


def test_table_2_rows_of_one_and_two_gpus() -> None:
    # Themis Table 2: rho_old, 200/400, 100/400. A rival with the same bid: one GPU each, each keeps
    # V(1) / V(2) = 1/2.
    rows = [(b, {1: g}, -math.log(rho)) for b in range(2) for g, rho in ((1, 200 / 400), (2, 100 / 400))]
    out = clear(offer([1, 1]), bids([-math.log(2.0)] * 2, rows))
    assert out.win_gpus.tolist() == [1, 1]
    assert out.kept == pytest.approx([0.5, 0.5])


def vgg(b: int, slow: float) -> list[tuple]:
    return [
        (b, {g: 1}, -math.log(1000 * s / g), span)
        for g in (1, 2, 3, 4)
        for span, s in ((MACHINE, 1.0), (ANYWHERE, slow))
    ]


def test_figure_5_instance_1_each_vgg16_gets_a_machine_of_its_own() -> None:
    out = clear(offer([4, 4]), bids([-9.0, -9.0], vgg(0, 1.289) + vgg(1, 1.289)))
    assert out.win_bidder.tolist() == [0, 1]
    assert out.win_gpus.tolist() == [4, 4]
    assert sorted(out.win_machine.tolist()) == [0, 1]


def test_figure_5_instance_2_vgg16_gets_the_large_machine() -> None:
    out = clear(offer([4, 2, 2]), bids([-9.0, -9.0], vgg(0, 1.0) + vgg(1, 1.289)))
    assert out.win_machine[out.win_bidder == 1].tolist() == [0]
    assert out.win_machine[out.win_bidder == 0].tolist() == [1, 2]


def test_a_tie_goes_to_the_bidder_that_moves_fewest_gpus() -> None:
    rows = [(b, {2: 1}, 1.0) for b in range(3)]
    out = clear(offer([2]), bids([0.0] * 3, rows, expiring=[(2, 0, 2), (1, 0, 1)]))
    assert out.row.tolist() == [-1, -1, 2]


def test_a_tie_without_renewals_goes_to_the_earlier_arrival() -> None:
    out = clear(offer([2]), bids([0.0] * 3, [(b, {2: 1}, 1.0) for b in range(3)]))
    assert out.row.tolist() == [0, -1, -1]


def test_among_equal_splits_the_earlier_arrival_gets_more_gpus() -> None:
    rows = [(b, {1: g}, float(g)) for b in range(2) for g in (1, 2)]
    out = clear(offer([3]), bids([0.0, 0.0], rows))
    assert out.win_gpus.tolist() == [2, 1]


def test_a_real_gain_beats_a_renewal() -> None:
    out = clear(offer([1]), bids([0.0, 0.0], [(0, {1: 1}, 1.0), (1, {1: 1}, 1.0 + 1e-9)], expiring=[(0, 0, 1)]))
    assert out.row.tolist() == [-1, 1]


def test_a_winner_gets_the_gpus_that_it_held() -> None:
    rows = [(b, {2: 1}, 1.0, MACHINE) for b in range(3)]
    out = clear(offer([2, 2, 2]), bids([0.0] * 3, rows, expiring=[(0, 2, 2), (1, 0, 2)]))
    assert out.win_machine.tolist() == [2, 0, 1]


def test_small_wins_leave_large_blocks_whole() -> None:
    out = clear(offer([8, 1, 2]), bids([0.0] * 2, [(0, {1: 1}, 1.0), (1, {2: 1}, 1.0, MACHINE)]))
    assert out.win_machine.tolist() == [1, 2]


def test_a_loser_pays_nothing_and_a_pivotal_winner_pays() -> None:
    out = clear(offer([2]), bids([0.0, 0.0], [(0, {2: 1}, 3.0), (1, {2: 1}, 1.0)]))
    assert out.row.tolist() == [0, -1]
    assert out.kept == pytest.approx([math.exp(-1.0), 1.0])


def test_a_rack_gang_may_split_over_machines_but_not_over_racks() -> None:
    out = clear(offer([1, 1, 1], rack=[0, 1, 1]), bids([0.0], [(0, {2: 1}, 1.0, RACK)]))
    assert out.win_machine.tolist() == [1, 2]


def test_different_gangs_of_a_row_may_lie_on_different_machines() -> None:
    out = clear(offer([2, 2, 1]), bids([0.0], [(0, {2: 2}, 1.0, MACHINE)]))
    assert out.win_machine.tolist() == [0, 1]


def test_without_payments_winners_carry_the_widest_interval() -> None:
    out = clear(offer([2]), bids([0.0, 0.0], [(0, {2: 1}, 3.0), (1, {2: 1}, 1.0)]), payments=False)
    assert out.kept.tolist() == [1.0, 1.0]
    assert out.kept_low.tolist() == [0.0, 1.0]


def test_a_gap_that_is_not_proven_raises_unless_allowed(monkeypatch: pytest.MonkeyPatch) -> None:
    def tired(
        program: MixedIntegerProgram, *, gap: float, nodes: int, accept: float, off: tuple[str, ...], seconds: float
    ) -> Solution:
        found = solve(program, gap=gap, nodes=nodes, accept=accept, off=off)
        if accept < 0.5:
            raise NotSolved("gap of 0.5")
        return dataclasses.replace(found, bound=found.objective + 0.5)

    monkeypatch.setattr(patterns, "solve", tired)
    rows = [(b, {size: 1}, 1.0 + b, MACHINE) for b, size in enumerate((3, 3, 2))]
    sale, table = offer([4, 4]), bids([0.0] * 3, rows)
    limits = Limits(leaves=1, states=1)
    with pytest.raises(NotSolved, match="gap"):
        clear(sale, table, limits, payments=False)
    carried = clear(sale, table, dataclasses.replace(limits, allow_gap=True), payments=False)
    check_outcome(sale, table, carried)
    assert carried.gap == pytest.approx(0.5, abs=1e-6)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"row_value": np.array([np.nan, 1.0])}, "finite"),
        ({"row_value": np.array([-1.0, 1.0])}, "not above its base"),
        ({"row_bidder": np.array([1, 0])}, "rise"),
        ({"row_bidder": np.array([0, 5])}, "rise"),
        ({"gang_ptr": np.array([0, 2, 2])}, "at least one gang"),
        ({"gang_ptr": np.array([0, 1])}, "gang_ptr"),
        ({"gang_size": np.array([1, 0])}, ">= 1"),
        ({"row_span": np.array([0, 3])}, "row_span"),
        ({"row_anchor": np.array([0, -1])}, "anchored"),
        ({"row_type": np.array([0, 0, 0])}, "entries"),
        ({"gang_size": np.array([1.5, 1.0])}, "whole numbers"),
    ],
)
def test_faulty_bids_are_named(change: dict[str, np.ndarray], words: str) -> None:
    good = bids([0.0, 0.0], [(0, {1: 1}, 1.0), (1, {1: 1}, 1.0)])
    fields = {f.name: getattr(good, f.name) for f in dataclasses.fields(good) if f.init}
    with pytest.raises(InputError, match=words):
        Bids(**(fields | change))


def test_an_anchor_outside_the_offer_is_named() -> None:
    with pytest.raises(InputError, match="machine 7"):
        clear(offer([1]), bids([0.0], [(0, {1: 1}, 1.0, MACHINE, 0, 7)]))
