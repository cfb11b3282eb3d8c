"""Capacities that a set of winning rows may break: sums that every packing keeps, so each is a valid cut.

Structural ones are columns of `WinnerProblem.need`; anchored machines and racks are numbered behind them, so that a cluster
of many machines costs nothing until one of them is contested.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from themis.optimize.programs import Ints
from themis.optimize.winners.auction_problem import IN_RACK, ON_MACHINE, WinnerProblem

Capacity = tuple[str, int, int]
"""("have", column, 0), ("machine", n, 0) or ("rack", x, type)."""


def totals(problem: WinnerProblem) -> list[Capacity]:
    """GPUs in sum, for each type that a row asks for."""
    return [("have", t, 0) for t in np.unique(problem.type).tolist()]


def anchored(problem: WinnerProblem) -> list[Capacity]:
    """Machines and racks to which rows are anchored."""
    fixed, racked = problem.kind == ON_MACHINE, problem.kind == IN_RACK
    found: list[Capacity] = [("machine", n, 0) for n in np.unique(problem.place[fixed]).tolist()]
    types = problem.rack_room.shape[1]
    cells = np.unique(problem.place[racked] * types + problem.type[racked]).tolist()
    return found + [("rack", c // types, c % types) for c in cells]


def broken(problem: WinnerProblem, rows: Ints) -> list[Capacity]:
    """Capacities that `rows` together exceed, structural ones first."""
    found: list[Capacity] = []
    over = problem.need[rows].sum(0) > problem.have
    if over.any():
        found += [("have", k, 0) for k in over.nonzero()[0].tolist()]
    if problem.trivial:
        return found
    kinds = problem.kind[rows]
    fixed = kinds == ON_MACHINE
    if fixed.any():
        used = np.bincount(problem.place[rows][fixed], problem.gpus[rows][fixed], problem.offer.free.size)
        found += [("machine", n, 0) for n in (used > problem.offer.free).nonzero()[0].tolist()]
    if (kinds == IN_RACK).any():
        rack = np.where(fixed, problem.offer.machine_rack[np.where(fixed, problem.place[rows], 0)], problem.place[rows])
        racks, types = problem.rack_room.shape
        at = fixed | (kinds == IN_RACK)
        used = np.bincount((rack * types + problem.type[rows])[at], problem.gpus[rows][at], racks * types)
        over = used > problem.rack_room.reshape(-1)
        found += [("rack", c // types, c % types) for c in over.nonzero()[0].tolist()]
    return found


def needs(problem: WinnerProblem, capacities: Sequence[Capacity]) -> tuple[Ints, Ints]:
    """Use of each capacity by each row, shape [M, D], and the capacities, shape [D]."""
    need, caps = [], []
    for name, i, t in capacities:
        if name == "have":
            need.append(problem.need[:, i])
            caps.append(int(problem.have[i]))
        elif name == "machine":
            need.append(np.where((problem.kind == ON_MACHINE) & (problem.place == i), problem.gpus, 0))
            caps.append(int(problem.offer.free[i]))
        else:
            fixed = problem.kind == ON_MACHINE
            rack = np.where(fixed, problem.offer.machine_rack[np.where(fixed, problem.place, 0)], problem.place)
            here = (fixed | (problem.kind == IN_RACK)) & (rack == i) & (problem.type == t)
            need.append(np.where(here, problem.gpus, 0))
            caps.append(int(problem.rack_room[i, t]))
    return np.stack(need, 1), np.array(caps, np.int64)
