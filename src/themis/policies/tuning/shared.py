"""Bids of apps with waiting jobs whose phases share the GPUs freely (fluid): elastic job sets and sweeps.

All of them are answered together, as arrays: which gangs an app asks for follows from its jobs' sizes and the offer (``ladders``),
and what each row would leave is one call of ``FinishTime.left_on``.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from themis.fairness.finish_time import FinishTime
from themis.model.snapshot import Snapshot
from themis.model.units import NONE, Bool, Float, Int
from themis.policies.placement.grants import jobs_of
from themis.policies.tuning.bid_rows import Rows, no_rows
from themis.policies.tuning.ladders import Candidates, Splits, alike, mixed
from themis.policies.tuning.singles import SPANS, distinct_spans

_MACHINE = int(SPANS[0])


def rows(
    s: Snapshot, finish: FinishTime, limit: Float, apps: Int, bidders: Int, offered: Sequence[int], most: int
) -> Rows:
    """Rows of these bidders that leave fewer seconds than ``limit``, [A].

    Parameters
    ----------
    apps : app rows of all bidders. bidders : those of this kind, rising.
    offered : GPUs of each type. most : about how many rows there are at most.
    """
    segments = _Segments(s, offered, most)
    if len(bidders):
        segments.add_all(apps, bidders)
    if not segments.splits:
        return no_rows()
    return segments.priced(finish, limit, apps)


class _Segments:
    """Candidates of one app on one GPU type at one span; each becomes rows."""

    def __init__(self, s: Snapshot, offered: Sequence[int], most: int) -> None:
        self.s, self.offered, self.most = s, offered, most
        self.bidder: list[int] = []
        self.kind: list[int] = []
        self.span: list[int] = []
        self.splits: list[Splits] = []
        self.spans: dict[int, list[int]] = {}
        """Spans of gangs of several GPUs, by model."""

    def add_all(self, apps: Int, bidders: Int) -> None:
        s = self.s
        at = apps[bidders]
        job, first = jobs_of(s, at)
        waits = s.job_held[job] == 0
        low, high = s.job_gpus_min[job], s.job_gpus_max[job]
        large = np.iinfo(np.int64).max
        least, most_low = (
            np.minimum.reduceat(np.where(waits, low, large), first),
            np.maximum.reduceat(np.where(waits, low, 0), first),
        )
        least_high, most = (
            np.minimum.reduceat(np.where(waits, high, large), first),
            np.maximum.reduceat(np.where(waits, high, 0), first),
        )
        count = np.add.reduceat(waits, first, dtype=np.int64)
        uniform: Bool = (least == most_low) & (least_high == most)
        allowed: Bool = np.logical_or.reduceat(s.job_allowed[job], first, axis=0)
        config = s.job_config[s.job_ptr[at]]
        columns = (bidders, at, config, least, most, count, uniform)
        for b, a, model, small, big, jobs_, same, may in zip(*(x.tolist() for x in columns), allowed.tolist()):
            types = [k for k, gpus in enumerate(self.offered) if gpus and may[k]]
            each = self.most // (3 * max(len(types), 1))
            for k in types:
                if same:
                    found = alike(small, big, jobs_, min(self.offered[k], jobs_ * big), each)
                else:
                    found = mixed(in_order(s, a), self.offered[k], each)
                self._add(b, model, k, found)

    def _add(self, b: int, model: int, k: int, found: Candidates) -> None:
        if not found.every.rows:
            return
        if model not in self.spans:
            self.spans[model] = distinct_spans(2, self.s.speeds.slowdown[model].tolist())
        several = found.every.largest > 1
        for span in self.spans[model] if several else [_MACHINE]:
            self._append(b, k, span, found.every if span == _MACHINE else found.large)
        if several and self.spans[model][0] != _MACHINE:
            # Gangs of one GPU have no span, where the larger gangs' spans begin beyond the machine.
            self._append(b, k, _MACHINE, found.small)

    def _append(self, b: int, k: int, span: int, splits: Splits) -> None:
        if splits.rows:
            self.bidder.append(b)
            self.kind.append(k)
            self.span.append(span)
            self.splits.append(splits)

    def priced(self, finish: FinishTime, limit: Float, apps: Int) -> Rows:
        """All rows with the seconds that they would leave, those that lower rho."""
        s = self.s
        each = np.array([x.rows for x in self.splits])
        bidder, kind, span = (np.repeat(np.array(x), each) for x in (self.bidder, self.kind, self.span))
        app = apps[bidder]
        config = s.job_config[s.job_ptr[app]]
        slowdown = s.speeds.slowdown[config, span]
        gangs, size, count = (np.concatenate([getattr(x, c) for x in self.splits]) for c in ("gangs", "size", "count"))
        row = np.repeat(np.arange(len(gangs)), gangs)
        speed = s.speeds.scale[config[row], kind[row], size] / slowdown[row]
        # Sums from the first gang to the last, and what is held before them, as ``bincount`` adds.
        new = np.bincount(row, weights=speed * count, minlength=len(gangs))
        widest = s.speeds.scale[config, kind, s.app_gang_max[app]] / slowdown
        left = finish.left_on(held_worth(s)[app] + new, widest, app)
        good = left < limit[app]
        return Rows(
            bidder=bidder[good],
            span=span[good],
            kind=kind[good],
            anchor=np.full(int(good.sum()), NONE),
            left=left[good],
            gangs=gangs[good],
            size=size[good[row]],
            count=count[good[row]],
        )


def held_worth(s: Snapshot) -> Float:
    """[A], held gangs in reference GPUs."""
    return s.once(held_worth, _held_worth)


def _held_worth(s: Snapshot) -> Float:
    return np.bincount(s.job_app, job_worth(s), s.apps).astype(np.float64)


def job_worth(s: Snapshot) -> Float:
    """[J], reference GPUs that each gang held is worth; 0 for jobs that hold none."""
    return s.once(job_worth, _job_worth)


def _job_worth(s: Snapshot) -> Float:
    held = np.flatnonzero(s.job_held > 0)
    worth = np.zeros(s.jobs)
    worth[held] = s.speeds.effective(s.job_config[held], s.job_gpu_type[held], s.job_held[held], s.job_locality[held])
    return worth


def in_order(s: Snapshot, a: int) -> list[int]:
    """Fewest GPUs of an app's waiting jobs in the order in which its scheduler starts them: warm ones, then the longest."""
    at = slice(int(s.job_ptr[a]), int(s.job_ptr[a + 1]))
    waiting = np.flatnonzero(s.job_held[at] == 0)
    order = np.lexsort((waiting, -s.job_left[at][waiting], s.job_expiring[at][waiting] == 0))
    out: list[int] = s.job_gpus_min[at][waiting[order]].tolist()
    return out
