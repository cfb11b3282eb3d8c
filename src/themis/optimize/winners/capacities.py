"""Capacities that a set of winning rows may break: sums that every packing keeps, so each is a valid cut.

Structural ones are columns of `Market.need`; anchored machines and racks are numbered behind them, so that a cluster
of many machines costs nothing until one of them is contested.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from themis.auction.bids import Ints
from themis.optimize.winners.problem import IN_RACK, ON_MACHINE, Market

Capacity = tuple[str, int, int]
"""("have", column, 0), ("machine", n, 0) or ("rack", x, type)."""


def totals(market: Market) -> list[Capacity]:
    """GPUs in sum, for each type that a row asks for."""
    return [("have", t, 0) for t in np.unique(market.type).tolist()]


def anchored(market: Market) -> list[Capacity]:
    """Machines and racks to which rows are anchored."""
    fixed, racked = market.kind == ON_MACHINE, market.kind == IN_RACK
    found: list[Capacity] = [("machine", n, 0) for n in np.unique(market.place[fixed]).tolist()]
    types = market.rack_room.shape[1]
    cells = np.unique(market.place[racked] * types + market.type[racked]).tolist()
    return found + [("rack", c // types, c % types) for c in cells]


def broken(market: Market, rows: Ints) -> list[Capacity]:
    """Capacities that `rows` together exceed, structural ones first."""
    found: list[Capacity] = []
    over = market.need[rows].sum(0) > market.have
    if over.any():
        found += [("have", k, 0) for k in over.nonzero()[0].tolist()]
    if market.trivial:
        return found
    kinds = market.kind[rows]
    fixed = kinds == ON_MACHINE
    if fixed.any():
        used = np.bincount(market.place[rows][fixed], market.gpus[rows][fixed], market.offer.free.size)
        found += [("machine", n, 0) for n in (used > market.offer.free).nonzero()[0].tolist()]
    if (kinds == IN_RACK).any():
        rack = np.where(fixed, market.offer.machine_rack[np.where(fixed, market.place[rows], 0)], market.place[rows])
        racks, types = market.rack_room.shape
        at = fixed | (kinds == IN_RACK)
        used = np.bincount((rack * types + market.type[rows])[at], market.gpus[rows][at], racks * types)
        over = used > market.rack_room.reshape(-1)
        found += [("rack", c // types, c % types) for c in over.nonzero()[0].tolist()]
    return found


def needs(market: Market, capacities: Sequence[Capacity]) -> tuple[Ints, Ints]:
    """What every row takes of each capacity, shape [M, D], and how much there is, shape [D]."""
    need, caps = [], []
    for name, i, t in capacities:
        if name == "have":
            need.append(market.need[:, i])
            caps.append(int(market.have[i]))
        elif name == "machine":
            need.append(np.where((market.kind == ON_MACHINE) & (market.place == i), market.gpus, 0))
            caps.append(int(market.offer.free[i]))
        else:
            fixed = market.kind == ON_MACHINE
            rack = np.where(fixed, market.offer.machine_rack[np.where(fixed, market.place, 0)], market.place)
            here = (fixed | (market.kind == IN_RACK)) & (rack == i) & (market.type == t)
            need.append(np.where(here, market.gpus, 0))
            caps.append(int(market.rack_room[i, t]))
    return np.stack(need, 1), np.array(caps, np.int64)
