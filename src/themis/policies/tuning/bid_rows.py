"""Rows of bids, and how they become the arrays that the auction takes."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, fields

import numpy as np

from themis.fairness.finish_time import FinishTime
from themis.model.bids import Bids
from themis.model.snapshot import Snapshot
from themis.model.units import NONE, Float, Int
from themis.policies.placement.grants import expiring_jobs, expiring_on
from themis.policies.tuning.ladders import Split
from themis.policies.tuning.singles import Columns


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


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Rows:
    """R rows as columns, those of one bidder together; shapes [R], and [sum of ``gangs``] of ``size`` and ``count``."""

    bidder: Int
    span: Int
    kind: Int
    anchor: Int
    left: Float
    gangs: Int
    size: Int
    count: Int

    def listed(self) -> list[ExclusiveRow]:
        """One by one."""
        ends = np.cumsum(self.gangs)
        gangs = list(zip(self.size.tolist(), self.count.tolist()))
        spans = zip((ends - self.gangs).tolist(), ends.tolist())
        columns = zip(self.span.tolist(), self.kind.tolist(), self.left.tolist(), self.anchor.tolist())
        return [
            ExclusiveRow(tuple(gangs[first:end]), span, kind, left, anchor)
            for (first, end), (span, kind, left, anchor) in zip(spans, columns)
        ]


def no_rows() -> Rows:
    """An empty table of rows."""
    none = np.zeros(0, dtype=np.int64)
    return Rows(bidder=none, span=none, kind=none, anchor=none, left=np.zeros(0), gangs=none, size=none, count=none)


def of_singles(columns: Columns) -> Rows:
    """Rows of single jobs, one gang each."""
    bidder, size, span, kind, left = columns
    one = np.ones(len(bidder), dtype=np.int64)
    return Rows(bidder=bidder, span=span, kind=kind, anchor=one * NONE, left=left, gangs=one, size=size, count=one)


def as_columns(bidder: Sequence[int], rows: Sequence[ExclusiveRow]) -> Rows:
    """Columns of rows that were made individually, and their bidders."""
    gangs = np.array([gang for row in rows for gang in row.gangs], dtype=np.int64).reshape(-1, 2)
    whole = np.array([(len(row.gangs), row.span, row.gpu_type, row.anchor) for row in rows], dtype=np.int64)
    whole = whole.reshape(-1, 4)
    return Rows(
        bidder=np.array(bidder, dtype=np.int64),
        span=whole[:, 1],
        kind=whole[:, 2],
        anchor=whole[:, 3],
        left=np.array([row.left for row in rows], dtype=np.float64),
        gangs=whole[:, 0],
        size=gangs[:, 0],
        count=gangs[:, 1],
    )


def joined(parts: Sequence[Rows]) -> Rows:
    """All rows, in order of bidders."""
    parts = [part for part in parts if len(part.bidder)]
    if len(parts) < 2:
        return parts[0] if parts else no_rows()
    whole = {f.name: np.concatenate([getattr(part, f.name) for part in parts]) for f in fields(Rows)}
    order = np.argsort(whole["bidder"], kind="stable")
    gangs = whole["gangs"]
    first, length = np.cumsum(gangs) - gangs, gangs[order]
    flat = np.repeat(first[order] - (np.cumsum(length) - length), length) + np.arange(int(length.sum()))
    return Rows(**{name: x[flat] if name in ("size", "count") else x[order] for name, x in whole.items()})


def bids_of(s: Snapshot, finish: FinishTime, apps: Int, rows: Rows) -> Bids:
    """``Bids`` of these rows; ``apps`` : app rows of all bidders."""
    held_bidder, held_machine, held_gpus = _expiring(s, apps)
    return Bids(
        base=-np.log(finish.rho_of(finish.left[apps], apps)),
        expiring_bidder=held_bidder,
        expiring_machine=held_machine,
        expiring_gpus=held_gpus,
        row_bidder=rows.bidder,
        row_span=rows.span,
        row_type=rows.kind,
        row_anchor=rows.anchor,
        row_value=-np.log(finish.rho_of(rows.left, apps[rows.bidder])),
        gang_ptr=np.concatenate([[0], np.cumsum(rows.gangs)]).astype(np.int64),
        gang_size=rows.size,
        gang_count=rows.count,
    )


def bids_of_singles(s: Snapshot, finish: FinishTime, apps: Int, singles: Columns) -> Bids:
    """Bids of single jobs only: one gang a row, bidders ascending."""
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
    """(bidder, machine, GPUs) that the bidders hold until this instant, in the first seat."""
    jobs, bidder = expiring_jobs(s), {a: b for b, a in enumerate(apps.tolist())}
    cells: Counter[tuple[int, int]] = Counter()
    for (j, seat), machines in expiring_on(s).items():
        b = bidder.get(jobs[j][0]) if seat == 0 and j in jobs else None
        if b is not None:
            cells.update((b, n) for n in machines)
    columns = [(b, n, gpus) for (b, n), gpus in sorted(cells.items())]
    out = np.array(columns, dtype=np.int64).reshape(-1, 3)
    return out[:, 0], out[:, 1], out[:, 2]
