"""Outcome of an auction."""

from __future__ import annotations

from dataclasses import dataclass

from themis.optimize.programs import Floats, Ints


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Outcome:
    """Winners, their machines, and the part that they keep (Themis pseudocode 1, lines 6-9).

    Attributes
    ----------
    row
        Shape [B], the winning row of each bidder, or -1.
    win_bidder, win_machine, win_gpus
        Shape [*], GPUs per bidder and machine: the proportionally fair allocation G_pf, sorted by (bidder, machine).
    objective
        Sum over bidders of w log V at G_pf, nats.
    bound
        Proven upper bound of `objective`; never below it.
    kept
        Shape [B], c_a in [0, 1]: the share of G_pf that a keeps (0 by underflow alone). Exactly 1 for losers.
    kept_low, kept_high
        Shape [B]: c_a lies within, given the gaps of the allocation and of the allocation without a.
    cost
        Shape [B], >= 0: weighted nats that the others lose by the presence of a; ``kept`` is ``exp(-cost / w)``. 0 for losers.
    method
        What settled the allocation: ``all``, ``table``, ``search``, ``program``, ``prices``; ``time`` or ``bound``:
        nothing did before the time or the limit of work was up, and the best choice found is within ``gap``.
    nodes, programs
        Search nodes visited and integer programs solved, payments included.
    """

    row: Ints
    win_bidder: Ints
    win_machine: Ints
    win_gpus: Ints
    objective: float
    bound: float
    kept: Floats
    kept_low: Floats
    kept_high: Floats
    cost: Floats
    method: str
    nodes: int
    programs: int

    @property
    def gap(self) -> float:
        """Proven absolute gap, nats, >= 0."""
        return self.bound - self.objective
