"""Effort limits of winner determination."""

from __future__ import annotations

import math
from dataclasses import dataclass

from themis.errors import InputError


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """Limits of work: the same bids give the same outcome on any machine. Only the live service limits seconds too.

    Attributes
    ----------
    gap
        Absolute gap asked of an ordinary auction, nats; > 0.
    gap_huge
        Absolute gap asked of a huge one, nats.
    huge
        An auction is huge when rows times GPUs exceed this.
    states
        Most entries of one exact table (states of free capacity times rows); beyond it capacities are priced.
    entries
        Most entries of the table of GPUs in sum (GPUs times rows); beyond it GPUs are priced too.
    wide
        Most states of free capacity in one exact table of several capacities; above it prices are quicker.
    leaves
        Nodes of the search over rows before the integer program takes over.
    packing
        Steps of the exact packing search.
    work
        Integer programs of one auction times the square of its rows. Past it, what is still open keeps the best choice found
        and its proven gap: the objective's in `Outcome.bound`, a payment's between `Outcome.kept_low` and `Outcome.kept_high`.
    nodes
        Branch-and-bound nodes of one integer program.
    seconds
        Wall time after which what is still open keeps the best choice found so far and its proven gap; > 0. The tables,
        bounded by ``states``, are always finished. Infinite in simulations.
    allow_gap
        Carry a larger gap in the outcome instead of raising `NotSolved`.
    """

    gap: float = 1e-6
    gap_huge: float = 0.01
    huge: int = 5_000_000
    states: int = 3_000_000
    entries: int = 100_000_000
    wide: int = 12_000
    leaves: int = 300
    packing: int = 1_000
    work: int = 1_600_000
    nodes: int = 100_000
    seconds: float = math.inf
    allow_gap: bool = False

    def __post_init__(self) -> None:
        if self.gap <= 0 or self.gap_huge < self.gap or min(self.states, self.leaves, self.packing, self.nodes) < 1:
            raise InputError("Limits: 0 < gap <= gap_huge, and every limit of work must be at least 1.")
        if not self.seconds > 0:
            raise InputError(f"Limits: seconds is {self.seconds}, expected more than 0.")
