"""Prices on capacities that are too many for exact tables, and packable choices near a priced one.

Lagrangian relaxation: a capacity leaves the tables and its users pay for it instead. For any prices the priced
optimum plus the price of all capacity bounds the true optimum from above; linear programming finds the best prices.
A choice that does not pack is repaired: rows that find no place leave, then the best affordable changes are made.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from operator import attrgetter, itemgetter
from typing import Any

import numpy as np

from themis.optimize import MixedIntegerProgram, solve
from themis.optimize.column_generation import ColumnProgram
from themis.optimize.programs import Floats, Ints
from themis.optimize.winners.auction_problem import IN_RACK, ON_MACHINE, RACKED, WinnerProblem, asks
from themis.optimize.winners.capacities import Capacity, anchored, needs
from themis.optimize.winners.gang_packing import PackingGang

MOVES = 60
"""Changes tried by one repair."""

NEAR = 4_000
"""Rows of which changes are taken."""

ROWS = 4_000
"""Most rows of a linear relaxation that is solved as one program. Of a larger one, about so many rows choose anew."""

GROUPS, TRIES, ENOUGH, MOVED = 100, 60, 1e-7, 0.7
"""Of a larger one: groups of bidders, most prices tried, the relative gap at which they are good, and the part of the way to the
next prices that each try goes."""

NOTHING = -(1 << 61)
"""Below any worth."""

FALLBACKS = 8
"""Maximum number of rows tried for a bidder whose own row has no place."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class PricedRows:
    """Worth of every row less the price of its priced capacity, shape [M], and the price of all capacity.

    `net` is the worth less the price of everything that the row takes, exact capacities included. `top` is the highest `net` of
    each bidder, shape [B], 0 for nothing; no choice is worth more than `most`, nor, without a bidder, than that less its `top`.
    Where fewer can win without a bidder, both bounds are lower by its `fewer`, shape [B].
    `near` are the rows, rising, of which `mend` takes its changes: about `NEAR`, those of each
    request that lose least at these prices.
    """

    score: Ints
    net: Ints
    constant: int
    top: Ints
    most: int
    near: Ints
    fewer: Ints


def price(problem: WinnerProblem, exact: list[Capacity]) -> PricedRows:
    """Price every capacity that is not in `exact`.

    The number of winners is a capacity too, because gangs are whole: GPUs that are too few for one more gang are worth nothing.
    Prices are rounded so that the bound stays valid: rows pay less, capacity earns more.
    """
    every = [("have", k, 0) for k in range(problem.have.size)]
    others = [c for c in every + anchored(problem) if c not in exact]
    if not others:
        return unpriced(problem)
    need, caps = needs(problem, exact + others)
    most, without = _most_winners(problem, np.arange(problem.row.size), int(problem.rack_room.sum()))
    need, caps = np.append(need, np.ones((need.shape[0], 1), np.int64), axis=1), np.append(caps, most)
    every_dual = _duals(problem, need, caps) * (problem.unit / problem.quantum)
    net = problem.score - np.floor(need @ every_dual).astype(np.int64)
    duals = every_dual[len(exact) :]
    paid = np.floor(need[:, len(exact) :] @ duals).astype(np.int64)
    top, near = _top(problem, net)
    return PricedRows(
        score=problem.score - paid,
        net=net,
        constant=int(np.ceil(duals @ caps[len(exact) :])),
        top=top,
        most=int(top.sum()) + int(np.ceil(every_dual @ caps)),
        near=near,
        fewer=(most - without) * int(every_dual[-1]),
    )


def unpriced(problem: WinnerProblem) -> PricedRows:
    """No priced capacity."""
    top, near = _top(problem, problem.score)
    return PricedRows(
        score=problem.score,
        net=problem.score,
        constant=0,
        top=top,
        most=int(top.sum()),
        near=near,
        fewer=np.zeros_like(top),
    )


def _most_winners(problem: WinnerProblem, some: Ints, gpus: int) -> tuple[int, Ints]:
    """Most bidders that win together with their rows among `some` and `gpus` GPUs, and the same without each bidder."""
    least = np.full(problem.bidders, gpus + 1)
    np.minimum.at(least, problem.who[some], problem.gpus[some])
    ordered = np.sort(least[least <= gpus])
    sums = np.cumsum(ordered)
    most = int(np.searchsorted(sums, gpus, side="right"))
    among = least <= (ordered[most - 1] if most else 0)  # of equally small ones any may be the last
    return most, np.where(among, np.searchsorted(sums, gpus + least, side="right") - 1, most)


def _top(problem: WinnerProblem, net: Ints) -> tuple[Ints, Ints]:
    """`PricedRows.top` and `PricedRows.near`."""
    top = np.zeros(problem.bidders, dtype=np.int64)
    np.maximum.at(top, problem.who, net)
    loss = top[problem.who] - net
    if loss.size <= NEAR:
        return top, np.arange(loss.size)
    ask = asks(problem)
    order = np.lexsort((loss, ask))
    first = np.searchsorted(ask[order], ask[order])
    each = max(NEAR // np.unique(ask).size, 16)
    return top, np.sort(order[np.arange(order.size) - first < each])


def _duals(problem: WinnerProblem, need: Ints, caps: Ints) -> Floats:
    """Shape [D], nats per unit of capacity at the optimum of the linear relaxation; the last capacity is the number of winners.

    Where there are many rows, only the bidders whose best two rows are closest at prices near these choose anew, and the others
    keep their best row: then prices are those of a corner, at which few bidders are undecided. If the others would change theirs
    at these prices, more choose anew.
    """
    gain, rows = problem.score / problem.unit * problem.quantum, ROWS
    if gain.size <= rows:
        return _solved(gain, problem.who, need, caps)
    first, bound = _mixed(gain, problem.who, need, caps)
    net = gain - need @ first
    best = Best(net, problem.who).row
    second = np.zeros(problem.bidders)
    rest = np.delete(np.arange(gain.size), best)
    np.maximum.at(second, problem.who[rest], net[rest])
    margin = np.where(net[best] > 0, net[best] - second[problem.who[best]], -net[best])
    clear = np.argsort(margin, kind="stable")
    while rows < gain.size:
        near, fixed = np.split(best[clear], [max(rows * best.size // gain.size, 1)])
        left = caps - need[fixed[net[fixed] > 0]].sum(0)
        if (left >= 0).all():
            some = np.isin(problem.who, problem.who[near])
            duals = _solved(gain[some], problem.who[some], need[some], left)
            if Best(gain - need @ duals, problem.who).sum + caps @ duals <= bound:
                return duals
        rows *= 2
    return _solved(gain, problem.who, need, caps)


class Best:
    """Each bidder's best row by what is left of its worth: shapes [B], where it wins, and the sum of all."""

    def __init__(self, net: Floats | Ints, who: Ints) -> None:
        start = np.flatnonzero(np.r_[True, who[1:] != who[:-1]])
        top = np.maximum.reduceat(net, start)
        is_top = net == np.repeat(top, np.diff(np.r_[start, net.size]))
        self.row = np.minimum.reduceat(np.where(is_top, np.arange(net.size), net.size), start)
        self.wins = top > 0
        self.sum = float(top[self.wins].sum())


def _mixed(gain: Floats, who: Ints, need: Ints, caps: Ints) -> tuple[Floats, float]:
    """Shape [D], prices whose bound is within ``ENOUGH`` of the relaxation's optimum, or the best of all tries; and the bound.

    At some prices each bidder takes its best row, which is one choice of each group of bidders; the best mixture of the groups'
    choices within the capacities gives the next prices (Dantzig and Wolfe 1960). As those of a mixture jump, each try is between
    them and the best prices so far. Decision 154.
    """
    kinds, bidders = caps.size, np.unique(who).size
    groups = np.eye(min(GROUPS, bidders))
    begin = np.arange(len(groups)) * bidders // len(groups)
    mixture = ColumnProgram(np.full(kinds + len(groups), -np.inf), np.append(caps, np.ones(len(groups))))
    mixture.add_dense(np.zeros(len(groups)), np.concatenate([np.zeros((len(groups), kinds)), groups], 1))
    least, best, at = np.inf, np.zeros(kinds), np.zeros(kinds)
    for _ in range(TRIES):
        choice = Best(gain - need @ at, who)
        bound = float(choice.sum + caps @ at)
        if bound < least:
            least, best = bound, at
        gains = np.add.reduceat(gain[choice.row] * choice.wins, begin)
        taken = np.add.reduceat(need[choice.row] * choice.wins[:, None], begin, axis=0)
        mixture.add_dense(gains, np.concatenate([taken, groups], 1))
        found = mixture.solve()
        if least - found.objective <= ENOUGH * least:
            break
        at = MOVED * np.maximum(found.duals[:kinds], 0.0) + (1 - MOVED) * best
    return best, least


def _solved(gain: Floats, who: Ints, need: Ints, caps: Ints) -> Floats:
    """Shape [D], duals of the capacities of the linear relaxation, one program."""
    start, rows = np.flatnonzero(np.r_[True, who[1:] != who[:-1]]), gain.size
    used, column = need.T.nonzero()
    program = MixedIntegerProgram(
        gain=gain,
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
        self.ask = asks(problem)
        self._rack = offer.machine_rack
        self._of = [offer.machine_type == t for t in range(types)]
        self.free = [np.where(own, offer.free, 0) for own in self._of]
        self.room = [problem.rack_room[:, t].copy() for t in range(types)]
        self.left = problem.have.copy()
        self.placed: dict[int, list[tuple[bool, int, int]]] = {}
        self.row: Ints = np.full(int(problem.who.max(initial=-1)) + 1, -1)
        """Row of each bidder, or -1."""
        self.worth = 0
        """Integer worth of the chosen rows."""
        self._before: dict[int, tuple[int, list[tuple[bool, int, int]]]] | None = None
        """Row and places before each change of a bidder, since ``mark``."""

    def rows(self) -> list[int]:
        """Chosen rows of the problem."""
        found: list[int] = self.row[self.row >= 0].tolist()
        return found

    @classmethod
    def holding(
        cls, problem: WinnerProblem, rows: Sequence[int], gangs: Sequence[PackingGang], places: Sequence[int]
    ) -> Builder:
        """The packable choice ``rows``, whose `gangs` lie at `places`."""
        made = cls(problem)
        spots: dict[int, list[tuple[bool, int, int]]] = {r: [] for r in rows}
        for g, place in zip(gangs, places):
            spots[g.row].append((g.racked, place, g.size))
        for r in rows:
            made.hold(r, spots[r] or made._wants(r))
        return made

    def places(self, gangs: Sequence[PackingGang]) -> list[int]:
        """Machine or rack of each gang; `gangs` lists the gangs of each row largest first."""
        queues = {r: iter(spots) for r, spots in self.placed.items()}
        return [next(queues[g.row])[1] for g in gangs]

    def put(self, r: int) -> bool:
        """Give row r to its bidder, who has none; False and no change when no place is found."""
        problem, t = self.problem, int(self.problem.type[r])
        # Only GPUs in sum must hold here: best fit may find places where the other sums are pessimistic, never more.
        if problem.need[r, t] > self.left[t]:
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
        self._takes(r)
        return True

    def hold(self, r: int, spots: list[tuple[bool, int, int]]) -> None:
        """Give row r to its bidder, who has none: (in a rack, machine or rack, GPUs) of each gang, all known to fit."""
        for racked, at, size in spots:
            self._move(racked, at, size, int(self.problem.type[r]))
        self.placed[r] = spots
        self._takes(r)

    def mark(self) -> None:
        """Note what changes from now on, until ``back``."""
        self._before = {}

    def back(self) -> None:
        """Undo all changes since ``mark``."""
        before, self._before = self._before or {}, None
        for b in before:
            if (r := int(self.row[b])) >= 0:
                self.drop(r)
        for r, spots in before.values():
            if r >= 0:
                self.hold(r, spots)

    def _note(self, r: int, *before: Any) -> None:
        if self._before is not None:
            self._before.setdefault(int(self.problem.who[r]), before or (-1, []))

    def _takes(self, r: int) -> None:
        self._note(r)
        self.left = self.left - self.problem.need[r]
        self.row[self.problem.who[r]] = r
        self.worth += int(self.problem.score[r])

    def drop(self, r: int) -> None:
        """Take row r from its bidder."""
        self._note(r, r, self.placed[r])
        self._undo(r, int(self.problem.type[r]))
        self.left = self.left + self.problem.need[r]
        self.row[self.problem.who[r]] = -1
        self.worth -= int(self.problem.score[r])

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


def packed(problem: WinnerProblem, rows: Ints) -> Builder | None:
    """Packing of `rows` by best fit; None where a gang finds no place, though another packing may exist."""
    orders = _orders(problem, rows, np.zeros(rows.size, np.int64))
    builders = ((Builder(problem), order) for order in orders)
    return next((builder for builder, order in builders if all(builder.put(r) for r in rows[order].tolist())), None)


def _orders(problem: WinnerProblem, rows: Ints, last: Ints) -> list[Ints]:
    """Orders in which `rows` choose their places: anchored ones, then the largest gangs, ties by the smallest `last`.

    Where some gangs may spread within racks, a second order lets all machine gangs choose before them.
    """
    largest = np.where(problem.gangs[rows] > 0, problem.sizes, 0).max(1, initial=0)
    loose = ~np.isin(problem.kind[rows], (ON_MACHINE, IN_RACK))
    racked = problem.kind[rows] == RACKED
    orders = [np.lexsort((last, -largest, loose))]
    return [*orders, np.lexsort((last, -largest, racked, loose))] if racked.any() and not racked.all() else orders


def repair(problem: WinnerProblem, priced: PricedRows, pick: Ints, banned: int = -1) -> Builder:
    """A packable choice near `pick` (rows of the problem) that gives nothing to the bidder `banned`.

    Among gangs of one size those choose first that would lose most by taking a row that needs no slots. The best result over all
    orders is returned.
    """
    easy = np.where(problem.need[:, problem.rack_room.shape[1] :].any(1), NOTHING, priced.net)
    start = np.searchsorted(problem.who, problem.who[pick])
    stop = np.searchsorted(problem.who, problem.who[pick], side="right")
    regret = priced.net[pick] - np.array([easy[a:b].max() for a, b in zip(start, stop)], np.int64)
    made = []
    for order in _orders(problem, pick, -regret):
        builder = Builder(problem)
        _choose(builder, priced, pick[order])
        improve(builder, np.arange(problem.row.size), banned)
        made.append(builder)
    return max(made, key=attrgetter("worth"))


def mend(
    builder: Builder, priced: PricedRows, pick: Ints | None, without: int, high: int, listed: bool
) -> tuple[int, list[int]]:
    """Worth of the choice of `builder` with changes in the room that the bidder `without` leaves, and its rows if `listed`.

    Two attempts: the difference between `builder` and `pick`, where one is given, then changes of single bidders. No choice is
    worth more than `high`. `builder` is as before afterwards.
    """
    problem, left, found = builder.problem, int(builder.row[without]), []
    held = builder.row[builder.row >= 0] if pick is not None else None
    for picked in (pick, None) if pick is not None else (None,):
        builder.mark()
        builder.drop(left)
        if picked is not None and held is not None:
            for r in np.setdiff1d(held, [*picked.tolist(), left]).tolist():
                builder.drop(r)
            new = np.setdiff1d(picked, held)
            _choose(builder, priced, new[_orders(problem, new, -priced.net[new])[0]])
        improve(builder, priced.near, without)
        found.append((builder.worth, builder.rows() if listed else []))
        builder.back()
        if found[0][0] >= high:
            break
    return max(found[::-1], key=itemgetter(0))


def _choose(builder: Builder, priced: PricedRows, rows: Ints) -> None:
    """Put `rows` in their order; one that finds no place is replaced by its bidder's next best by priced worth."""
    who = builder.problem.who
    for r in rows.tolist():
        if not builder.put(r):
            start, stop = np.searchsorted(who, (who[r], who[r] + 1)).tolist()
            rest = start + np.argsort(-priced.net[start:stop], kind="stable")[:FALLBACKS]
            any(builder.put(other) for other in rest.tolist() if other != r)


def improve(builder: Builder, near: Ints, banned: int = -1) -> None:
    """Change rows of single bidders, except `banned`, for more expensive ones while places are found, largest gain first.

    Only the rows `near` of the problem are tried. Where a change finds no place, changes between the same requests are not
    tried either.
    """
    problem = builder.problem
    types = problem.rack_room.shape[1]
    need, score, who, ask = problem.gpus[near], problem.score[near], problem.who[near], builder.ask
    now = builder.row[who]
    gain = score - np.where(now >= 0, problem.score[now], 0)
    extra = need - np.where(now >= 0, problem.gpus[now], 0)
    gain[who == banned] = 0
    for _ in range(MOVES):
        open_ = np.where(extra <= builder.left[:types].max(), gain, 0)
        k = int(open_.argmax())
        if open_[k] <= 0:
            return
        r, b = int(near[k]), int(who[k])
        old = int(builder.row[b])
        if old >= 0:
            builder.drop(old)
        if not builder.put(r):
            same = np.flatnonzero(ask[near] == ask[r])
            others = builder.row[who[same]]
            gain[same[(others < 0) if old < 0 else (others >= 0) & (ask[others] == ask[old])]] = gain[k] = 0
            if old < 0 or builder.put(old):
                continue
        r, own = int(builder.row[b]), who == b
        gain[own] = score[own] - (problem.score[r] if r >= 0 else 0)
        extra[own] = need[own] - (problem.gpus[r] if r >= 0 else 0)
