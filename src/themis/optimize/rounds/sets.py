"""Sets of gangs that can run at one time on several GPU types, each job once: the heaviest, and whether they average to shares.

The set of greatest total value:

1. On each type by itself an exact knapsack. The sum of their values is a bound, which is reached where these sets share no job.
2. Type after type, without the jobs that already run, beginning with each type in turn: a set that fits.
3. If that is less than what is needed: an integer program over (gang, type), with a bound.

Shares x are an average of sets where and only where no prices y have a greater total at x than of the heaviest set. Such prices are
found, or such an average, by generating sets (Dantzig and Wolfe 1960).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from scipy.sparse import csc_array

from themis.errors import NotSolved
from themis.model.units import NONE, Float, Int
from themis.optimize.column_generation import ColumnProgram
from themis.optimize.programs import MixedIntegerProgram, solve

NODES = 500
"""Branch-and-bound nodes of the integer program."""
LARGEST = 2000
"""Variables of the integer program; beyond that it is not tried."""
SHARES = 500
"""Shares up to which they are shown to be an average of sets or not."""
SETS = 400
"""Number of sets generated to decide whether shares are an average of sets."""
TOLERANCE = 1e-7
"""Part of all shares that an average may lack."""

Chosen = list[tuple[int, int]]
"""(gang, type)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Heaviest:
    """A set of gangs that fits, with ``value <= optimum <= bound``, up to rounding."""

    chosen: Chosen
    value: float
    bound: float


def heaviest_set(value: Float, gpus: Int, jobs: Int, room: Sequence[int], enough: float = np.inf) -> Heaviest:
    """The gangs of greatest total value; the search ends at a set of value ``enough`` or at the proof that there is none.

    Parameters
    ----------
    value : [C, K], >= 0; 0 where a gang is not to run. ``gpus`` : [C], >= 1, of a gang on any type. ``room`` : [K], GPUs.
    jobs : [C, 2], each gang's jobs, the second -1 for a job alone; a job runs in one gang at most.
    """
    kinds = [k for k in range(len(room)) if room[k] > 0 and value[:, k].any()]
    apart = {k: heaviest(value[:, k], gpus, room[k]) for k in kinds}
    bound = sum(float(value[rows, k].sum()) for k, rows in apart.items())
    best = _one_after_the_other(value, gpus, jobs, room, kinds, apart)
    for first in range(1, len(kinds)):
        if best.value >= min(enough, bound * (1.0 - 1e-12)) or bound < enough < np.inf:
            break
        turned = _one_after_the_other(value, gpus, jobs, room, kinds[first:] + kinds[:first], apart)
        best = max(best, turned, key=lambda found: found.value)
    if best.value >= min(enough, bound * (1.0 - 1e-12)) or bound < enough < np.inf:
        return Heaviest(chosen=best.chosen, value=best.value, bound=bound)
    return _by_program(value, gpus, jobs, room, best, bound)


def heaviest(value: Float, gpus: Int, room: int) -> list[int]:
    """The gangs of greatest total value that fit into ``room`` GPUs of one type together; exact.

    Parameters
    ----------
    value : [R], >= 0; gangs of value 0 are left out. ``gpus`` : [R], >= 1.
    """
    rows: list[int] = []
    for size in np.unique(gpus[(value > 0) & (gpus <= room)]).tolist():
        alike = np.flatnonzero((value > 0) & (gpus == size))
        rows += alike[np.argsort(-value[alike], kind="stable")][: room // size].tolist()
    best, taken = np.zeros(room + 1), np.zeros((len(rows), room + 1), dtype=bool)
    for i, row in enumerate(rows):
        size = int(gpus[row])
        other = best[: room + 1 - size] + value[row]
        taken[i, size:] = other > best[size:]
        best[size:] = np.maximum(best[size:], other)
    out, left = [], room
    for i in range(len(rows) - 1, -1, -1):
        if taken[i, left]:
            out.append(rows[i])
            left -= int(gpus[rows[i]])
    return out[::-1]


def packs(x: Float, gpus: Int, jobs: Int, room: Sequence[int]) -> bool | None:
    """True if shares are an average of sets of gangs that can run at one time.

    None: there are more than ``SHARES`` shares, or it is not known after ``SETS`` sets.

    Parameters
    ----------
    x : [C, K], shares of gangs on each type. The others: as of ``heaviest_set``.
    """
    c, k = np.nonzero(x > 0)
    n, share = len(c), x[c, k]
    if n > SHARES:
        return None
    row = np.full(x.shape, NONE)
    row[c, k] = np.arange(n)
    # Rows: each share's sets less its part; all sets together at most once. The first column is the part of all shares.
    program = ColumnProgram(np.concatenate([np.zeros(n), [-np.inf]]), np.concatenate([np.full(n, np.inf), [1.0]]))
    program.add(np.ones(1), csc_array(np.concatenate([-share, [0.0]])[:, None]))
    alone = np.vstack([np.eye(n) * (gpus[c] <= np.asarray(room)[k]), np.ones(n)])
    program.add(np.zeros(n), csc_array(alone))
    for _ in range(SETS):
        try:
            found = program.solve()
        except NotSolved:
            return None
        if found.objective >= 1.0 - TOLERANCE:
            return True
        # At the program's prices the shares are worth 1, and no set so far is worth more than its part of them.
        prices = np.zeros(x.shape)
        prices[c, k] = np.maximum(-found.duals[:n], 0.0)
        least = float((prices * x).sum()) * (1.0 - 1e-9)
        best = heaviest_set(prices, gpus, jobs, room, least)
        if best.value < least:
            return False if best.bound < least else None
        column = np.zeros((n + 1, 1))
        column[[row[of] for of in best.chosen]] = column[n] = 1.0
        program.add(np.zeros(1), csc_array(column))
    return None


def _one_after_the_other(
    value: Float, gpus: Int, jobs: Int, room: Sequence[int], kinds: Sequence[int], apart: dict[int, list[int]]
) -> Heaviest:
    """A set that fits: each type's best gangs of those whose jobs do not run yet. ``apart`` : each type's best of all."""
    chosen: Chosen = []
    busy = np.zeros(int(jobs.max(initial=0)) + 2, dtype=bool)  # the last row is for no job
    for k in kinds:
        rows = apart[k]
        if busy[jobs[rows]].any():
            may = ~busy[jobs].any(axis=1)
            rows = _distinct(heaviest(np.where(may, value[:, k], 0.0), gpus, room[k]), jobs, value[:, k])
        else:
            rows = _distinct(rows, jobs, value[:, k])
        chosen += [(c, k) for c in rows]
        busy[jobs[rows]] = True
        busy[NONE] = False
    return Heaviest(chosen=chosen, value=sum(float(value[c, k]) for c, k in chosen), bound=np.inf)


def _distinct(rows: list[int], jobs: Int, value: Float) -> list[int]:
    """Combinations of greatest value, at most one of those that share a job."""
    out: list[int] = []
    busy: set[int] = set()
    for c in sorted(rows, key=lambda c: -float(value[c])):
        there = {int(j) for j in jobs[c] if j != NONE}
        if busy.isdisjoint(there):
            busy |= there
            out.append(c)
    return out


def _by_program(value: Float, gpus: Int, jobs: Int, room: Sequence[int], known: Heaviest, bound: float) -> Heaviest:
    """Variables: gangs of a value on a type where they fit. Rows: the GPUs of each type, each job once."""
    c, k = np.nonzero((value > 0) & (gpus[:, None] <= np.asarray(room)[None, :]))
    n, types = len(c), len(room)
    if n > LARGEST:
        return Heaviest(chosen=known.chosen, value=known.value, bound=bound)
    names, job_row = np.unique(jobs[c], return_inverse=True)
    job_row = job_row.reshape(n, 2)
    # Entries in column order: the type's row, then a row for each job.
    row = np.concatenate([k, types + job_row[:, 0], types + job_row[:, 1]])
    column = np.tile(np.arange(n), 3)
    entry = np.concatenate([gpus[c].astype(float), np.ones(2 * n)])
    there = np.concatenate([np.ones(2 * n, dtype=bool), jobs[c, 1] != NONE])
    row, column, entry = row[there], column[there], entry[there]
    order = np.lexsort((column, row))
    rows = types + len(names)
    scale = float(value[c, k].max())
    program = MixedIntegerProgram(
        gain=value[c, k] / scale,
        low=np.zeros(n),
        high=np.ones(n),
        whole=np.ones(n, dtype=bool),
        row_low=np.full(rows, -np.inf),
        row_high=np.concatenate([np.asarray(room, dtype=float), np.ones(len(names))]),
        start=np.concatenate([[0], np.cumsum(np.bincount(row, minlength=rows))]),
        column=column[order],
        value=entry[order],
    )
    try:
        found = solve(program, gap=1e-9, nodes=NODES, accept=np.inf)
    except NotSolved:
        return Heaviest(chosen=known.chosen, value=known.value, bound=bound)
    chosen = [(int(c[i]), int(k[i])) for i in np.flatnonzero(found.x > 0.5)]
    total = sum(float(value[c, k]) for c, k in chosen)
    bound = min(bound, found.bound * scale)
    return (
        Heaviest(chosen=chosen, value=total, bound=bound)
        if total >= known.value
        else Heaviest(chosen=known.chosen, value=known.value, bound=bound)
    )
