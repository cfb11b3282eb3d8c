"""Bids of programs of others: what is wrong is refused in one sentence, what is right takes the place of ours."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from themis.errors import InputError
from themis.model.answers import Ask
from themis.model.bids import Bids
from themis.model.snapshot import Snapshot
from themis.policies.api import Workbench
from themis.policies.auction import Supply, clear
from themis.policies.themis import Themis
from themis.policies.tuning.app_agent import answer_ask
from themis.policies.tuning.outside import OutsideBid, OutsideRow, Terms, check_bid, merge, terms
from themis.testing.builders import app, job, machines, snapshot_of


def row(*gangs: int, rho: float = 0.5, span: int = 3, gpu_type: int = 0, anchor: int = -1) -> OutsideRow:
    return OutsideRow(gangs=gangs, rho=rho, span=span, gpu_type=gpu_type, anchor=anchor)


def world() -> tuple[Snapshot, Ask, Bids]:
    """Three apps that wait for 4 + 4 + 2 GPUs, and one whose elastic job runs and could grow."""
    apps = [
        app("bag", [job(900.0, 2, name="a"), job(500.0, (1, 4), name="b"), job(100.0, 1, name="c")]),
        app("one", [job(400.0, 4, model="chatty")]),
        app("other", [job(400.0, 1), job(300.0, 1)]),
        app("grows", [job(5000.0, (1, 4))]),
    ]
    s = snapshot_of(machines(4, 4, 2, 2, per_rack=2), apps, held=[(6, (10,), 900.0)], now=60.0)
    ask = Ask(column="bids", apps=np.arange(4), offer=s.free, form="paper")
    return s, ask, answer_ask(s, ask)


WORLD = world()
TERMS = [terms(WORLD[0], WORLD[1].apps, WORLD[1].offer, WORLD[2], b) for b in range(4)]
BAG, _, _, GROWS = TERMS


def bid(*rows: OutsideRow, rho: float = 2.0) -> OutsideBid:
    return OutsideBid(rho=rho, rows=rows)


# ---- what is refused ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("wrong", "words"),
    [
        (bid(row(1), rho=math.nan), "rho of winning nothing is nan"),
        (bid(row(1), rho=math.inf), "rho of winning nothing is inf"),
        (bid(row(1), rho=-1.0), "rho of winning nothing is -1"),
        (bid(row(1, rho=0.0)), "row 0: rho is 0.0"),
        (bid(row(1, rho=math.nan)), "row 0: rho is nan"),
        (bid(row(1, rho=2.0)), "row 0: rho 2 is not below 2, that of winning nothing"),
        (bid(*(row(1, rho=1.0 + i / 100) for i in range(65))), "has 65 rows, expected at most 64"),
        (bid(row()), r"row 0: gangs are \[\]"),
        (bid(row(2, 0)), r"row 0: gangs are \[2, 0\]"),
        (bid(row(-1)), r"row 0: gangs are \[-1\]"),
        (bid(row(1, span=0)), "row 0: span is 0"),
        (bid(row(1, span=4)), "row 0: span is 4"),
        (bid(row(1, gpu_type=1)), "row 0: unknown GPU type 1, expected one of gpu"),
        (bid(row(1, gpu_type=-1)), "row 0: unknown GPU type -1, expected one of gpu"),
        (bid(row(1, span=3, anchor=0)), "row 0: there is no such machine or rack"),
        (bid(row(1, span=1, anchor=4)), "row 0: there is no such machine or rack"),
        (bid(row(1, span=2, anchor=2)), "row 0: there is no such machine or rack"),
        (bid(row(4, span=1, anchor=3)), "more than is offered there: 1 GPUs of type gpu"),
        (bid(row(4, 2, 1, 1, 1, 1, 1, 1, 1)), "more than is offered there: 11 GPUs"),
        (bid(row(2, 1, rho=0.5), row(1, 2, rho=0.6)), "row 1 asks for the same as row 0"),
        (bid(row(1, rho=0.5), row(2, rho=0.6)), "row 1: 2 GPUs at rho 0.6, but row 0 has rho 0.5 with 1"),
        (bid(row(3, 2, 1, rho=0.4), row(2, 1, rho=0.3)), "row 0: 6 GPUs at rho 0.4, but row 1 has rho 0.3 with 3"),
        (bid(row(5)), "no waiting job of this app takes a gang of 5 GPUs"),
        (bid(row(3, 3)), "takes a gang of 3 GPUs of type gpu in addition to the row's other gangs"),
        (bid(row(1, 1, 1)), "takes a gang of 1 GPUs of type gpu in addition"),
    ],
)
def test_what_the_auction_cannot_grant_is_refused_and_says_why(wrong: OutsideBid, words: str) -> None:
    with pytest.raises(InputError, match=words):
        check_bid(wrong, BAG)


def test_an_app_whose_jobs_all_run_may_ask_only_for_what_could_be_added_to_them() -> None:
    own = GROWS.own.rows[0]
    check_bid(bid(replace(own, rho=0.1)), GROWS)
    with pytest.raises(InputError, match="all jobs run"):
        check_bid(bid(row(1, rho=0.1, span=2, anchor=0)), GROWS)


@pytest.mark.parametrize("asked", TERMS)
def test_the_services_own_bid_is_one_that_it_would_take(asked: Terms) -> None:
    rows = sorted(asked.own.rows, key=lambda r: r.gpus)
    assert rows
    # Splits of one number of GPUs may differ in worth; made monotone, the bid is as others must make theirs.
    best = {key: min(r.rho for r in rows if (r.span, r.anchor) == key) for key in {(r.span, r.anchor) for r in rows}}
    check_bid(OutsideBid(rho=asked.own.rho, rows=tuple(replace(r, rho=best[r.span, r.anchor]) for r in rows)), asked)


# ---- anything at all ---------------------------------------------------------------------------------------------------

ROWS = st.builds(
    OutsideRow,
    gangs=st.lists(st.integers(-2, 12), max_size=6).map(tuple),
    span=st.integers(-1, 5),
    gpu_type=st.integers(-2, 3),
    anchor=st.integers(-3, 6),
    rho=st.one_of(st.floats(), st.floats(0.01, 3.0)),
)
SENSIBLE = st.builds(
    OutsideRow,
    gangs=st.lists(st.integers(1, 4), min_size=1, max_size=3).map(tuple),
    span=st.integers(1, 3),
    gpu_type=st.just(0),
    anchor=st.sampled_from([-1, -1, 0, 1]),
    rho=st.floats(0.01, 1.9),
)
ANY_BID = st.builds(
    OutsideBid,
    rho=st.one_of(st.floats(), st.just(2.0)),
    rows=st.lists(st.one_of(ROWS, SENSIBLE), max_size=70).map(tuple),
)
GOOD_BID = st.builds(OutsideBid, rho=st.just(2.0), rows=st.lists(SENSIBLE, min_size=1, max_size=4).map(tuple))


@given(said=st.one_of(ANY_BID, GOOD_BID), who=st.integers(0, 3))
def test_whatever_is_bid_is_refused_in_words_or_can_be_auctioned(said: OutsideBid, who: int) -> None:
    s, ask, own = WORLD
    refused = refusal(said, TERMS[who])
    if refused:
        assert refused.endswith(".")
        assert len(refused) < 400
        return
    merged = merge(own, {who: said})
    out = clear(Supply(free=ask.offer, machine_rack=s.machine_rack, machine_type=s.machine_type), merged)
    solved = Themis(f=0.0)(replace(s, bids=merged), Workbench())
    assert out.objective <= out.bound + 1e-9
    assert solved.proof.method


@given(said=GOOD_BID)
def test_a_row_that_is_taken_could_be_granted_to_an_app_alone(said: OutsideBid) -> None:
    s, ask, own = WORLD
    assume(not refusal(said, BAG))
    for one in said.rows:
        alone = merge(own, {0: OutsideBid(rho=2.0, rows=(one,)), 1: None, 2: None, 3: None})
        out = clear(Supply(free=ask.offer, machine_rack=s.machine_rack, machine_type=s.machine_type), alone)
        # The packing of several gangs within narrow spans may still fail; one gang never does.
        assert len(one.gangs) > 1 or out.row[0] == 0


def refusal(said: OutsideBid, asked: Terms) -> str:
    """Why the bid is refused; empty if it is not."""
    try:
        check_bid(said, asked)
    except InputError as error:
        return str(error)
    return ""


# ---- what takes its place ----------------------------------------------------------------------------------------------


def rows_of(bids: Bids, bidder: int) -> list[tuple[Any, ...]]:
    at = np.flatnonzero(bids.row_bidder == bidder).tolist()
    return [
        (tuple(bids.gangs(r).items()), int(bids.row_span[r]), int(bids.row_anchor[r]), float(bids.row_value[r]))
        for r in at
    ]


def test_merging_replaces_the_rows_of_those_who_said_something_and_of_nobody_else() -> None:
    own = WORLD[2]
    said = OutsideBid(rho=3.0, rows=(row(2, 1, rho=1.5), row(4, rho=0.25, span=1, anchor=1)))
    merged = merge(own, {0: said, 2: None})
    assert rows_of(merged, 0) == [(((2, 1), (1, 1)), 3, -1, -math.log(1.5)), (((4, 1),), 1, 1, -math.log(0.25))]
    assert rows_of(merged, 2) == []
    for b in (1, 3):
        assert rows_of(merged, b) == rows_of(own, b)
    assert merged.base.tolist() == [-math.log(3.0), *own.base[1:].tolist()]
    assert merge(own, {}) is own


CHANGES: dict[str, Callable[[OutsideBid], OutsideBid]] = {
    "as it is": lambda b: b,
    "in another scale": lambda b: OutsideBid(rho=b.rho * 7, rows=tuple(replace(r, rho=r.rho * 7) for r in b.rows)),
}


@pytest.mark.parametrize("change", CHANGES, ids=str)
def test_saying_what_the_service_would_say_changes_no_winner(change: str) -> None:
    """Only ratios count: V = 1/rho enters the product by what an app gains over winning nothing (Themis §3.3.1)."""
    s, ask, own = WORLD
    offer = Supply(free=ask.offer, machine_rack=s.machine_rack, machine_type=s.machine_type)
    merged = merge(own, {b: CHANGES[change](t.own) for b, t in enumerate(TERMS)})
    before, after = clear(offer, own), clear(offer, merged)
    assert after.row.tolist() == before.row.tolist()
    assert after.kept == pytest.approx(before.kept, abs=1e-9)
    assert after.objective - merged.base.sum() == pytest.approx(before.objective - own.base.sum(), abs=1e-9)
