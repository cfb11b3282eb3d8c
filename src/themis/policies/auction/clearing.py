"""The partial-allocation auction: who wins, where, and what each winner keeps (Themis §3.3.1, pseudocode 1).

1. G_pf maximises the product over bidders of V; here the sum of log V, each GPU to at most one bidder.
2. c_a = prod_{b != a} V_b(G_pf) / prod_{b != a} V_b(G_pf without a), the share of G_pf that a keeps.

Bidders may have weights. G_pf then maximises the sum of w log V, the weighted Nash welfare, and the payment that belongs to it is
``c_a = (prod_{b != a} V_b(G_pf)^w_b / prod_{b != a} V_b(G_pf without a)^w_b)^(1/w_a)`` (decision 0019).

Leaves out how a share of a gang is paid (`payment`) and what becomes of the rest.
"""

from __future__ import annotations

import math

import numpy as np

from themis.model.bids import Bids
from themis.optimize.programs import Floats
from themis.optimize.winners.assignment import arrays, assign
from themis.optimize.winners.auction_problem import Supply, WinnerProblem
from themis.optimize.winners.gang_packing import Packer
from themis.optimize.winners.solver import Found, Solver
from themis.optimize.winners.work_limits import Limits
from themis.policies.auction.formulation import build
from themis.policies.auction.outcome import Outcome
from themis.policies.auction.uncontested import Uncontested, plainly_uncontested, uncontested

DEFAULT_LIMITS = Limits()


def clear(
    offer: Supply,
    bids: Bids,
    limits: Limits = DEFAULT_LIMITS,
    payments: bool = True,
    forgiven: float = 0.0,
    weight: Floats | None = None,
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
        Where the others would gain more than ``-log(forgiven)`` weighted nats without a winner, its share may be reported as the
        interval from 0 to a proven upper bound, which is then `Outcome.kept`, wherever a loser who takes the winner's place
        proves one: most need no search then. In [0, 1].
    weight
        Shape [B], > 0: ``bids`` are in weighted nats, w log V (`Bids.weighted`), and payments are made by these. None: all 1.

    Raises
    ------
    InputError
        When a bid names a machine or a rack that the offer lacks.
    NotSolved
        When the gap is not proven within the limits, unless `limits.allow_gap`.
    """
    served = plainly_uncontested(offer, bids)
    if served is not None:
        return _uncontested(bids, served, payments)
    problem = build(offer, bids)
    nothing = math.fsum(bids.base.tolist())
    if not problem.row.size:
        return _outcome(bids, None, [], nothing, nothing, np.zeros((3, bids.bidders)), weight, None)
    huge = problem.row.size * int(offer.free.sum()) > limits.huge
    packer = Packer(problem, limits.packing)
    served = uncontested(problem, packer)
    if served is not None:
        return _uncontested(bids, served, payments)
    solver = Solver(problem, packer, limits, limits.gap_huge if huge else limits.gap, huge)
    main = solver.best()
    grants = assign(problem, packer, main.rows, main.places)
    taken = problem.row[main.rows]
    who = bids.row_bidder[taken]
    gains = bids.row_value[taken] - bids.base[who]
    objective = math.fsum([*bids.base.tolist(), *gains.tolist()])
    bound = objective + _excess(problem, main)
    cost = np.zeros((3, bids.bidders))
    if payments:
        let_off = _let_off(problem, main, solver.replaced(main), forgiven) if forgiven else {}
        paying = [(a, r) for a, r in zip(who.tolist(), main.rows) if a not in let_off]
        others = solver.without([a for a, _ in paying], main)
        for (a, r), other in zip(paying, others):
            cost[:, a] = _cost(problem, main, r, other)
        for a, least in let_off.items():
            cost[:, a] = least, math.inf, least
    else:
        cost[1, who] = math.inf
    return _outcome(bids, solver, taken.tolist(), objective, bound, cost, weight, arrays(grants), main.method)


def _uncontested(bids: Bids, served: Uncontested, payments: bool) -> Outcome:
    """True if no bidder's presence costs another one anything: see `uncontested`."""
    row = np.full(bids.bidders, -1)
    row[served.who] = served.rows
    gained = bids.row_value[served.rows] - bids.base[served.who]
    objective = math.fsum([*bids.base.tolist(), *gained.tolist()])
    kept = np.ones(bids.bidders)
    low = kept if payments else (row < 0).astype(np.float64)
    who, machine, gpus = (np.array(x, np.int64) for x in served.grants)
    return Outcome(
        row=row,
        win_bidder=who,
        win_machine=machine,
        win_gpus=gpus,
        objective=objective,
        bound=objective,
        kept=kept,
        kept_low=low,
        kept_high=kept,
        cost=np.zeros(bids.bidders),
        method="all",
        nodes=0,
        programs=0,
    )


def _let_off(problem: WinnerProblem, main: Found, replaced: dict[int, int], forgiven: float) -> dict[int, float]:
    """Lower bounds of the winners' costs to others, where they make up for `forgiven`: these gain `replaced` more."""
    slack = (main.high // problem.unit - main.low // problem.unit + 1) * problem.quantum
    least = {a: max(0.0, steps * problem.quantum - slack) for a, steps in replaced.items()}
    return {a: bound for a, bound in least.items() if math.exp(-bound) < forgiven}


def _excess(problem: WinnerProblem, found: Found) -> float:
    """Gap in nats: of the integers, and of rounding gains to whole steps."""
    steps = found.high // problem.unit - found.low // problem.unit
    return (steps + problem.bidders) * problem.quantum


def _cost(problem: WinnerProblem, main: Found, row: int, other: Found) -> tuple[float, float, float]:
    """Nats that a costs the others and their interval (highest, lowest), from the worth of the others in G_pf and without a."""
    others = (main.low - int(problem.score[row])) // problem.unit
    rounding = _excess(problem, other) - (other.high // problem.unit - other.low // problem.unit) * problem.quantum
    low, high = other.low // problem.unit, other.high // problem.unit
    slack = (main.high // problem.unit - main.low // problem.unit) * problem.quantum
    cost = max(0.0, (low - others) * problem.quantum)
    most = max(0.0, (max(low, high) - others) * problem.quantum + rounding)
    least = max(0.0, (low - others) * problem.quantum - slack - rounding)
    return cost, most, least


def _outcome(
    bids: Bids,
    solver: Solver | None,
    rows: list[int],
    objective: float,
    bound: float,
    cost: Floats,
    weight: Floats | None,
    grants: tuple[list[int], list[int], list[int]] | None,
    method: str = "all",
) -> Outcome:
    row = np.full(bids.bidders, -1)
    row[bids.row_bidder[rows]] = rows
    who, machine, gpus = (np.array(x, np.int64) for x in grants or ([], [], []))
    paid = cost if weight is None else cost / weight
    shares = np.ones(paid.size)
    costs = paid.ravel().nonzero()[0]  # most bidders cost the others nothing
    shares[costs] = [math.exp(-nats) for nats in paid.ravel()[costs].tolist()]
    kept, low, high = shares.reshape(3, bids.bidders)
    return Outcome(
        row=row,
        win_bidder=who,
        win_machine=machine,
        win_gpus=gpus,
        objective=objective,
        bound=bound,
        kept=kept,
        kept_low=low,
        kept_high=high,
        cost=cost[0],
        method=method,
        nodes=solver.nodes if solver else 0,
        programs=solver.programs if solver else 0,
    )
