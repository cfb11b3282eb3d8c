"""The auction in whole numbers: rows that can win, their worth as exact integers, and the capacities they share.

Worth is an integer so that ties are exact: a row's gain over its base, in steps of `WinnerProblem.quantum` nats, times
`WinnerProblem.unit`, plus the GPUs that it could renew. Equal gains are thus decided by fewest moves before arrival.
Problems are built from bids in ``themis.policies.auction.formulation``.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import reduce

import numpy as np

from themis.errors import InputError
from themis.model.bids import store
from themis.optimize.programs import Ints

WIDE, ON_MACHINE, IN_RACK, LOCAL, RACKED = range(5)
"""Kinds of row: any GPUs; all on one given machine; all in one given rack; gangs each on a machine; each in a rack."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Supply:
    """The GPUs on sale.

    Attributes
    ----------
    free
        Shape [N], GPUs offered on each machine, >= 0.
    machine_rack, machine_type
        Shape [N], the rack and the GPU type of each machine, >= 0.

    Raises
    ------
    InputError
        When shapes differ or a value is negative.
    """

    free: Ints
    machine_rack: Ints
    machine_type: Ints

    def __post_init__(self) -> None:
        store(self, np.int64, "free", "machine_rack", "machine_type")
        n = self.free.shape
        if len(n) != 1 or self.machine_rack.shape != n or self.machine_type.shape != n:
            raise InputError(f"Offer: free, machine_rack, machine_type must share one length; free has shape {n}.")
        if n[0] and min(self.free.min(), self.machine_rack.min(), self.machine_type.min()) < 0:
            raise InputError("Offer: free, machine_rack and machine_type must be >= 0; one is negative.")


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class WinnerProblem:
    """M rows that may win, sorted by bidder, and K capacities that any winning set keeps.

    Attributes
    ----------
    offer
        GPUs on sale.
    bidders
        B, bidders of the auction, those without a row here included.
    held
        Shape [B, N], GPUs of the offer that each bidder holds on each machine until this instant; None where no bidder holds any.
    row, who, score, gpus, kind, place, type
        Shape [M]: row of the bids, bidder, integer worth, GPUs, kind, machine or rack (or -1), GPU type.
    sizes
        Shape [Z], sizes > 1 of gangs of kinds LOCAL and RACKED, rising.
    gangs
        Shape [M, Z], gangs of each size; zero for other kinds.
    need, have
        Shapes [M, K], [K]: a winning set sums to at most `have`. First the GPUs per type, then slots.
    rack_room
        Shape [racks, types], GPUs offered.
    unit, quantum
        ``score // unit * quantum`` is the gain in nats.
    trivial
        Every row is WIDE: enough GPUs is enough.
    certain
        Keeping `have` and the machines of ON_MACHINE rows is enough; otherwise a packing must be found.
    """

    offer: Supply
    bidders: int
    held: Ints | None
    row: Ints
    who: Ints
    score: Ints
    gpus: Ints
    kind: Ints
    place: Ints
    type: Ints
    sizes: Ints
    gangs: Ints
    need: Ints
    have: Ints
    rack_room: Ints
    unit: int
    quantum: float
    trivial: bool
    certain: bool

    def gain(self, score: int) -> float:
        """Nats of an integer worth."""
        return score // self.unit * self.quantum


def asks(problem: WinnerProblem) -> Ints:
    """Shape [M], a number for what each row asks for: rows with the same number can take each other's place."""
    return same_asks(problem.type, problem.gpus, problem.kind, problem.place, problem.gangs)


def same_asks(types: Ints, gpus: Ints, kind: Ints, place: Ints, gangs: Ints) -> Ints:
    """One number for rows of the same type, GPUs, kind, place and gangs."""
    fields = [types, gpus]
    if kind.any():
        fields += [kind, place + 1, *gangs.T]
    return _number(fields)


def _number(fields: list[Ints]) -> Ints:
    """One number per distinct combination of fields."""
    radix = [int(f.max()) + 1 for f in fields]
    if reduce(lambda a, b: a * b, radix) < 2**62:
        number = np.zeros(fields[0].size, np.int64)
        for f, r in zip(fields, radix):
            number = number * r + f
        return number
    found: Ints = np.unique(np.stack(fields, 1), axis=0, return_inverse=True)[1].reshape(-1)
    return found
