"""Prices on capacities that are too many for exact tables, and packable choices near a priced one.

Lagrangian relaxation: a capacity leaves the tables and its users pay for it instead. For any prices the priced
optimum plus the price of all capacity bounds the true optimum from above; linear programming finds the best prices.
A choice that does not pack is repaired: rows that find no place leave, then the best affordable changes are made.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from themis.optimize import MixedIntegerProgram, solve
from themis.optimize.programs import Floats, Ints
from themis.optimize.winners.auction_problem import IN_RACK, ON_MACHINE, RACKED, WinnerProblem
from themis.optimize.winners.capacities import Capacity, anchored, needs
from themis.optimize.winners.gang_packing import PackingGang

MOVES = 60
"""Changes tried by one repair."""

NOTHING = -(1 << 61)
"""Below any worth."""

FALLBACKS = 8
"""Maximum number of rows tried for a bidder whose own row has no place."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class PricedRows:
    """Worth of every row less the price of its priced capacity, shape [M], and the price of all capacity.

    `net` is the worth less the price of everything that the row takes, exact capacities included.
    """

    score: Ints
    net: Ints
    constant: int


def price(problem: WinnerProblem, exact: list[Capacity]) -> PricedRows:
    """Price every capacity that is not in `exact`.

    Prices are rounded so that the bound stays valid: rows pay less, capacity earns more.
    """
    every = [("have", k, 0) for k in range(problem.have.size)]
    others = [c for c in every + anchored(problem) if c not in exact]
    if not others:
        return unpriced(problem)
    need, caps = needs(problem, exact + others)
    every_dual = _duals(problem, need, caps) * (problem.unit / problem.quantum)
    net = problem.score - np.floor(need @ every_dual).astype(np.int64)
    duals = every_dual[len(exact) :]
    paid = np.floor(need[:, len(exact) :] @ duals).astype(np.int64)
    return PricedRows(score=problem.score - paid, net=net, constant=int(np.ceil(duals @ caps[len(exact) :])))


def unpriced(problem: WinnerProblem) -> PricedRows:
    """No priced capacity."""
    return PricedRows(score=problem.score, net=problem.score, constant=0)


def _duals(problem: WinnerProblem, need: Ints, caps: Ints) -> Floats:
    """Shape [D], nats per unit of capacity at the optimum of the linear relaxation."""
    rows = problem.row.size
    start = np.flatnonzero(np.r_[True, problem.who[1:] != problem.who[:-1]])
    used, column = need.T.nonzero()
    program = MixedIntegerProgram(
        gain=problem.score / problem.unit * problem.quantum,
        low=np.zeros(rows),
        high=np.ones(rows),
        whole=np.zeros(rows, np.bool_),
        row_low=np.full(start.size + caps.size, -np.inf),
        row_high=np.concatenate([np.ones(start.size), caps.astype(np.float64)]),
        start=np.concatenate([start, rows + np.searchsorted(used, np.arange(caps.size + 1))]),
        column=np.concatenate([np.arange(rows), column]),
        value=np.concatenate([np.ones(rows), need.T[used, column].astype(np.float64)]),
    )
    found = solve(program, gap=0.0, nodes=1, accept=np.inf)
    return np.maximum(found.duals[start.size :], 0.0)


class Builder:
    """A packable choice that changes row by row. Finds places by best fit, so it may miss a packing that exists."""

    def __init__(self, problem: WinnerProblem) -> None:
        self.problem = problem
        offer, types = problem.offer, problem.rack_room.shape[1]
        self._rack = offer.machine_rack
        self._of = [offer.machine_type == t for t in range(types)]
        self.free = [np.where(own, offer.free, 0) for own in self._of]
        self.room = [problem.rack_room[:, t].copy() for t in range(types)]
        self.left = problem.have.copy()
        self.placed: dict[int, list[tuple[bool, int, int]]] = {}
        self.row = {int(b): -1 for b in problem.who}

    def rows(self) -> list[int]:
        """Chosen rows of the problem."""
        return [r for r in self.row.values() if r >= 0]

    def places(self, gangs: Sequence[PackingGang]) -> list[int]:
        """Machine or rack of each gang; `gangs` lists the gangs of each row largest first."""
        queues = {r: iter(spots) for r, spots in self.placed.items()}
        return [next(queues[g.row])[1] for g in gangs]

    def put(self, r: int) -> bool:
        """Give row r to its bidder, who has none; False and no change when no place is found."""
        problem, t = self.problem, int(self.problem.type[r])
        need = problem.need[r]
        # Only GPUs in sum must hold here: best fit may find places where the other sums are pessimistic, never more.
        if need[t] > self.left[t]:
            return False
        spots: list[tuple[bool, int, int]] = []
        self.placed[r] = spots
        for racked, spot, size in self._wants(r):
            at = spot if spot >= 0 else self._best(racked, size, t)
            if at < 0 or not self._holds(racked, at, size, t):
                self._undo(r, t)
                return False
            self._move(racked, at, size, t)
            spots.append((racked, at, size))
        self.left = self.left - need
        self.row[int(problem.who[r])] = r
        return True

    def drop(self, r: int) -> None:
        """Take row r from its bidder."""
        self._undo(r, int(self.problem.type[r]))
        self.left = self.left + self.problem.need[r]
        self.row[int(self.problem.who[r])] = -1

    def _wants(self, r: int) -> list[tuple[bool, int, int]]:
        problem = self.problem
        kind, place, gpus = int(problem.kind[r]), int(problem.place[r]), int(problem.gpus[r])
        if kind in (ON_MACHINE, IN_RACK):
            return [(kind == IN_RACK, place, gpus)]
        sizes = zip(problem.sizes[::-1].tolist(), problem.gangs[r, ::-1].tolist())
        return [(kind == RACKED, -1, s) for s, count in sizes for _ in range(count)]

    def _best(self, racked: bool, size: int, t: int) -> int:
        room, free = self.room[t], self.free[t]
        key = room if racked else np.where(room[self._rack] >= size, free, 0)
        masked = np.where(key >= size, key, 1 << 30)
        spot = int(masked.argmin())
        return spot if masked[spot] < 1 << 30 else -1

    def _holds(self, racked: bool, at: int, size: int, t: int) -> bool:
        x = at if racked else self._rack[at]
        return bool(self.room[t][x] >= size and (racked or self.free[t][at] >= size))

    def _move(self, racked: bool, at: int, size: int, t: int) -> None:
        self.room[t][at if racked else self._rack[at]] -= size
        if not racked:
            self.free[t][at] -= size

    def _undo(self, r: int, t: int) -> None:
        for racked, at, size in self.placed.pop(r):
            self._move(racked, at, -size, t)


def repair(problem: WinnerProblem, priced: PricedRows, pick: Ints, banned: int) -> Builder:
    """A packable choice near `pick` (rows of the problem) that gives nothing to the bidder `banned`.

    A row that finds no place is replaced by the bidder's next best by priced worth. Large gangs choose first, and
    among equals those who would lose most by taking a row that needs no slots.
    """
    builder = Builder(problem)
    largest = np.where(problem.gangs > 0, problem.sizes, 0).max(1, initial=0)[pick]
    loose = ~np.isin(problem.kind[pick], (ON_MACHINE, IN_RACK))
    easy = np.where(problem.need[:, problem.rack_room.shape[1] :].any(1), NOTHING, priced.net)
    start = np.searchsorted(problem.who, problem.who[pick])
    stop = np.searchsorted(problem.who, problem.who[pick], side="right")
    regret = priced.net[pick] - np.array([easy[a:b].max() for a, b in zip(start, stop)], np.int64)
    for i in np.lexsort((-regret, -largest, loose)).tolist():
        if not builder.put(int(pick[i])):
            rest = start[i] + np.argsort(-priced.net[start[i] : stop[i]], kind="stable")[:FALLBACKS]
            any(builder.put(r) for r in rest.tolist() if r != pick[i])
    improve(builder, banned)
    return builder


def improve(builder: Builder, banned: int) -> None:
    """Change rows of single bidders for more expensive ones while places are found, largest gain first."""
    problem = builder.problem
    held = np.full(int(problem.who.max()) + 1, -1)
    held[list(builder.row)] = list(builder.row.values())
    hopeless = problem.who == banned
    types = problem.rack_room.shape[1]
    need = problem.need[:, :types].sum(1)
    for _ in range(MOVES):
        now = held[problem.who]
        gain = problem.score - np.where(now >= 0, problem.score[now], 0)
        extra = need - np.where(now >= 0, need[now], 0)
        gain[hopeless | (extra > builder.left[:types].max())] = 0
        r = int(gain.argmax())
        if gain[r] <= 0:
            return
        old = builder.row[int(problem.who[r])]
        if old >= 0:
            builder.drop(old)
        if builder.put(r):
            held[problem.who[r]] = r
        else:
            hopeless[r] = True
            if old >= 0 and not builder.put(old):
                held[problem.who[r]] = -1
