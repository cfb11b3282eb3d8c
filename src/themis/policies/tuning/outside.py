"""Bids of agents that are programs of others: checked against the offer, then put in place of the service's own (Themis §4.2).

Whatever an agent says is held against what it was asked: a row must be one that the auction could grant now, and that one
of the app's jobs can use. A fault costs its sender the round and affects no other app.

Rules for a bid: at most 64 exclusive rows, no two equal; each row's rho below that of winning nothing; among rows of
the same type, span and anchor, more GPUs never at a larger rho.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import groupby
from operator import itemgetter

import numpy as np

from themis.errors import InputError
from themis.limits import RHO
from themis.model.bids import Bids
from themis.model.snapshot import Snapshot
from themis.model.units import NONE, Int, Locality
from themis.policies.tuning.app_agent import ROWS

Shape = tuple[tuple[int, ...], int, int, int]
"""A row's gang sizes (largest first), span, GPU type and anchor."""


@dataclass(frozen=True, slots=True, kw_only=True)
class OutsideRow:
    """One row: these gangs, together with the held ones, would bring the app to ``rho``.

    Attributes
    ----------
    gangs : GPUs of each gang; each serves one job. ``span`` : how far each gang may reach (``auction.bids``).
    gpu_type, anchor : numbers of the snapshot; anchor is a machine (span 1) or a rack (span 2), -1 for none.
    """

    gangs: tuple[int, ...]
    span: int
    gpu_type: int
    anchor: int = NONE
    rho: float

    @property
    def shape(self) -> Shape:
        """Gangs and placement that are asked for, without their rho."""
        return tuple(sorted(self.gangs, reverse=True)), self.span, self.gpu_type, self.anchor

    @property
    def gpus(self) -> int:
        """GPUs in all."""
        return sum(self.gangs)


@dataclass(frozen=True, slots=True, kw_only=True)
class OutsideBid:
    """A bid as an agent made it; ``rho`` is that of winning nothing."""

    rho: float
    rows: tuple[OutsideRow, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Terms:
    """Request to one app's agent: the snapshot, the app's row in it, the offer, and the service's own bid for it."""

    snapshot: Snapshot
    row: int
    offer: Int
    own: OutsideBid


def terms(snapshot: Snapshot, apps: Int, offer: Int, bids: Bids, bidder: int) -> Terms:
    """The terms of a bidder; ``bids`` : the service's own bids for all bidders."""
    rows = np.flatnonzero(bids.row_bidder == bidder).tolist()
    own = OutsideBid(
        rho=math.exp(-float(bids.base[bidder])),
        rows=tuple(
            OutsideRow(
                gangs=tuple(size for size, count in bids.gangs(r).items() for _ in range(count)),
                span=int(bids.row_span[r]),
                gpu_type=int(bids.row_type[r]),
                anchor=int(bids.row_anchor[r]),
                rho=math.exp(-float(bids.row_value[r])),
            )
            for r in rows
        ),
    )
    return Terms(snapshot=snapshot, row=int(apps[bidder]), offer=offer, own=own)


def check_rho(rho: float, what: str = "rho") -> float:
    """The value, if it can be one.

    Raises
    ------
    InputError : not within ``limits.RHO``, beyond which no estimate of a finish time means anything.
    """
    return RHO.check(rho, what)


def check_bid(bid: OutsideBid, asked: Terms) -> None:
    """Raise InputError, naming the row and the fault, unless the bid is valid."""
    check_rho(bid.rho, "rho of winning nothing")
    if len(bid.rows) > ROWS:
        raise InputError(f"the bid has {len(bid.rows)} rows, expected at most {ROWS}.")
    seen: dict[Shape, int] = {}
    for number, row in enumerate(bid.rows):
        where = f"row {number}"
        check_rho(row.rho, f"{where}: rho")
        if row.rho >= bid.rho * (1 - 1e-12):
            raise InputError(
                f"{where}: rho {row.rho:.6g} is not below {bid.rho:.6g}, that of winning nothing; leave such rows out."
            )
        _check_place(row, asked, where)
        if row.shape in seen:
            raise InputError(f"{where} asks for the same as row {seen[row.shape]}; rows must differ.")
        seen[row.shape] = number
    _check_monotone(bid.rows)
    _check_jobs(bid.rows, asked)


def _check_place(row: OutsideRow, asked: Terms, where: str) -> None:
    """Check that the row could be granted without others."""
    s = asked.snapshot
    if not row.gangs or min(row.gangs) < 1:
        raise InputError(f"{where}: gangs are {list(row.gangs)}, expected at least one, each of at least 1 GPU.")
    if not Locality.MACHINE <= row.span <= Locality.CROSS_RACK:
        raise InputError(f"{where}: span is {row.span}, expected machine, rack or anywhere.")
    if not 0 <= row.gpu_type < len(s.gpu_types):
        raise InputError(f"{where}: unknown GPU type {row.gpu_type}, expected one of {', '.join(s.gpu_types)}.")
    places = {Locality.MACHINE: len(s.free), Locality.RACK: int(s.machine_rack.max(initial=-1)) + 1}.get(
        Locality(row.span), 0
    )
    if row.anchor != NONE and not 0 <= row.anchor < places:
        raise InputError(
            f"{where}: there is no such machine or rack to anchor to; a row that may lie anywhere has none."
        )
    usable = np.where(s.machine_type == row.gpu_type, asked.offer, 0)
    place = (np.arange(len(usable)), s.machine_rack, np.zeros_like(usable))[row.span - 1]
    each = np.bincount(place, weights=usable).astype(np.int64)
    room = int(each[row.anchor]) if row.anchor != NONE else int(each.sum())
    if row.gpus > room or max(row.gangs) > int(each.max(initial=0)):
        raise InputError(
            f"{where}: {row.gpus} GPUs in gangs of {list(row.gangs)} are more than is offered there: {room} GPUs of type "
            f"{s.gpu_types[row.gpu_type]}, {int(each.max(initial=0))} within one span."
        )


def _check_monotone(rows: Sequence[OutsideRow]) -> None:
    alike: dict[tuple[int, int, int], list[tuple[int, float, int]]] = {}
    for number, row in enumerate(rows):
        alike.setdefault((row.span, row.gpu_type, row.anchor), []).append((row.gpus, row.rho, number))
    for group in alike.values():
        best = (math.inf, 0, 0)
        for gpus, same in groupby(sorted(group), key=itemgetter(0)):
            found = [(rho, gpus, number) for _, rho, number in same]
            if max(found)[0] > best[0]:
                raise InputError(
                    f"row {max(found)[2]}: {gpus} GPUs at rho {max(found)[0]:.6g}, but row {best[2]} has rho {best[0]:.6g} with "
                    f"{best[1]}; more GPUs of the same type, span and anchor must not be worth less."
                )
            best = min(found)


def _check_jobs(rows: Sequence[OutsideRow], asked: Terms) -> None:
    """Check that each gang of a row finds a waiting job of its own that takes this many GPUs of that type."""
    s, a = asked.snapshot, asked.row
    at = np.arange(s.job_ptr[a], s.job_ptr[a + 1])
    waiting = at[s.job_held[at] == 0]
    own = {row.shape for row in asked.own.rows}
    for number, row in enumerate(rows):
        if not len(waiting):
            # All jobs run: what may be added, and where, is what the service itself would ask for.
            if row.shape not in own:
                raise InputError(f"row {number}: all jobs run, so only rows of the service's own bid may be asked for.")
            continue
        jobs = waiting[s.job_allowed[waiting, row.gpu_type]]
        limits = list(zip(s.job_gpus_max[jobs].tolist(), s.job_gpus_min[jobs].tolist()))
        for gang in sorted(row.gangs):
            # Of the jobs that are not too large for this gang, the one that the later, larger gangs can miss best.
            found = min((job for job in limits if job[1] <= gang <= job[0]), default=None)
            if found is None:
                raise InputError(
                    f"row {number}: no waiting job of this app takes a gang of {gang} GPUs of type "
                    f"{s.gpu_types[row.gpu_type]} in addition to the row's other gangs."
                )
            limits.remove(found)


def merge(own: Bids, outside_bids: Mapping[int, OutsideBid | None]) -> Bids:
    """``own`` with the bids of some bidders replaced; None leaves a bidder without any row: it lost the round."""
    if not outside_bids:
        return own
    gone = np.isin(own.row_bidder, list(outside_bids))
    kept = np.flatnonzero(~gone)
    rows = [(b, row) for b, bid in sorted(outside_bids.items()) if bid is not None for row in bid.rows]
    bidder = np.concatenate([own.row_bidder[kept], np.array([b for b, _ in rows], dtype=np.int64)])
    order = np.argsort(bidder, kind="stable")
    counts = np.concatenate(
        [np.diff(own.gang_ptr)[kept], np.array([len(row.gangs) for _, row in rows], dtype=np.int64)]
    )
    first = np.concatenate([own.gang_ptr[:-1][kept], len(own.gang_size) + _starts([len(row.gangs) for _, row in rows])])
    length = counts[order]
    ptr = np.concatenate([[0], np.cumsum(length)]).astype(np.int64)
    flat = np.repeat(first[order] - ptr[:-1], length) + np.arange(ptr[-1])
    sizes = np.array([gang for _, row in rows for gang in row.gangs], dtype=np.int64)
    base = own.base.copy()
    for b, bid in outside_bids.items():
        if bid is not None:
            base[b] = -math.log(bid.rho)

    def column(of_own: Int, of_rows: Sequence[int]) -> Int:
        out: Int = np.concatenate([of_own[kept], np.array(of_rows, dtype=np.int64)])[order]
        return out

    values = np.concatenate([own.row_value[kept], np.array([-math.log(row.rho) for _, row in rows])])
    return replace(
        own,
        base=base,
        row_bidder=bidder[order],
        row_span=column(own.row_span, [row.span for _, row in rows]),
        row_type=column(own.row_type, [row.gpu_type for _, row in rows]),
        row_anchor=column(own.row_anchor, [row.anchor for _, row in rows]),
        row_value=values[order],
        gang_ptr=ptr,
        gang_size=np.concatenate([own.gang_size, sizes])[flat],
        gang_count=np.concatenate([own.gang_count, np.ones_like(sizes)])[flat],
    )


def _starts(lengths: Sequence[int]) -> Int:
    ends = np.cumsum(np.array(lengths, dtype=np.int64))
    out: Int = ends - np.array(lengths, dtype=np.int64)
    return out
