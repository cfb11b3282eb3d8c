"""Best worth of any group of bidders at any free capacity: a multiple-choice knapsack by dynamic programming.

`ahead[i][s]` is the most that bidders i, i + 1, ... gain within capacity s, `behind[i][s]` the same of bidders
..., i - 2, i - 1. Both together price every bidder: without bidder i the others gain
``max_s behind[i][s] + ahead[i + 1][full - s]``.

A state is a vector of free capacities, numbered in C order. Leaves out where gangs sit: only the sums count.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

import numpy as np

from themis.optimize.programs import Bools, Ints
from themis.optimize.winners.auction_problem import WinnerProblem
from themis.optimize.winners.paths import Paths
from themis.optimize.winners.prices import PricedRows

NEVER = -(1 << 61)
"""Worth of an infeasible entry; two of them still add up within 64 bits."""

GATHER = 40_000
"""Largest table (states times options) built by gathering; above it, slices are faster."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Tables:
    """Tables of P bidders over S states with U options each; the last option is to win nothing.

    Attributes
    ----------
    who
        Shape [P], the bidders, rising.
    caps, stride
        Shape [D], capacities and their weight in a state's number.
    coef, offset
        Shapes [U, D], [U]: what an option takes, and the same as a difference of states; offsets fall.
    value, owner
        Shape [P, U]: integer worth (or NEVER) and the problem's row (or -1).
    ahead, behind
        Shape [P + 1, S + 1]; the last column is NEVER.
    score, column
        Shape [M], priced worth and option of each row of the problem. Rows of one bidder that take the same of these
        capacities share an option and only the most expensive owns it, though others may pack where it does not.
    source
        Shape [S, U], the state after each option, when the tables are small; else empty.
    constant
        Price of capacities that the options pay for instead of counting them; see `prices`.
    fewer
        Shape [P], the part of `constant` that falls away without each bidder.
    """

    who: Ints
    caps: Ints
    stride: Ints
    coef: Ints
    offset: Ints
    value: Ints
    owner: Ints
    ahead: Ints
    behind: Ints
    score: Ints
    column: Ints
    source: Ints
    constant: int
    fewer: Ints

    @property
    def full(self) -> int:
        """State of all capacity free."""
        return int(self.ahead.shape[1]) - 2

    def best(self) -> int:
        """Most that all bidders gain together."""
        return int(self.ahead[0, self.full]) + self.constant

    def without(self, i: int) -> tuple[int, int]:
        """Most that all but the i-th gain, and the state left to the bidders before it."""
        sums = self.behind[i, :-1] + self.ahead[i + 1, self.full :: -1]
        state = int(sums.argmax())
        return int(sums[state]) + self.constant - int(self.fewer[i]), state

    def leaving_out(self, i: int) -> Tables:
        """Tables of all but the i-th bidder."""
        early = _sliced(self.value[:i], self.coef, self.caps, self.ahead[i + 1])[::-1]
        late = _sliced(self.value[:i:-1], self.coef, self.caps, self.behind[i])
        rest = [np.delete(part, i, 0) for part in (self.who, self.value, self.owner, self.fewer)]
        constant = self.constant - int(self.fewer[i])
        ahead = np.concatenate([early[:-1], self.ahead[i + 1 :]])
        behind = np.concatenate([self.behind[:i], late])
        return replace(
            self,
            who=rest[0],
            value=rest[1],
            owner=rest[2],
            fewer=rest[3],
            ahead=ahead,
            behind=behind,
            constant=constant,
        )

    def forced(self, who: Ints) -> Ints:
        """Shape [M], the most that all bidders gain together when each row wins, NEVER for bidders that are left out.

        `who` are the rows' bidders.
        """
        around = np.full((self.value.shape[0] + 1, self.value.shape[1]), NEVER)
        for i, u in zip(*(self.value > NEVER).nonzero()):
            rest = self.full - int(self.offset[u])
            around[i, u] = (self.behind[i, : rest + 1] + self.ahead[i + 1, rest::-1]).max()
        spot = np.minimum(np.searchsorted(self.who, who), self.who.size - 1)
        spot[self.who[spot] != who] = self.who.size
        bounds: Ints = around[spot, self.column] + self.score + self.constant
        return bounds

    def trace(self) -> Ints:
        """Rows of a best choice, shape [P], -1 for nothing; among equals earlier bidders get more GPUs."""
        picks: Ints = np.full(self.who.size, -1)
        state = np.array([self.full])
        for i in range(self.who.size):
            won, state = self._ahead(i, state)
            picks[i] = won[0]
        return picks

    def choices_without(self, left_out: Ints, states: Ints) -> Choices:
        """Best choices without each of W bidders, given the states of `without`."""
        spots = left_out.tolist()
        bidders, limit = self.who.size, self.full + 1
        late = Paths.of(range(bidders), [i + 1 for i in spots], self.full - states, limit, self._ahead)
        early = Paths.of(range(bidders - 1, -1, -1), [i - 1 for i in spots], states, limit, self._behind)
        return Choices(early, late, bidders)

    def sources(self, states: Ints) -> Ints:
        """State after each option, shape [W, U]; the last column of the tables where it does not fit."""
        if self.source.size:
            kept: Ints = self.source[states]
            return kept
        if self.caps.size == 1:
            left = states[:, None] - self.offset
            return np.where(left >= 0, left, self.full + 1)
        free = states[:, None] // self.stride % (self.caps + 1)
        fits = (free[:, None, :] >= self.coef).all(2)
        return np.where(fits, states[:, None] - self.offset, self.full + 1)

    def _ahead(self, i: int, states: Ints) -> tuple[Ints, Ints]:
        """Rows that bidder i wins in each state where those after it are still to choose, and the states then."""
        return self._chosen(i, self.ahead[i + 1], states)

    def _behind(self, i: int, states: Ints) -> tuple[Ints, Ints]:
        """The same where those before it are still to choose."""
        return self._chosen(i, self.behind[i], states)

    def _chosen(self, i: int, worth: Ints, states: Ints) -> tuple[Ints, Ints]:
        choice = (self.value[i] + worth[self.sources(states)]).argmax(1)
        return self.owner[i, choice], states - self.offset[choice]


@dataclass(frozen=True, slots=True)
class Choices:
    """Best choices of W problems over P bidders, in the two parts of which they are made."""

    early: Paths
    late: Paths
    bidders: int

    def sums(self, columns: Ints) -> Ints:
        """Sums of ``columns`` [M, F] over the rows of each choice, [W, F]."""
        out: Ints = self.early.sums(columns) + self.late.sums(columns)
        return out

    def rows(self) -> Ints:
        """Rows of each choice, [W, P], -1 for nothing."""
        picks = np.full((self.early.walks, self.bidders), -1)
        for part in (self.early, self.late):
            for i, lanes, rows in part.picks():
                picks[lanes, i] = rows
        return picks


def entries(need: Ints, caps: Ints) -> int:
    """Work of a table: states times rows."""
    states: int = math.prod(cap + 1 for cap in caps.tolist())
    return states * int(need.shape[0])


def build(problem: WinnerProblem, need: Ints, caps: Ints, priced: PricedRows) -> Tables:
    """Tables of the problem's rows, each taking `need` [M, D] of `caps` [D] for its priced worth."""
    score, rows = priced.score, np.arange(problem.row.size)
    stride = np.cumprod(np.append(1, caps[:0:-1] + 1))[::-1].astype(np.int64)
    numbers = need @ stride
    offset, index = np.unique(-np.append(numbers, 0), return_inverse=True)
    offset, index = -offset, index[:-1]
    first = np.ones(problem.who.size, np.bool_)
    first[1:] = problem.who[1:] != problem.who[:-1]
    who, position = problem.who[first], first.cumsum() - 1
    value = np.full((who.size, offset.size), NEVER)
    owner = np.full((who.size, offset.size), -1)
    order = np.lexsort((-rows, score))  # the last of equal cells stays: the most expensive, then the earliest row
    value[position[order], index[order]] = score[order]
    owner[position[order], index[order]] = order
    # Every row takes a GPU and all GPUs are counted, so taking nothing (the last option) means winning nothing.
    value[:, -1], owner[:, -1] = 0, -1
    coef = offset[:, None] // stride % (caps + 1)
    states = int(np.prod(caps + 1))
    if states * offset.size <= GATHER:
        source = _sources(coef, offset, caps, stride, states)
        ahead, behind = _gathered(value, source)
        source = source.T
    else:
        source = np.zeros((0, 0), np.int64)
        empty = np.zeros(states + 1, np.int64)
        empty[states] = NEVER
        ahead, behind = _sliced(value, coef, caps, empty)[::-1], _sliced(value[::-1], coef, caps, empty)
    return Tables(
        who=who,
        caps=caps,
        stride=stride,
        coef=coef,
        offset=offset,
        value=value,
        owner=owner,
        ahead=ahead,
        behind=behind,
        score=score,
        column=index,
        source=source,
        constant=priced.constant,
        fewer=priced.fewer[who],
    )


def _sources(coef: Ints, offset: Ints, caps: Ints, stride: Ints, states: int) -> Ints:
    """State after each option from each state, shape [U, S]; S where the option does not fit."""
    every = np.arange(states)
    fits: Bools
    if caps.size == 1:
        fits = np.asarray(every >= offset[:, None])
    else:
        fits = np.asarray(((every[:, None] // stride % (caps + 1)) >= coef[:, None, :]).all(2))
    return np.where(fits, every - offset[:, None], states)


def _gathered(value: Ints, source: Ints) -> tuple[Ints, Ints]:
    """Both tables side by side, one gather per bidder: few calls, for small tables."""
    bidders, states = value.shape[0], source.shape[1]
    both = np.zeros((bidders + 1, 2, states + 1), np.int64)
    both[:, :, states] = NEVER
    pairs = np.stack([value[::-1], value], 1)[:, :, :, None]
    for i in range(bidders):
        options = both[i].take(source, 1)
        options += pairs[i]
        options.max(1, out=both[i + 1, :, :states])
    return both[::-1, 0], both[:, 1]


def _sliced(value: Ints, coef: Ints, caps: Ints, start: Ints) -> Ints:
    """`start`, then with the last bidder of `value` added, and so on: one shifted maximum per option."""
    bidders, states, shape = value.shape[0], start.size - 1, tuple((caps + 1).tolist())
    table = np.empty((bidders + 1, start.size), np.int64)
    table[0] = start
    work = np.empty(states, np.int64)
    shifts = [tuple(slice(c, None) for c in row) for row in coef.tolist()]
    keeps = [tuple(slice(None, k - c) for c, k in zip(row, shape)) for row in coef.tolist()]
    for step, options in enumerate(value[::-1]):
        table[step + 1] = table[step]
        old = table[step, :states].reshape(shape)
        new = table[step + 1, :states].reshape(shape)
        for u in _useful(options, len(shape)):
            part = old[keeps[u]]
            sums = work[: part.size].reshape(part.shape)
            np.add(part, options[u], out=sums)
            target = new[shifts[u]]
            np.maximum(target, sums, out=target)
    return table


def _useful(value: Ints, dims: int) -> list[int]:
    """Options of one bidder worth trying; with one capacity, those that gain more than every smaller one."""
    live = value > NEVER
    live[-1] = False
    if dims == 1:
        smaller = np.append(np.maximum.accumulate(value[::-1])[::-1][1:], NEVER)
        live &= value > smaller
    found: list[int] = live.nonzero()[0].tolist()
    return found
