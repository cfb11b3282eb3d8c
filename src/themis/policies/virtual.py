"""Placement in Gavel's policies (§3.1): a GPU type counts as two, for gangs on one machine and for gangs across machines.

A gang is never slower on one machine than across several. So where two virtual types share all GPUs of a pool without any limit,
no optimum uses the second one. The limit is room: with gangs of 3 on machines of 4, three quarters of the GPUs can serve gangs
on one machine; the last quarter can serve single GPUs, and gangs across machines. The two types divide the GPUs W of a pool:

    consolidated  C = lambda sum_s n_s s,   the largest lambda for which lambda n_s gangs of each size s are an average of
                                            sets of gangs that fit the machines, none across two
    spread        W - C

where n_s is the number of jobs of size s that are slower across machines. Where all of them fit together, C = W and the pool
stays one type. With this limit, a division is the same as a joint capacity: GPUs of C that a gang uses across machines, it can as
well use on one machine, and it is as fast there or faster.

Differs from the paper, which has "two different worker types" and does not say how many workers each has. lambda takes gangs of
all sizes in proportion to their number; shares that favour one size have another C (decision 0041).
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from itertools import pairwise

import numpy as np

from themis.model.snapshot import Snapshot
from themis.model.units import Bool, Float, Int, Locality
from themis.optimize.programs import MixedIntegerProgram, solve
from themis.optimize.shares.problem import Problem

Counts = tuple[tuple[int, int], ...]
"""((size, how many), ...), sizes rising."""

SENSITIVE = 1e-6
"""Relative loss of speed across machines from which a gang counts as slower there."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Virtual:
    """A problem with virtual types.

    Attributes
    ----------
    problem : types [V], each a pool of its own. ``kind`` : Int[V], the GPU type of each.
    spread : Bool[V], across machines. ``slower`` : Bool[J, K], whether a job is slower there.
    short : Bool[K], GPU types whose machines have no room for all gangs, each on one.
    """

    problem: Problem
    kind: Int
    spread: Bool
    slower: Bool
    short: Bool

    def folded(self, x: Float) -> tuple[Float, Float]:
        """([J, K], [J, K]): shares of each GPU type, and the part of them across machines.

        A gang that is as fast there leaves the machines' room to others.
        """
        both, apart = np.zeros(self.slower.shape), np.zeros(self.slower.shape)
        np.add.at(both.T, self.kind, x.T)
        np.add.at(apart.T, self.kind[self.spread], x[:, self.spread].T)
        return both, np.where(self.short, np.where(self.slower, apart, both), 0.0)


def virtual(s: Snapshot, problem: Problem) -> Virtual | None:
    """The problem with two types for each GPU type on which gangs compete for room on machines; None if there is none.

    Where those that are slower across machines all fit, there is still one type, but what is planned says which gangs are to be on
    one machine.

    Parameters
    ----------
    problem : of the snapshot, one type for each GPU type, rates as consolidated as the machines allow.
    """
    if problem.gpus.max(initial=1) == 1:
        return None
    slow = s.speeds.slowdown[s.job_config]
    gangs = (problem.gpus > 1) & (slow[:, Locality.CROSS_RACK] > slow[:, Locality.MACHINE] * (1 + SENSITIVE))
    if not gangs.any():
        return None
    types = len(s.gpu_types)
    slower, short = np.zeros((problem.jobs, types), dtype=bool), np.zeros(types, dtype=bool)
    rate, workers, kind, spread = [], [], [], []
    for k in range(types):
        size = s.machine_gpus[(s.machine_type == k) & (s.machine_gpus > 0)]
        runs = (problem.rate[:, k] > 0) & (problem.gpus > 1)
        fits = runs & (problem.gpus <= size.max(initial=0))
        room = float(problem.workers[k])
        short[k] = (fits & gangs).any() and consolidated(_counts(size), _counts(problem.gpus[fits])) < room
        if short[k]:
            apart = _rate_apart(s, problem, k)
            slower[:, k] = fits & (apart < problem.rate[:, k] * (1 - SENSITIVE))
            near = consolidated(_counts(size), _counts(problem.gpus[slower[:, k]]))
            # A gang larger than either part of the GPUs would never run.
            if room - near >= 1e-6 * room and problem.gpus[runs].max() <= near:
                room = near
        rate.append(problem.rate[:, k])
        workers.append(room)
        kind.append(k)
        spread.append(False)
        if room < problem.workers[k]:
            rate.append(apart)
            workers.append(problem.workers[k] - room)
            kind.append(k)
            spread.append(True)
    if not short.any():
        return None
    divided = Problem.of(np.stack(rate, axis=1), problem.gpus, np.array(workers))
    return Virtual(problem=divided, kind=np.array(kind), spread=np.array(spread), slower=slower, short=short)


def _rate_apart(s: Snapshot, problem: Problem, k: int) -> Float:
    """[J], rates of gangs across machines of the type: of one rack where that has enough GPUs, else of several."""
    racks = np.bincount(s.machine_rack, weights=s.machine_gpus * (s.machine_type == k)).max(initial=0.0)
    where = np.where(problem.gpus <= racks, int(Locality.RACK), int(Locality.CROSS_RACK))
    where = np.where(problem.gpus == 1, int(Locality.MACHINE), where)
    kinds = np.full(problem.jobs, k)
    rate = s.speeds.effective(s.job_config, kinds, problem.gpus, where)
    out: Float = np.where(problem.rate[:, k] > 0, np.minimum(rate, problem.rate[:, k]), 0.0)
    return out


def _counts(sizes: Int) -> Counts:
    known, number = np.unique(sizes, return_counts=True)
    return tuple(zip(known.tolist(), number.tolist()))


@lru_cache(maxsize=1024)
def consolidated(machines: Counts, gangs: Counts) -> float:
    """C, GPUs that gangs can use without crossing machines when each size gets time in proportion to its number; see the head.

    All GPUs where every gang fits at the same time. Proven: the optimum of a linear program over all ways to fill a machine, which
    has a closed form where each size divides the next.

    Parameters
    ----------
    machines : ((GPUs, machines), ...). ``gangs`` : ((GPUs, jobs), ...), none larger than the largest machine.

    Raises
    ------
    NotSolved : the program was not solved to its optimum.
    """
    whole = float(sum(size * count for size, count in machines))
    sizes = [size for size, _ in gangs]
    if not sizes:
        return whole
    wanted = sum(size * count for size, count in gangs)
    if all(b % a == 0 for a, b in pairwise(sizes)):
        # Room for gangs of at least a size is what the machines hold of gangs of just that size, and no other limit binds.
        level, larger = 1.0, 0
        for size, count in reversed(gangs):
            larger += size * count
            level = min(level, sum(room // size * many for room, many in machines) * size / larger)
        return whole if level >= 1.0 - 1e-9 else level * wanted
    patterns = [(m, p) for m, (size, _) in enumerate(machines) for p in _fillings(size, tuple(sizes))]
    # Columns: machines filled by each pattern, then lambda. Rows: gangs of each size, then machines of each size.
    rows = len(sizes) + len(machines)
    matrix = np.zeros((rows, len(patterns) + 1))
    for c, (m, pattern) in enumerate(patterns):
        matrix[: len(sizes), c] = pattern
        matrix[len(sizes) + m, c] = 1.0
    matrix[: len(sizes), -1] = [-count for _, count in gangs]
    row, column = np.nonzero(matrix)
    high = np.concatenate([np.full(len(sizes), np.inf), [float(count) for _, count in machines]])
    low = np.concatenate([np.zeros(len(sizes)), np.full(len(machines), -np.inf)])
    found = solve(
        MixedIntegerProgram(
            gain=np.append(np.zeros(len(patterns)), 1.0),
            low=np.zeros(len(patterns) + 1),
            high=np.append(np.full(len(patterns), np.inf), 1.0),
            whole=np.zeros(len(patterns) + 1, dtype=bool),
            row_low=low,
            row_high=high,
            start=np.searchsorted(row, np.arange(rows + 1)),
            column=column,
            value=matrix[row, column],
        ),
        gap=1e-9,
        nodes=1,
        accept=1e-6,
    )
    level = min(max(found.objective, 0.0), 1.0)
    return whole if level >= 1.0 - 1e-9 else level * wanted


def _fillings(room: int, sizes: tuple[int, ...]) -> list[tuple[int, ...]]:
    """Numbers of gangs of each size that one machine can hold, in all ways to which no gang can be added."""
    if not sizes:
        return [()]
    size, rest = sizes[-1], sizes[:-1]
    out = []
    for count in range(room // size + 1):
        for others in _fillings(room - count * size, rest):
            left = room - count * size - sum(a * b for a, b in zip(rest, others))
            if left < sizes[0] or (not rest and left < size):
                out.append((*others, count))
    return out
