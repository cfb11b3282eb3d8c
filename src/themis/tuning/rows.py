"""Rows of bids, and how they become the arrays that the auction takes."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np

from themis.fairness.finish_time import FinishTime
from themis.model.bids import Bids
from themis.model.snapshot import Snapshot
from themis.model.units import NONE, Int
from themis.placement.grants import expiring_jobs, expiring_on
from themis.tuning.singles import Columns

Split = tuple[tuple[int, int], ...]
"""((gang size, count), ...)."""


@dataclass(frozen=True, slots=True)
class ExclusiveRow:
    """One exclusive row of a bid: these gangs, each within the span, of this type, would leave ``left`` seconds."""

    gangs: Split
    span: int
    gpu_type: int
    left: float
    anchor: int = NONE

    @property
    def gpus(self) -> int:
        """GPUs in all."""
        return sum(size * count for size, count in self.gangs)

    @property
    def sizes(self) -> list[int]:
        """The size of each gang."""
        return [size for size, count in self.gangs for _ in range(count)]


class RowTable:
    """Rows of many bidders, gathered and then turned into ``Bids``."""

    def __init__(self) -> None:
        self.bidder: list[int] = []
        self.rows: list[ExclusiveRow] = []

    def add(self, bidder: int, row: ExclusiveRow) -> None:
        """A row of a bidder; bidders rise."""
        self.bidder.append(bidder)
        self.rows.append(row)

    def pack(self, s: Snapshot, finish: FinishTime, apps: Int, singles: Columns) -> Bids:
        """``Bids`` of the gathered rows and of the single jobs' rows, given as columns."""
        if not self.rows:
            return _of_singles(s, finish, apps, singles)
        single, size, span, kind, left = singles
        rows, n = self.rows, len(self.rows)
        bidder = np.concatenate([np.array(self.bidder, dtype=np.int64), single])
        order = np.argsort(bidder, kind="stable")
        gangs = [gang for row in rows for gang in row.gangs]
        counts = np.concatenate([np.array([len(row.gangs) for row in rows], dtype=np.int64), np.ones_like(single)])
        first = np.cumsum(counts) - counts
        length = counts[order]
        ptr = np.concatenate([[0], np.cumsum(length)]).astype(np.int64)
        flat = np.repeat(first[order] - ptr[:-1], length) + np.arange(ptr[-1])
        gang_size = np.concatenate([np.array([g for g, _ in gangs], dtype=np.int64), size])
        gang_count = np.concatenate([np.array([c for _, c in gangs], dtype=np.int64), np.ones_like(size)])
        seconds = np.concatenate([np.array([row.left for row in rows]), left])[order]
        held_bidder, held_machine, held_gpus = _expiring(s, apps)

        def column(of_rows: Iterable[int], of_singles: Int) -> Int:
            out: Int = np.concatenate([np.fromiter(of_rows, dtype=np.int64, count=n), of_singles])[order]
            return out

        return Bids(
            base=-np.log(finish.rho_of(finish.left[apps], apps)),
            expiring_bidder=held_bidder,
            expiring_machine=held_machine,
            expiring_gpus=held_gpus,
            row_bidder=bidder[order],
            row_span=column((r.span for r in rows), span),
            row_type=column((r.gpu_type for r in rows), kind),
            row_anchor=column((r.anchor for r in rows), np.full(len(single), NONE)),
            row_value=-np.log(finish.rho_of(seconds, apps[bidder[order]])),
            gang_ptr=ptr,
            gang_size=gang_size[flat],
            gang_count=gang_count[flat],
        )


def _of_singles(s: Snapshot, finish: FinishTime, apps: Int, singles: Columns) -> Bids:
    """Bids of single jobs alone: one gang a row, bidders rising."""
    single, size, span, kind, left = singles
    n = len(single)
    held_bidder, held_machine, held_gpus = _expiring(s, apps)
    return Bids.made(
        base=-np.log(finish.rho_of(finish.left[apps], apps)),
        expiring_bidder=held_bidder,
        expiring_machine=held_machine,
        expiring_gpus=held_gpus,
        row_bidder=single,
        row_span=span,
        row_type=kind,
        row_anchor=np.full(n, NONE),
        row_value=-np.log(finish.rho_of(left, apps[single])),
        gang_ptr=np.arange(n + 1),
        gang_size=size,
        gang_count=np.ones(n, dtype=np.int64),
        gpus=size,
    )


def _expiring(s: Snapshot, apps: Int) -> tuple[Int, Int, Int]:
    """(bidder, machine, GPUs) of what the bidders hold until this instant, of the first seat."""
    jobs, bidder = expiring_jobs(s), {a: b for b, a in enumerate(apps.tolist())}
    cells: Counter[tuple[int, int]] = Counter()
    for (j, seat), machines in expiring_on(s).items():
        b = bidder.get(jobs[j][0]) if seat == 0 and j in jobs else None
        if b is not None:
            cells.update((b, n) for n in machines)
    columns = [(b, n, gpus) for (b, n), gpus in sorted(cells.items())]
    out = np.array(columns, dtype=np.int64).reshape(-1, 3)
    return out[:, 0], out[:, 1], out[:, 2]
