"""The partial-allocation auction: who wins, where, and what each winner keeps (Themis §3.3.1, pseudocode 1).

1. G_pf maximises the product over bidders of V; here the sum of log V, each GPU to at most one bidder.
2. c_a = prod_{b != a} V_b(G_pf) / prod_{b != a} V_b(G_pf without a), the share of G_pf that a keeps.

Leaves out how a share of a gang is paid (`payment`) and what becomes of the rest.
"""

from __future__ import annotations

import math

import numpy as np

from themis.auction.bids import Bids, Floats, Offer
from themis.auction.market import Market, build
from themis.auction.outcome import Limits, Outcome
from themis.auction.packing import Packer
from themis.auction.plenty import Served, everyone
from themis.auction.seating import arrays, seat
from themis.auction.winners import Found, Solver

DEFAULT_LIMITS = Limits()


def clear(
    offer: Offer, bids: Bids, limits: Limits = DEFAULT_LIMITS, payments: bool = True, forgiven: float = 0.0
) -> Outcome:
    """Hold one auction.

    Equal optima (in steps of about 1e-12 nats) are decided by fewest GPU moves, counting for each row the GPUs that
    it could renew on its own, then by arrival: earlier bidders get more GPUs. The few auctions that need the search
    stop at its first optimum with fewest moves; the integer program, and repair in huge ones, do not look at ties.

    Parameters
    ----------
    offer, bids
        What is sold and what is bid.
    limits
        Gap to prove and work to spend.
    payments
        Also compute `Outcome.kept`; otherwise it is 1 with the interval [0, 1] for winners.
    forgiven
        Shares below this one, in [0, 1], may be told as the interval from 0 to a proven upper bound, which is then
        `Outcome.kept`, wherever a loser who takes the winner's place proves one: most need no search then.

    Raises
    ------
    InputError
        When a bid names a machine or a rack that the offer lacks.
    NotSolved
        When the gap is not proven within the limits, unless `limits.allow_gap`.
    """
    served = everyone(offer, bids)
    if served is not None:
        return _all_served(bids, served, payments)
    market = build(offer, bids)
    nothing = math.fsum(bids.base.tolist())
    if not market.row.size:
        return _outcome(bids, None, [], nothing, nothing, np.ones((3, bids.bidders)), None)
    huge = market.row.size * int(offer.free.sum()) > limits.huge
    packer = Packer(market, limits.packing)
    solver = Solver(market, packer, limits, limits.gap_huge if huge else limits.gap, huge)
    main = solver.everyone()
    grants = seat(market, packer, main.rows, main.places)
    taken = market.row[main.rows]
    who = bids.row_bidder[taken]
    gains = bids.row_value[taken] - bids.base[who]
    objective = math.fsum([*bids.base.tolist(), *gains.tolist()])
    bound = objective + _excess(market, main)
    kept = np.ones((3, bids.bidders))
    if payments:
        let_off = _let_off(market, main, solver.replaced(main), forgiven) if forgiven else {}
        paying = [(a, r) for a, r in zip(who.tolist(), main.rows) if a not in let_off]
        others = solver.without([a for a, _ in paying], main)
        for (a, r), other in zip(paying, others):
            kept[:, a] = _kept(market, main, r, other)
        for a, most in let_off.items():
            kept[:, a] = most, 0.0, most
    else:
        kept[1, who] = 0.0
    return _outcome(bids, solver, taken.tolist(), objective, bound, kept, arrays(grants), main.method)


def _all_served(bids: Bids, served: Served, payments: bool) -> Outcome:
    """Nobody's presence costs anybody anything: see `plenty`."""
    row = np.full(bids.bidders, -1)
    row[served.who] = served.rows
    gained = bids.row_value[served.rows] - bids.base[served.who]
    objective = math.fsum([*bids.base.tolist(), *gained.tolist()])
    kept = np.ones(bids.bidders)
    low = kept if payments else (row < 0).astype(np.float64)
    who, machine, gpus = (np.array(x, np.int64) for x in served.grants)
    return Outcome(
        row=row, win_bidder=who, win_machine=machine, win_gpus=gpus, objective=objective, bound=objective,
        kept=kept, kept_low=low, kept_high=kept, method="all", nodes=0, programs=0,
    )  # fmt: skip


def _let_off(market: Market, main: Found, replaced: dict[int, int], forgiven: float) -> dict[int, float]:
    """Upper bounds of c_a below `forgiven`, by winner: the others gain at least `replaced` nats more."""
    slack = (main.high // market.unit - main.low // market.unit + 1) * market.quantum
    most = {a: math.exp(min(0.0, slack - steps * market.quantum)) for a, steps in replaced.items()}
    return {a: bound for a, bound in most.items() if bound < forgiven}


def _excess(market: Market, found: Found) -> float:
    """Gap in nats: of the integers, and of rounding gains to whole steps when they did not agree exactly."""
    steps = found.high // market.unit - found.low // market.unit
    return (steps + (market.bids.bidders if found.method != "all" else 0)) * market.quantum


def _kept(market: Market, main: Found, row: int, other: Found) -> tuple[float, float, float]:
    """c_a and its interval, from the worth of the others in G_pf and without a."""
    beside = (main.low - int(market.score[row])) // market.unit
    rounding = _excess(market, other) - (other.high // market.unit - other.low // market.unit) * market.quantum
    low, high = other.low // market.unit, other.high // market.unit
    slack = (main.high // market.unit - main.low // market.unit) * market.quantum
    kept = math.exp(min(0.0, (beside - low) * market.quantum))
    least = math.exp(min(0.0, (beside - max(low, high)) * market.quantum - rounding))
    most = math.exp(min(0.0, (beside - low) * market.quantum + slack + rounding))
    return kept, least, most


def _outcome(
    bids: Bids, solver: Solver | None, rows: list[int], objective: float, bound: float, kept: Floats,
    grants: tuple[list[int], list[int], list[int]] | None, method: str = "all",
) -> Outcome:  # fmt: skip
    row = np.full(bids.bidders, -1)
    row[bids.row_bidder[rows]] = rows
    who, machine, gpus = (np.array(x, np.int64) for x in grants or ([], [], []))
    return Outcome(
        row=row, win_bidder=who, win_machine=machine, win_gpus=gpus, objective=objective, bound=bound,
        kept=kept[0], kept_low=kept[1], kept_high=kept[2], method=method,
        nodes=solver.nodes if solver else 0, programs=solver.programs if solver else 0,
    )  # fmt: skip
