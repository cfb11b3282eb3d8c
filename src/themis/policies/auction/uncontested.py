"""Auctions with room for everyone: each bidder gets the row that it likes best, proven without tables or a search.

No allocation gives a bidder more than the best of its rows that the offer could hold alone. So:

- Where all these rows can be assigned together, their sum is the most that the bidders gain, and the gap is 0.
- Without any one of them the others keep their machines, and none of them could have more: what the others gain is the
  same with a and without a. No bidder's presence costs another one anything, and c_a = 1 for everyone.

``uncontested`` states the rule over a `WinnerProblem`. ``plainly_uncontested`` is the same for rows of one gang size without
anchors, before any problem is built, in plain numbers: most auctions have a handful of rows, and arrays of a few entries take
longer than loops (figures: decision 36). It assigns machines as ``uncontested`` does (`Assignment`); where that fails, where two
rows of one bidder are its best (renewals decide then), and for bids of other shapes, it says nothing.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from themis.model.bids import ANYWHERE, MACHINE, RACK, Bids
from themis.model.units import NONE
from themis.optimize.winners.assignment import Assignment, Claims, Grants, Winner, arrays, assign
from themis.optimize.winners.auction_problem import LOCAL, RACKED, WIDE, Supply, WinnerProblem
from themis.optimize.winners.capacities import broken
from themis.optimize.winners.gang_packing import Floor, Packer, PackingGang, largest_first
from themis.policies.auction.formulation import gains

FEW = 400
"""More rows than this are left to arrays."""


@dataclass(frozen=True, slots=True)
class Uncontested:
    """Rows of the winning bids, their bidders (ascending), and their GPUs: bidders, machines and GPUs, sorted."""

    rows: Sequence[int]
    who: Sequence[int]
    grants: tuple[list[int], list[int], list[int]]


def uncontested(problem: WinnerProblem, packer: Packer) -> Uncontested | None:
    """Best row and machines of every bidder; None where these do not all fit.

    Raises
    ------
    NotSolved
        When the rows fit, but no packing of them is found within the packer's steps.
    """
    order = np.lexsort((-problem.score, problem.who))
    first = np.ones(order.size, np.bool_)
    first[1:] = problem.who[order][1:] != problem.who[order][:-1]
    best = order[first]
    if (problem.need[best].sum(0) > problem.have).any() or broken(problem, best):
        return None
    rows = best.tolist()
    if not packer.packs(rows):
        return None
    grants = assign(problem, packer, rows)
    return Uncontested(rows=problem.row[best].tolist(), who=problem.who[best].tolist(), grants=arrays(grants))


def plainly_uncontested(offer: Supply, bids: Bids) -> Uncontested | None:
    """Same as ``uncontested``, from plain numbers; None also where a short check cannot decide."""
    if not 0 < bids.rows <= FEW or bids.gang_size.size != bids.rows or bids.row_anchor.max() >= 0:
        return None
    plain = _Plain(offer, bids)
    held = plain.held(bids)
    best = plain.best(gains(bids, plain.gpus)[0].tolist())
    if held is None or best is None:
        return None
    claims: Claims = {b: held.get(b, {}) for b in best} if held else {}
    grants: Grants = {}
    for kind in sorted({plain.type[r] for r in best.values()}):
        assigned = plain.assigned(kind, {r: b for b, r in best.items() if plain.type[r] == kind}, claims)
        if assigned is None:
            return None
        grants.update(assigned.grants)
    return Uncontested(rows=list(best.values()), who=list(best), grants=arrays(grants))


class _Plain:
    """The offer and the rows as plain numbers."""

    def __init__(self, offer: Supply, bids: Bids) -> None:
        self.free: list[int] = offer.free.tolist()
        self.gpus = sum(self.free)
        self.rack: list[int] = offer.machine_rack.tolist()
        self.machine_type: list[int] = offer.machine_type.tolist()
        self.who: list[int] = bids.row_bidder.tolist()
        self.type: list[int] = bids.row_type.tolist()
        self.span: list[int] = bids.row_span.tolist()
        self.size: list[int] = bids.gang_size.tolist()
        self.count: list[int] = bids.gang_count.tolist()
        self.machines: dict[int, list[int]] = {}
        """Machines with free GPUs, by type."""
        self.room: dict[int, list[int]] = {}
        """Free GPUs of each rack, by type."""
        for n, free in enumerate(self.free):
            if free:
                k = self.machine_type[n]
                if k not in self.machines:
                    self.machines[k], self.room[k] = [], [0] * (1 + max(self.rack))
                self.machines[k].append(n)
                self.room[k][self.rack[n]] += free
        self._slots: dict[tuple[int, int, int], int] = {}

    def held(self, bids: Bids) -> dict[int, dict[int, int]] | None:
        """Expiring GPUs by bidder and machine, within the offer; None if one names a machine that the offer lacks."""
        if not bids.expiring_gpus.size:
            return {}
        out: dict[int, dict[int, int]] = {}
        holdings = (bids.expiring_bidder.tolist(), bids.expiring_machine.tolist(), bids.expiring_gpus.tolist())
        for b, n, gpus in zip(*holdings):
            if not 0 <= n < len(self.free):
                return None
            mine = out.setdefault(b, {})
            mine[n] = min(mine.get(n, 0) + gpus, self.free[n])
        return out

    def best(self, steps: list[int]) -> dict[int, int] | None:
        """Row of most steps of each bidder, of those that the offer could hold alone; None if they need too many GPUs.

        Or where a bidder has two that are its best.
        """
        out: dict[int, int] = {}
        left = {k: sum(room) for k, room in self.room.items()}
        at, rows = 0, len(self.who)
        while at < rows:
            b, most, row, tied = self.who[at], 0, -1, False
            while at < rows and self.who[at] == b:
                if steps[at] >= max(most, 1) and self.fits_alone(at):
                    tied = steps[at] == most
                    most, row = steps[at], at
                at += 1
            if tied:
                return None
            if row >= 0:
                out[b] = row
                k = self.type[row]
                left[k] -= self.size[row] * self.count[row]
                if left[k] < 0:
                    return None
        return out

    def kind(self, row: int) -> int:
        """The simplest kind that means the same in this offer, as `formulation` says."""
        k, span = self.type[row], self.span[row]
        if self.size[row] == 1 or span == ANYWHERE or len(self.machines.get(k, ())) == 1:
            return WIDE
        if span == RACK and sum(room > 0 for room in self.room.get(k, ())) == 1:
            return WIDE
        return LOCAL if span == MACHINE else RACKED

    def fits_alone(self, row: int) -> bool:
        """True if the offer could hold the row without other winners: gangs have one size, so slots are counted."""
        kind, size, k = self.kind(row), self.size[row], self.type[row]
        key = (kind, 1 if kind == WIDE else size, k)
        if key not in self._slots:
            parts = [self.free[n] for n in self.machines.get(k, ())] if kind == LOCAL else self.room.get(k, [])
            self._slots[key] = sum(parts) if kind == WIDE else sum(part // size for part in parts)
        return self.count[row] * (size if kind == WIDE else 1) <= self._slots[key]

    def assigned(self, kind: int, winners: dict[int, int], claims: Claims) -> Assignment | None:
        """Machines of one GPU type for these rows (rising) and their bidders; None where a gang finds no place."""
        floor = Floor(machines=self.machines[kind], free=list(self.free), rack=self.rack, room=list(self.room[kind]))
        kinds = {r: self.kind(r) for r in winners}
        out = Assignment(
            {r: Winner(b, kinds[r], NONE, self.size[r] * self.count[r]) for r, b in winners.items()}, floor, claims
        )
        gangs: list[PackingGang] = []
        for r, is_kind in kinds.items():
            if is_kind != WIDE:
                gangs += [PackingGang(row=r, size=self.size[r], racked=is_kind == RACKED)] * self.count[r]
        gangs = largest_first(gangs)
        places = out.choose(gangs)
        if places is None:
            return None
        out.fill(gangs, places)
        return out
