"""Water filling: all jobs' levels rise together; a job that cannot rise stops, and the others continue. Gavel §4.3.

With flat weights this is the lexicographic max-min of weighted normalised throughputs, and Pareto efficient. The paper
finds out who is stuck by an integer program in every round. The prices know it already, and rounds are few:

- a job whose next bit of rate would cost something at the prices of the highest level cannot rise in any optimum;
- the others use, from then on, only pools whose price is 0, so every round fills at least one pool:
  there are no more rounds than pools;
- a job that is stuck because it runs on its fastest type all of the time needs no round: ``Growth`` stops there.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np

from themis.errors import NotSolved
from themis.model.units import Float
from themis.optimize.shares.level import FITS, Level, highest_level
from themis.optimize.shares.problem import Need, Problem

Fill = Callable[[float], Float]
"""Increment [J] of each job at a level from 0; rises, and stops at the job's room."""

Growth = Callable[[Float, Float], tuple[Fill, float]]
"""(base [J], room [J]) -> the increments from there, and the level at which no job has room left."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Filled:
    """The end of a filling.

    Attributes
    ----------
    x : Float[J, K]. ``amount`` : Float[J], what the shares give each job, in its unit.
    first : Float[J], amounts when the first pool was full, and price : Float[M], its proof. ``rounds`` : levels solved for.
    """

    x: Float
    amount: Float
    first: Float
    price: Float
    rounds: int


def water_fill(problem: Problem, unit: Float, grow: Growth, base: Float | None = None) -> Filled:
    """Let all jobs grow from ``base`` until none can.

    Parameters
    ----------
    unit : Float[J], rate that counts as an amount of 1; > 0 for jobs that can run.
    grow : who grows how fast; ``flat`` or a hierarchy.
    base : Float[J], amounts that can be had together, where filling begins; zeros by default.

    Raises
    ------
    NotSolved : a round neither fills a pool nor stops anybody.
    """
    safe = np.where(problem.active, unit, 1.0)
    amount = np.zeros(problem.jobs) if base is None else base.copy()
    stuck, open_ = ~problem.active, np.ones(problem.types, dtype=bool)
    first, price = amount, np.zeros(len(problem.workers))
    x = np.zeros((problem.jobs, problem.types))
    found: Level | None = None
    settled, kept = np.zeros(problem.jobs, dtype=bool), x

    def rise() -> tuple[Fill, Level]:
        rate = np.where(np.where(stuck[:, None], ~settled[:, None], open_[None, :]), problem.rate, 0.0)
        workers = problem.workers * (1.0 + FITS) - problem.usage(kept) if settled.any() else problem.workers
        fastest = np.where(open_[None, :], problem.rate, 0.0).max(axis=1, initial=0.0) / safe
        room = np.where(stuck, 0.0, np.maximum(fastest - amount, 0.0))
        fill, ceiling = grow(amount, room)
        return fill, highest_level(
            replace(problem, rate=rate, workers=np.maximum(workers, 0.0)), _need(amount, fill, safe), ceiling
        )

    for rounds in range(1, len(problem.workers) + 2):
        try:
            fill, found = rise()
        except NotSolved:
            if found is None:
                raise
            # Prices of pools may differ by ten orders of magnitude: rounding then hides what a job's rate costs. Jobs that
            # use a closed pool in the shares found keep their rate; all others use open pools alone, so the rates fit.
            stuck = stuck | (x[:, ~open_] > 0.0).any(axis=1)
            settled, kept = np.zeros_like(stuck), np.zeros_like(kept)
            fill, found = rise()
        amount, x = amount + fill(found.level), found.x + kept
        if rounds == 1:
            first, price = amount, found.price
        open_ &= found.price[problem.pool] <= 0.0
        if open_.any() and found.price.any():
            marginal = found.marginal()
            stuck |= marginal > 0.0
            if found.ties is not None and (found.ties & stuck & ~settled).sum() < (found.price > 0.0).sum():
                # A stuck job has one way to its rate, except jobs that fill the pools completely: theirs is as unique
                # as the solution of equally many equations.
                kept = np.where(stuck[:, None], x, 0.0)
                settled |= stuck
        if stuck.all() or not open_.any() or not found.price.any():
            return Filled(x=x, amount=amount, first=first, price=price, rounds=rounds)
    raise NotSolved(f"water filling over {len(problem.workers)} pools needs more rounds than there are pools.")


def _need(base: Float, fill: Fill, unit: Float) -> Need:
    return lambda t: (base + fill(t)) * unit


def flat(weight: Float) -> Growth:
    """Everybody grows in proportion to its weight."""

    def grow(base: Float, room: Float) -> tuple[Fill, float]:
        # Jobs without room stay where they are.
        speed = np.where(room > 0, weight, 0.0)
        return lambda t: np.minimum(speed * t, room), float((room / weight).max(initial=0.0))

    return grow
