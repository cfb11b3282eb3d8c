"""The whole auction as one integer program, for what tables and search do not settle.

Cutting stock: equal machines form a class, and a class uses each maximal pattern of gang sizes a whole number of
times. There is one binary per row, none per machine, and the linear relaxation is tight. Machines with anchored rows
stand alone; racks stand alone only where rows reach for racks.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import product

import numpy as np

from themis.optimize import MixedIntegerProgram, Solution, solve
from themis.optimize.programs import Ints
from themis.optimize.winners.auction_problem import IN_RACK, LOCAL, ON_MACHINE, RACKED, WinnerProblem
from themis.optimize.winners.gang_packing import Packer
from themis.optimize.winners.work_limits import Limits

HUGE = ("presolve",)
"""Turned off for huge programs, where it takes three times the time that it saves."""

PRICE = (
    "presolve",
    "mip_detect_symmetry",
    "mip_heuristic_run_rins",
    "mip_heuristic_run_rens",
    "mip_heuristic_run_root_reduced_cost",
)
"""Turned off where only the worth of a hundred rows or so is asked: cuts at the root settle nearly all of these."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Packed:
    """Chosen rows of the problem, the place of each of their gangs, and bounds on the gain in nats."""

    rows: list[int]
    places: list[int]
    gain: float
    bound: float
    nodes: int


def solve_rows(
    problem: WinnerProblem,
    packer: Packer,
    rows: Ints,
    *,
    gap: float,
    accept: float,
    limits: Limits,
    off: tuple[str, ...],
) -> Packed:
    """Best packable choice among `rows` of the problem, at most one per bidder.

    `off` : options of HiGHS to turn off; which of several equal choices comes out may depend on them.

    Raises
    ------
    NotSolved
        When the proven gap stays above `accept`.
    """
    model = _Model(problem, packer, rows)
    solution = solve(
        model.program(),
        gap=gap,
        nodes=limits.nodes,
        accept=accept,
        seconds=limits.seconds,
        off=off,
    )
    chosen = rows[solution.x[: rows.size] > 0.5].tolist()
    gain = sum(problem.gain(int(problem.score[r])) for r in chosen)
    places = model.places(solution, chosen)
    return Packed(rows=chosen, places=places, gain=gain, bound=max(gain, solution.bound), nodes=solution.nodes)


def maximal_patterns(free: int, sizes: Sequence[int]) -> list[tuple[int, ...]]:
    """All ways to fill `free` GPUs with gangs of `sizes` to which no further gang can be added."""
    ranges = [range(free // s + 1) for s in sizes]
    least = min(sizes, default=1)
    found = []
    for pattern in product(*ranges):
        rest = free - sum(c * s for c, s in zip(pattern, sizes))
        if 0 <= rest < least:
            found.append(pattern)
    return found


@dataclass(slots=True)
class _Lines:
    """Rows of the matrix as they are written."""

    start: list[int] = field(default_factory=lambda: [0])
    column: list[int] = field(default_factory=list)
    value: list[float] = field(default_factory=list)
    high: list[float] = field(default_factory=list)

    def add(self, terms: dict[int, float], high: float) -> None:
        """``sum(value * x[column]) <= high``."""
        self.column += terms
        self.value += terms.values()
        self.start.append(len(self.column))
        self.high.append(high)


class _Model:
    def __init__(self, problem: WinnerProblem, packer: Packer, rows: Ints) -> None:
        self.problem, self.packer, self.rows = problem, packer, rows
        self.lines = _Lines()
        self.high: list[float] = [1.0] * rows.size
        self.patterns: list[tuple[list[int], list[int], list[tuple[int, dict[int, int]]]]] = []
        self.single: list[tuple[int, dict[int, int]]] = []
        self.quota: dict[tuple[int, int, int], int] = {}
        self.racks: dict[tuple[int, int, int], int] = {}
        for b in np.unique(problem.who[rows]):
            self.lines.add(dict.fromkeys((problem.who[rows] == b).nonzero()[0].tolist(), 1.0), 1.0)
        for t in np.unique(problem.type[rows]).tolist():
            self._type(t)

    def program(self) -> MixedIntegerProgram:
        extra = len(self.high) - self.rows.size
        worth = self.problem.score[self.rows] / self.problem.unit * self.problem.quantum
        count = len(self.high)
        return MixedIntegerProgram(
            gain=np.concatenate([worth, np.zeros(extra)]),
            low=np.zeros(count),
            high=np.array(self.high),
            whole=np.ones(count, np.bool_),
            row_low=np.full(len(self.lines.high), -np.inf),
            row_high=np.array(self.lines.high),
            start=np.array(self.lines.start),
            column=np.array(self.lines.column, np.int64),
            value=np.array(self.lines.value),
        )

    def _column(self, high: float) -> int:
        self.high.append(high)
        return len(self.high) - 1

    def _type(self, t: int) -> None:
        problem, offer = self.problem, self.problem.offer
        mine = (problem.type[self.rows] == t).nonzero()[0]
        kinds, gpus = problem.kind[self.rows[mine]], problem.gpus[self.rows[mine]]
        total = float(problem.rack_room[:, t].sum())
        self.lines.add(dict(zip(mine.tolist(), gpus.astype(float).tolist())), total)
        by_rack = bool(((kinds == IN_RACK) | (kinds == RACKED)).any())
        sizes = self._sizes(mine[kinds == LOCAL])
        machines = ((offer.machine_type == t) & (offer.free > 0)).nonzero()[0]
        supply = self._machines(mine, machines, sizes, by_rack)
        for s in sizes:
            terms = self._demand(mine[kinds == LOCAL], s)
            if by_rack:
                for x in {x for x, size in supply if size == s}:
                    quota = self.quota[t, x, s] = self._column(total)
                    self.lines.add({quota: 1.0} | {c: -v for c, v in supply[x, s].items()}, 0.0)
                    terms[quota] = -1.0
            else:
                terms |= {c: -v for c, v in supply.get((-1, s), {}).items()}
            self.lines.add(terms, 0.0)
        if by_rack:
            self._racks(t, mine, sizes)

    def _sizes(self, mine: Ints) -> list[int]:
        used = self.problem.gangs[self.rows[mine]].any(0)
        found: list[int] = self.problem.sizes[used].tolist()
        return found

    def _demand(self, mine: Ints, size: int) -> dict[int, float]:
        counts = self.problem.gangs[self.rows[mine], int(np.searchsorted(self.problem.sizes, size))]
        return {c: float(k) for c, k in zip(mine.tolist(), counts.tolist()) if k}

    def _machines(
        self, mine: Ints, machines: Ints, sizes: list[int], by_rack: bool
    ) -> dict[tuple[int, int], dict[int, float]]:
        """Columns that supply slots, by (rack or -1, size)."""
        problem, offer = self.problem, self.problem.offer
        supply: dict[tuple[int, int], dict[int, float]] = {}
        fixed = mine[problem.kind[self.rows[mine]] == ON_MACHINE]
        anchors = problem.place[self.rows[fixed]]
        classes: dict[tuple[int, int], list[int]] = {}
        for n in machines.tolist():
            free, x = int(offer.free[n]), int(offer.machine_rack[n]) if by_rack else -1
            if not (anchors == n).any():
                classes.setdefault((x, free), []).append(n)
                continue
            here = fixed[anchors == n]
            line = dict(zip(here.tolist(), problem.gpus[self.rows[here]].astype(float).tolist()))
            columns = {s: self._column(free // s) for s in sizes if s <= free}
            self.single.append((n, columns))
            for s, column in columns.items():
                line[column] = float(s)
                supply.setdefault((x, s), {})[column] = 1.0
            self.lines.add(line, float(free))
        for (x, free), members in classes.items():
            fitting = [s for s in sizes if s <= free]
            uses = []
            for pattern in maximal_patterns(free, fitting) if fitting else ():
                column = self._column(float(len(members)))
                uses.append((column, dict(zip(fitting, pattern))))
                for s, k in zip(fitting, pattern):
                    if k:
                        supply.setdefault((x, s), {})[column] = float(k)
            if uses:
                self.lines.add({column: 1.0 for column, _ in uses}, float(len(members)))
                self.patterns.append((members, fitting, uses))
        return supply

    def _racks(self, t: int, mine: Ints, sizes: list[int]) -> None:
        problem = self.problem
        kinds = problem.kind[self.rows[mine]]
        racked, offer = self._sizes(mine[kinds == RACKED]), problem.offer
        room = problem.rack_room[:, t].tolist()
        for x, free in enumerate(room):
            if not free:
                continue
            line = {self.quota[t, x, s]: float(s) for s in sizes if (t, x, s) in self.quota}
            for s in racked:
                self.racks[t, x, s] = column = self._column(float(free // s))
                line[column] = float(s)
            for c in mine[(kinds == IN_RACK) | (kinds == ON_MACHINE)].tolist():
                r = self.rows[c]
                at = int(problem.place[r])
                if (problem.kind[r] == IN_RACK and at == x) or (
                    problem.kind[r] == ON_MACHINE and offer.machine_rack[at] == x
                ):
                    line[c] = float(problem.gpus[r])
            self.lines.add(line, float(free))
        for s in racked:
            terms = self._demand(mine[kinds == RACKED], s)
            self.lines.add(terms | {c: -1.0 for (k, _, z), c in self.racks.items() if (k, z) == (t, s)}, 0.0)

    def places(self, solution: Solution, chosen: list[int]) -> list[int]:
        """Machine or rack of each gang of the chosen rows, read from the solution."""
        problem, x = self.problem, np.rint(solution.x).astype(int)
        slots: dict[int, dict[int, int]] = {n: {s: int(x[c]) for s, c in cs.items()} for n, cs in self.single}
        for members, _, uses in self.patterns:
            queue = iter(members)
            for column, pattern in uses:
                for _ in range(int(x[column])):
                    slots[next(queue)] = dict(pattern)
        quota = {key: int(x[c]) for key, c in self.quota.items()}
        racks = {key: int(x[c]) for key, c in self.racks.items()}
        rack = problem.offer.machine_rack.tolist()
        types = problem.offer.machine_type.tolist()
        found = []
        for g in self.packer.gangs(chosen):
            t = int(problem.type[g.row])
            if g.racked:
                spot = next(k[1] for k, left in racks.items() if left and k[0] == t and k[2] == g.size)
                racks[t, spot, g.size] -= 1
            else:
                spot = next(
                    n
                    for n, has in slots.items()
                    if has.get(g.size, 0) and types[n] == t and quota.get((t, rack[n], g.size), 1)
                )
                slots[spot][g.size] -= 1
                if (t, rack[spot], g.size) in quota:
                    quota[t, rack[spot], g.size] -= 1
            found.append(spot)
        return found
