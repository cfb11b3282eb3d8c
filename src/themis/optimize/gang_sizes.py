"""One gang size, and GPU type, for each job: the largest sum of values that fits the GPUs.

On one GPU type a dynamic program over GPUs, exact; where that is too large, prices by bisection, with the proven bound. On several
types a binary program in HiGHS, whose relaxation gives the bound.

Gangs of three on machines of four: gangs of 1, 2, 3 and whole machines fit n machines if and only if all their GPUs are at most 4 n
and their halves at most 2 n, where a gang of 3 takes two halves of a machine, one of 2 one, one of 1 none, a machine two. (Only
gangs of 1 fit beside a gang of 3. Where there are enough, they fill the fourth GPU, else it idles, and the halves count it.) A gang
of 3 that is split over two machines is one of 2 and one of 1: it takes one half.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from themis.model.units import Bool, Float, Int
from themis.optimize.programs import MixedIntegerProgram, solve

LARGEST = 30_000_000
"""Jobs x sizes x GPUs up to which the exact dynamic program is used: about 0.3 CPU s."""
NODES = 200
GAP = 1e-4
"""Gap at which HiGHS stops, as a share of the spread of the values."""


class Chosen(NamedTuple):
    """``option`` : [J], row of the options of each job. ``objective <= optimum <= bound``. ``method`` : how it was found."""

    option: Int
    objective: float
    bound: float
    method: str


def choose(
    value: Float, gpus: Int, kind: Int, capacity: Int, halves: int | None = None, split: Bool | bool = False
) -> Chosen:
    """Choose an option for each job.

    Parameters
    ----------
    value : [J, C], of each option; -inf where a job cannot have it. Option 0, no GPUs, is open to all.
    gpus, kind : [C], GPUs of the option and their type. ``capacity`` : [K], GPUs of each type.
    halves : half machines of four, where there is one type and an option has 3 GPUs. ``split`` : [C], options on two machines
        that would fit one; of 3 GPUs.
    """
    if not len(value):
        return Chosen(np.zeros(0, dtype=np.int64), 0.0, 0.0, "no jobs")
    if len(capacity) > 1:
        return _program(value, gpus, kind, capacity)
    room = int(capacity[0])
    if halves is not None and value.size * room * halves <= LARGEST:
        taken = 2 * (gpus // 4) + np.array([0, 0, 1, 2])[gpus % 4] - split
        return _exact(value, np.stack([gpus, taken]), (room, halves))
    if halves is not None:
        value = np.where(gpus % 4 == 3, -np.inf, value)
    if value.size * room > LARGEST:
        return _priced(value, gpus, room)
    return _exact(value, gpus[None], (room,))


def _exact(value: Float, takes: Int, room: tuple[int, ...]) -> Chosen:
    """Dynamic program over what is left of each resource. ``takes`` : [R, C], of each resource. ``room`` : [R]."""
    jobs, most = len(value), takes.max(axis=1)
    padded = np.full(tuple(m + r + 1 for m, r in zip(most.tolist(), room)), -np.inf)
    inside = tuple(slice(m, None) for m in most.tolist())
    padded[inside] = 0.0
    shifted = [
        padded[tuple(slice(m - t, m - t + r + 1) for m, t, r in zip(most.tolist(), column, room))]
        for column in takes.T.tolist()
    ]
    taken = np.zeros((jobs, *(r + 1 for r in room)), dtype=np.int32)
    for j, row in enumerate(value.tolist()):
        best = np.full(taken.shape[1:], -np.inf)
        for c, (worth, before) in enumerate(zip(row, shifted)):
            if worth > -np.inf:
                total = before + worth
                better = total > best
                best[better], taken[j][better] = total[better], c
        padded[inside] = best
    option, left = np.zeros(jobs, dtype=np.int64), np.array(room)
    for j in range(jobs - 1, -1, -1):
        option[j] = taken[(j, *left)]
        left -= takes[:, option[j]]
    objective = float(padded[(-1,) * len(room)])
    return Chosen(option, objective, objective, "exact, by GPUs")


def _priced(value: Float, gpus: Int, room: int) -> Chosen:
    """A price per GPU by bisection, then what is left over to the option that gains most per GPU."""
    rows = np.arange(len(value))

    def at(price: float) -> tuple[Int, float]:
        net = value - price * gpus
        option = net.argmax(axis=1)
        return option, float(net[rows, option].sum()) + price * room

    finite = value[np.isfinite(value)]
    low, high = 0.0, float(finite.max() - finite.min()) + 1.0
    bound = np.inf
    option = np.zeros(len(value), dtype=np.int64)
    for _ in range(40):
        price = 0.5 * (low + high)
        found, dual = at(price)
        bound = min(bound, dual)
        if int(gpus[found].sum()) > room:
            low = price
        else:
            high, option = price, found
    left = room - int(gpus[option].sum())
    while left > 0:
        more = gpus[None, :] - gpus[option][:, None]
        gain = np.where((more > 0) & (more <= left), value - value[rows, option][:, None], -np.inf) / np.maximum(
            more, 1
        )
        j, c = divmod(int(gain.argmax()), len(gpus))
        if not gain[j, c] > 0:
            break
        left -= int(more[j, c])
        option[j] = c
    objective = float(value[rows, option].sum())
    return Chosen(option, objective, max(bound, objective), "a price per GPU")


def _program(value: Float, gpus: Int, kind: Int, capacity: Int) -> Chosen:
    jobs = len(value)
    job, option = np.nonzero(np.isfinite(value))
    gain = value[job, option]
    # One option a job; GPUs of each type.
    rows = [np.flatnonzero(job == j) for j in range(jobs)] + [
        np.flatnonzero((kind[option] == k) & (gpus[option] > 0)) for k in range(len(capacity))
    ]
    weights = [np.ones(len(r)) for r in rows[:jobs]] + [gpus[option[r]].astype(np.float64) for r in rows[jobs:]]
    program = MixedIntegerProgram(
        gain=gain,
        low=np.zeros(len(gain)),
        high=np.ones(len(gain)),
        whole=np.ones(len(gain), dtype=bool),
        row_low=np.concatenate([np.ones(jobs), np.full(len(capacity), -np.inf)]),
        row_high=np.concatenate([np.ones(jobs), capacity.astype(np.float64)]),
        start=np.concatenate([[0], np.cumsum([len(r) for r in rows])]).astype(np.int64),
        column=np.concatenate(rows).astype(np.int64),
        value=np.concatenate(weights),
    )
    spread = float(gain.max() - gain.min()) or 1.0
    found = solve(program, gap=GAP * spread, nodes=NODES, accept=np.inf)
    picked = found.x > 0.5
    out = np.zeros(jobs, dtype=np.int64)
    out[job[picked]] = option[picked]
    return Chosen(out, found.objective, found.bound, "HiGHS")
