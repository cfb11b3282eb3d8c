"""Prices of auctions with many rows: as good as those of the whole linear program; payments that leave the packing as it was."""

from __future__ import annotations

import copy

import numpy as np
import pytest
from auction_cases import bids, offer, rigid_gangs
from scipy.optimize import linprog

from themis.optimize.winners import prices
from themis.optimize.winners.auction_problem import WinnerProblem
from themis.optimize.winners.capacities import anchored, needs
from themis.optimize.winners.gang_packing import Packer
from themis.optimize.winners.prices import Best, mend, price, repair
from themis.optimize.winners.solver import Solver
from themis.optimize.winners.work_limits import Limits
from themis.policies.auction import ANYWHERE, MACHINE, RACK, Bids, Supply
from themis.policies.auction.formulation import build


def odd_case(seed: int, bidders: int) -> tuple[Supply, Bids]:
    """All distinct: seven types, odd weights, anchors on machines, gangs of 1 to 16 on machines of 1 to 11 free GPUs."""
    rng = np.random.default_rng(seed)
    count = max(bidders // 4, 7)
    kinds = (np.arange(count) % 7).tolist()
    sale = offer(rng.integers(1, 12, count).tolist(), (np.arange(count) // 5).tolist(), kinds)
    rows = []
    for b in range(bidders):
        weight = float(rng.choice([0.37, 1 / 3, 1.0, 1 / 0.37]) * rng.uniform(0.9, 1.1))
        for t in rng.choice(7, 3, replace=False).tolist():
            for size in rng.choice([1, 2, 3, 5, 8, 16], 2, replace=False).tolist():
                span, anchor = int(rng.choice([MACHINE, RACK, ANYWHERE])), -1
                value = weight * float(np.log1p(size * rng.uniform(0.3, 3.0)))
                if span == MACHINE and rng.random() < 0.2:
                    anchor = int(rng.choice(np.flatnonzero(np.arange(count) % 7 == t)))
                rows.append((b, {size: int(rng.integers(1, 3))}, value, span, t, anchor))
    return sale, bids([0.0] * bidders, rows)


def relaxed(problem: WinnerProblem) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Gains, use and capacities of the linear relaxation, the number of winners left out."""
    every = [("have", k, 0) for k in range(problem.have.size)]
    need, caps = needs(problem, every + anchored(problem))
    return problem.score / problem.unit * problem.quantum, need, caps


@pytest.mark.parametrize("make", [odd_case, rigid_gangs])
@pytest.mark.parametrize("seed", range(3))
def test_prices_of_many_rows_prove_what_the_whole_program_proves(
    make: object, seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(prices, "ROWS", 60)
    problem = build(*make(seed, 150))  # type: ignore[operator]
    gain, need, caps = relaxed(problem)
    assert gain.size > 2 * prices.ROWS
    one = (problem.who[None] == np.unique(problem.who)[:, None]).astype(float)
    whole = linprog(-gain, np.vstack([one, need.T]), np.append(np.ones(len(one)), caps), bounds=(0, None))
    duals = prices._duals(problem, need, caps)
    assert (duals >= 0).all()
    net = gain - need @ duals
    bound = caps @ duals + sum(max(0.0, net[problem.who == b].max()) for b in np.unique(problem.who))
    assert bound == pytest.approx(-whole.fun, rel=1e-6)
    mixed, least = prices._mixed(gain, problem.who, need, caps)
    assert bound <= least <= -whole.fun * (1 + 1e-3)
    assert (mixed >= 0).all()


@pytest.mark.parametrize("seed", range(3))
def test_what_a_payment_changes_is_undone(seed: int) -> None:
    problem = build(*odd_case(seed, 40))
    priced = price(problem, [])
    best = Best(priced.net, problem.who)
    builder = repair(problem, priced, best.row[best.wins])
    before, rows = copy.deepcopy(builder), builder.rows()
    assert rows
    assert builder.worth == problem.score[rows].sum()
    for left in rows:
        without = int(problem.who[left])
        for pick in (None, np.array([r for r in rows if r != left][::2])):
            worth, found = mend(builder, priced, pick, without, 1 << 60, listed=True)
            assert worth == problem.score[found].sum() >= problem.score[rows].sum() - problem.score[left]
            assert without not in problem.who[found]
            assert worth <= priced.most
            assert builder.worth == before.worth
            assert builder.placed == before.placed
            for name in ("free", "room"):
                assert all(map(np.array_equal, getattr(builder, name), getattr(before, name)))
            assert np.array_equal(builder.left, before.left)
            assert np.array_equal(builder.row, before.row)


def test_answers_of_a_huge_auction_keep_no_rows(monkeypatch: pytest.MonkeyPatch) -> None:
    """One list of all winners for each winner would be quadratic: 100,000 apps took more than 17 GB."""
    problem = build(*odd_case(0, 60))
    solver = Solver(problem, Packer(problem, 1_000), Limits(entries=1), 0.01, True)
    main = solver.best()
    winners = [int(problem.who[r]) for r in main.rows]
    others = solver.without(winners, main)
    assert len(others) == len(winners) > 3
    assert all(not other.rows and main.low - other.low <= problem.score[r] for r, other in zip(main.rows, others))
