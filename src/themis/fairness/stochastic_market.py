"""The market with uncertain job changes: expected welfare over joint states (Shockwave, appendix F).

    maximise  sum_i B_i log E_pi[U_i]                                                               (eq. 6)

over policies pi that say, in each round and joint state, with which probability each set of jobs is served. A job that is
served gains by its state and moves on by its transition probabilities; others stay as they are. The variables are the
probabilities of (state, set) in each round; the logs are bounded by tangents, one linear program after the other.

Its size is the product of all jobs' states: it is the reference for small cases, against which planning on the expected
trajectory (§5) is measured. Differs from the paper: policies may be random, as its constraints say and its text does not.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import product

import numpy as np

from themis.errors import InputError, NotSolved
from themis.model.units import Float
from themis.optimize.programs import MixedIntegerProgram, Solution, solve

MOST_VARIABLES = 50_000
STEPS = 60
"""Linear programs of one solve."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Chain:
    """A job of S states.

    Attributes
    ----------
    gain : Float[S], progress of a round served in each state, >= 0; ``move`` : Float[S, S], from state to state when served,
        rows add up to 1. ``gpus`` : of a round in which it is served. ``budget`` : above 0. It begins in state 0.
    """

    gain: Float
    move: Float
    gpus: int = 1
    budget: float = 1.0

    def __post_init__(self) -> None:
        if not np.allclose(self.move.sum(axis=1), 1.0) or (self.move < 0).any():
            raise InputError("a job's transition probabilities do not add up to 1 in every state.")


@dataclass(frozen=True, slots=True, kw_only=True)
class ExpectedProgress:
    """``utility`` : Float[N], expected progress of each job; ``objective <= optimum <= bound``, sums of B log E[U]."""

    utility: Float
    objective: float
    bound: float


def most_expected_welfare(jobs: Sequence[Chain], *, gpus: int, rounds: int, gap: float = 1e-6) -> ExpectedProgress:
    """The best policy's welfare, to ``gap`` times the sum of budgets.

    Raises
    ------
    InputError : too many joint states to tabulate. NotSolved : the gap is not reached.
    """
    sets = [np.array(s, dtype=bool) for s in product((False, True), repeat=len(jobs))]
    sets = [s for s in sets if sum(job.gpus for job, served in zip(jobs, s) if served) <= gpus]
    states = list(product(*(range(len(job.gain)) for job in jobs)))
    variables = rounds * len(states) * len(sets)
    if variables > MOST_VARIABLES:
        raise InputError(
            f"the market in expectation has {variables:,} variables, expected at most {MOST_VARIABLES:,}; "
            "use fewer jobs, states or rounds, or plan on the expected trajectory."
        )
    flow, source = _flow(jobs, states, sets, rounds)
    one_round = np.array(
        [[served * job.gain[s[i]] for s in states for served in (x[i] for x in sets)] for i, job in enumerate(jobs)]
    )
    gains = np.tile(one_round, (1, rounds))
    budget = np.array([job.budget for job in jobs])
    return _tangents(budget, gains, flow, source, gap)


def _flow(jobs: Sequence[Chain], states: list[tuple[int, ...]], sets: list[Float], rounds: int) -> tuple[Float, Float]:
    """Probability is kept: what is in a state at the start of a round is what the round before moved there."""
    s, x = len(states), len(sets)
    chance = np.zeros((s, s, x))  # to, from, set
    for b, before in enumerate(states):
        for a, after in enumerate(states):
            for k, served in enumerate(sets):
                chance[a, b, k] = np.prod(
                    [
                        job.move[before[i], after[i]] if served[i] else before[i] == after[i]
                        for i, job in enumerate(jobs)
                    ]
                )
    flow = np.zeros((rounds * s, rounds * s * x))
    for t in range(rounds):
        for a in range(s):
            row = t * s + a
            flow[row, (t * s + a) * x : (t * s + a + 1) * x] = 1.0
            if t:
                flow[row, (t - 1) * s * x : t * s * x] -= chance[a].ravel()
    source = np.zeros(rounds * s)
    source[states.index((0,) * len(jobs))] = 1.0
    return flow, source


def _tangents(budget: Float, gains: Float, flow: Float, source: Float, gap: float) -> ExpectedProgress:
    jobs, columns = gains.shape
    most = np.array([_solve(gains[i], flow, source, source, 0).objective for i in range(jobs)])
    if (most <= 0).any():
        raise NotSolved(f"job {int(np.argmin(most))} of a market can gain nothing, whatever it gets.")
    share = gains / most[:, None]
    rows, low, high = [np.hstack([flow, np.zeros((len(flow), jobs))])], [source], [source]
    points, best, utility, bound = [np.full(jobs, p) for p in (0.25 / jobs, 1.0 / jobs, 1.0)], -np.inf, most, np.inf
    for _ in range(STEPS):
        for p in points:  # log u <= log p + (u - p) / p
            rows.append(np.hstack([-share / p[:, None], np.eye(jobs)]))
            low.append(np.full(jobs, -np.inf))
            high.append(np.log(p) - 1.0)
        gain = np.append(np.zeros(columns), budget)
        found = _solve(gain, np.vstack(rows), np.concatenate(low), np.concatenate(high), jobs)
        u = np.maximum(share @ found.x[:columns], 1e-9)
        bound = min(bound, found.objective)
        if (value := float(budget @ np.log(u))) > best:
            best, utility = value, u * most
        if bound - best <= gap * float(budget.sum()):
            shift = float(budget @ np.log(most))
            return ExpectedProgress(utility=utility, objective=best + shift, bound=max(bound, best) + shift)
        points = [u]
    raise NotSolved(f"the market's gap is {bound - best:.3g} after {STEPS} linear programs.")


def _solve(gain: Float, matrix: Float, low: Float, high: Float, free: int) -> Solution:
    """Maximise over x >= 0, the last ``free`` columns of either sign."""
    row, column = np.nonzero(matrix)
    least = np.zeros(len(gain))
    least[len(gain) - free :] = -np.inf
    program = MixedIntegerProgram(
        gain=gain,
        low=least,
        high=np.full(len(gain), np.inf),
        whole=np.zeros(len(gain), dtype=bool),
        row_low=low,
        row_high=high,
        start=np.concatenate([[0], np.cumsum(np.bincount(row, minlength=len(matrix)))]),
        column=column,
        value=matrix[row, column],
    )
    return solve(program, gap=0.0, nodes=1, accept=0.0)
