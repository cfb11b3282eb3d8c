"""Water filling over jobs and pairs: the lexicographic max-min of Gavel §4.3 with §3.1's space sharing.

Everybody's level rises until somebody cannot follow; the others rise on, as in ``filling``. Who is stuck is told by the
prices that prove a level: a class of jobs whose rate is worth something at them cannot rise while nobody falls, in any
optimum. At least one class is stuck in every round, mostly many. Jobs that are alike, unit included, are one class.
"""

from __future__ import annotations

import numpy as np

from themis.errors import NotSolved
from themis.gavel.dealing import deal
from themis.gavel.pairs import GAP, Classes, PairProgram, PairRates, PairShares, paired_throughput, settle
from themis.gavel.problem import Problem
from themis.model.units import Float

_PRESSING = 1e-7
"""Of the largest worth of a unit among those who still rise: what is below is rounding."""


def water_fill_paired(problem: Problem, pairs: PairRates, unit: Float) -> PairShares:
    """Shares of jobs and pairs with the lexicographically largest sorted amounts; ``bound`` is of the least amount.

    Parameters
    ----------
    unit : Float[J], rate that counts as an amount of 1; > 0 for jobs that can run.

    Raises
    ------
    NotSolved : columns or levels do not settle.
    """
    if not problem.active.any():
        none = np.zeros((0, problem.types))
        return PairShares(
            combos=np.zeros((0, 2), np.int64), x=none, throughput=np.zeros(problem.jobs), bound=0.0, columns=0
        )
    classes = Classes.of(problem, pairs, unit[:, None])
    program, one = PairProgram(problem, pairs, classes), unit[classes.first]
    top = pairs.fastest(problem)[classes.first] / one
    amount, rises, least = np.zeros(len(one)), np.ones(len(one), dtype=bool), None
    while rises.any():
        base, more = amount * one, rises * one
        level, worth = settle(program, lambda t: base + t * more, float((top - amount)[rises].min()))  # noqa: B023
        amount = amount + level * rises
        least = level if least is None else least
        pressing = rises * one * (np.zeros(len(one)) if worth is None else worth)
        stuck = rises & ((pressing > _PRESSING * pressing.max()) | (amount >= top * (1.0 - GAP)))
        if not stuck.any():
            raise NotSolved(f"water filling over {len(one)} classes of jobs and pairs: nobody is stuck at {level}.")
        rises &= ~stuck
        # A level is reached but for GAP: what is asked of the next round can be had.
        amount *= 1.0 - 3 * GAP
    combos, x = deal(classes.members, program.masses(), problem.types)
    throughput = paired_throughput(problem, pairs, combos, x)
    assert least is not None
    return PairShares(combos=combos, x=x, throughput=throughput, bound=least, columns=program.size)
