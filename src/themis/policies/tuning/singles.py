"""Bids of single jobs that wait: apps of one job want one gang, so their rows need no agent of their own.

There may be thousands of them, which are answered together, as arrays.
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
"""Plain integers: enumeration members take ten times as long to compare."""

Columns: TypeAlias = tuple[Int, Int, Int, Int, Float]
"""(bidder, size, span, GPU type, seconds left) of rows, bidders rising."""


def distinct_spans(gang: int, slowdown: Sequence[float]) -> list[int]:
    """Spans that differ: of spans with equal slowdown only the widest is bid; one GPU has no span to choose."""
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
    at = apps[bidders]
    job, most = s.job_ptr[at], limit[at]
    low, high = s.job_gpus_min[job], np.minimum(s.job_gpus_max[job], max(offered, default=0))
    size = low
    if not (low == high).all():
        # A line for each size that a job takes and some type has.
        sizes = np.maximum(high - low + 1, 0)
        of = np.repeat(np.arange(len(job)), sizes)
        size = low[of] + np.arange(len(of)) - np.repeat(np.cumsum(sizes) - sizes, sizes)
        bidders, job, most = bidders[of], job[of], most[of]
    config = s.job_config[job]
    slowdown = s.speeds.slowdown[config][:, _SPANS[0] : _SPANS[-1] + 1]
    bid = np.ones(slowdown.shape, dtype=bool)  # as in ``distinct_spans``
    np.greater(slowdown[:, 1:], slowdown[:, :-1], out=bid[:, :-1])
    bid[size == 1] = [True, False, False]
    parts: list[Columns] = []
    for k, count in enumerate(offered):
        # Models have no speed on types that they do not run on.
        fits = ((size <= count) & s.job_allowed[job, k]).nonzero()[0]
        if not len(fits):
            continue
        left = s.job_left[job[fits], None] / (s.speeds.scale[config[fits], k, size[fits]][:, None] / slowdown[fits])
        row, span = (bid[fits] & (left < most[fits, None])).nonzero()
        own = fits[row]
        parts.append((bidders[own], size[own], span + _SPANS[0], np.full(len(own), k), left[row, span]))
    return _joined(parts)


def _joined(parts: list[Columns]) -> Columns:
    """All rows, those of one bidder together."""
    if not parts:
        none = np.zeros(0, dtype=np.int64)
        return none, none, none, none, np.zeros(0)
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
    """True if the gang that such a job wants, placed as it likes best, would leave it fewer seconds than ``limit``."""
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
