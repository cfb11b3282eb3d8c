"""Bids of single jobs that wait: apps of one job want one gang, so their rows need no agent of their own.

There may be thousands of them, which are answered as arrays; most auctions have a handful, for which plain numbers take less
time than arrays of a few entries. Both compute the same, in the same order of operations (`tests/tuning` compare them).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeAlias

import numpy as np

from themis.model.snapshot import Kind, Snapshot
from themis.model.units import Float, Int, Locality

SPANS = (Locality.MACHINE, Locality.RACK, Locality.CROSS_RACK)
_SPANS = tuple(map(int, SPANS))
_MACHINE, _SINGLE = int(Locality.MACHINE), int(Kind.SINGLE)
"""As plain numbers: members of an enumeration take ten times as long to compare."""

FEW = 12
"""Up to so many bidders of one size each are answered one by one."""

Columns: TypeAlias = tuple[Int, Int, Int, Int, Float]
"""(bidder, size, span, GPU type, seconds left) of rows, bidders rising."""


def spans_told(gang: int, slowdown: Sequence[float]) -> list[int]:
    """Spans worth telling apart: of spans with equal slowdown only the widest is bid; one GPU has no span to choose."""
    if gang == 1:
        return [_MACHINE]
    wider = (*_SPANS[1:], None)
    return [p for p, q in zip(_SPANS, wider) if q is None or slowdown[q] > slowdown[p]]


def rows(s: Snapshot, limit: Float, apps: Int, bidders: Int, offered: Sequence[int]) -> Columns:
    """One row per useful size, span and type.

    Parameters
    ----------
    limit : [A], rows must leave fewer seconds. apps : app rows of all bidders. bidders : those that are single jobs that wait.
    offered : GPUs of each type.
    """
    if not len(bidders):
        return _columns([], [], [], [], [])
    at = apps[bidders]
    job = s.job_ptr[at]
    low, high = s.job_gpus_min[job], s.job_gpus_max[job]
    if not (low == high).all():
        return _elastic(s, limit[at], bidders, job, offered)
    few = len(bidders) <= FEW
    return (_one_by_one if few else _rigid)(s, limit[at], bidders, job, offered)


def _columns(b: list[int], size: list[int], span: list[int], kind: list[int], left: list[float]) -> Columns:
    whole = (np.array(column, dtype=np.int64) for column in (b, size, span, kind))
    bidder, sizes, spans, kinds = whole
    return bidder, sizes, spans, kinds, np.array(left, dtype=np.float64)


def _one_by_one(s: Snapshot, limit: Float, bidders: Int, job: Int, offered: Sequence[int]) -> Columns:
    """Jobs that each want one number of GPUs, as plain numbers."""
    table: list[tuple[int, int, int, int, float]] = []
    for b, j, most in zip(bidders.tolist(), job.tolist(), limit.tolist()):
        size, config, work = s.job_gpus_min.item(j), s.job_config.item(j), s.job_left.item(j)
        slowdown: list[float] = s.speeds.slowdown[config].tolist()
        for k, count in enumerate(offered):
            if size > count or not s.job_allowed.item(j, k):
                continue
            speed = s.speeds.scale.item(config, k, size)
            for span in spans_told(size, slowdown) if speed > 0 else ():
                left = work / (speed / slowdown[span])
                if left < most:
                    table.append((b, size, span, k, left))
    b_, size_, span_, kind_, left_ = map(list, zip(*table)) if table else ([], [], [], [], [])
    return _columns(b_, size_, span_, kind_, left_)


def _rigid(s: Snapshot, limit: Float, bidders: Int, job: Int, offered: Sequence[int]) -> Columns:
    """Jobs that each want one number of GPUs, all sizes and spans at once."""
    size, config = s.job_gpus_min[job], s.job_config[job]
    slowdown = s.speeds.slowdown[config][:, _SPANS[0] : _SPANS[-1] + 1]
    told = np.ones(slowdown.shape, dtype=bool)
    np.greater(slowdown[:, 1:], slowdown[:, :-1], out=told[:, :-1])
    told[size == 1] = [True, False, False]
    parts: list[Columns] = []
    for k, count in enumerate(offered):
        # Models have no speed on types that they do not run on.
        fits = ((size <= count) & s.job_allowed[job, k]).nonzero()[0]
        if not len(fits):
            continue
        left = s.job_left[job[fits], None] / (s.speeds.scale[config[fits], k, size[fits]][:, None] / slowdown[fits])
        row, span = (told[fits] & (left < limit[fits, None])).nonzero()
        at = fits[row]
        parts.append((bidders[at], size[at], span + _SPANS[0], np.full(len(at), k), left[row, span]))
    return _joined(parts)


def _elastic(s: Snapshot, limit: Float, bidders: Int, job: Int, offered: Sequence[int]) -> Columns:
    """Jobs some of which take more than one number of GPUs."""
    low, high, config = s.job_gpus_min[job], s.job_gpus_max[job], s.job_config[job]
    slowdown = s.speeds.slowdown[config]
    parts: list[Columns] = []
    for k, count in enumerate(offered):
        for size in range(int(low.min()), min(int(high.max()), count) + 1):
            fits = (low <= size) & (size <= high) & s.job_allowed[job, k]
            if not fits.any():
                continue
            for span in _SPANS:
                # As in ``spans_told``.
                if size == 1:
                    told = fits if span == _MACHINE else np.zeros_like(fits)
                elif span == _SPANS[-1]:
                    told = fits
                else:
                    told = fits & (slowdown[:, span + 1] > slowdown[:, span])
                at = np.flatnonzero(told)
                left = s.job_left[job[at]] / (s.speeds.scale[config[at], k, size] / slowdown[at, span])
                good = left < limit[at]
                at = at[good]
                one = np.ones(len(at), dtype=np.int64)
                parts.append((bidders[at], one * size, one * span, one * k, left[good]))
    return _joined(parts)


def _joined(parts: list[Columns]) -> Columns:
    """All rows, those of one bidder together."""
    if not parts:
        return _columns([], [], [], [], [])
    if len(parts) == 1:
        return parts[0]
    b, size, span, kind, left = (np.concatenate(column) for column in zip(*parts))
    order = np.argsort(b, kind="stable")
    return b[order], size[order], span[order], kind[order], left[order]


def wanted(s: Snapshot, a: int) -> int:
    """The gang of a single job that waits and takes one number of GPUs; 0 for other apps."""
    if s.app_kind.item(a) != _SINGLE:
        return 0
    j = s.job_ptr.item(a)
    size: int = s.job_gpus_min.item(j)
    return size if s.job_held.item(j) == 0 and size == s.job_gpus_max.item(j) else 0


def serves(s: Snapshot, limit: float, a: int, offered: Sequence[int]) -> bool:
    """Whether the gang that such a job wants, placed as it likes best, would leave it fewer seconds than ``limit``."""
    j = s.job_ptr.item(a)
    size, config, work = s.job_gpus_min.item(j), s.job_config.item(j), s.job_left.item(j)
    slowdown: list[float] = s.speeds.slowdown[config].tolist()
    best = slowdown[_MACHINE] if size == 1 else min(slowdown[span] for span in _SPANS)
    for k, count in enumerate(offered):
        if size <= count and s.job_allowed.item(j, k):
            speed = s.speeds.scale.item(config, k, size)
            if speed > 0 and work / (speed / best) < limit:
                return True
    return False
