"""The app agent: turns an app's state into one bid on an offer (Themis §4.3).

A bid is at most 64 exclusive rows. A row asks for gangs (as the app's scheduler would split them, ``tuning.split``)
that each lie within a span, and says what rho would become: the row's gangs beside those held beyond this instant,
for ever. Rows that do not strictly lower rho are not bid.

Apps with waiting jobs bid for gangs for these; an app whose jobs all run bids to enlarge the one with most left, if it
is elastic. All gangs of a row are priced at the row's span.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from themis.auction.bids import Bids
from themis.fairness.finish_time import FinishTime, Form, list_schedule
from themis.model.answers import Ask
from themis.model.snapshot import Kind, Snapshot
from themis.model.units import NONE, Float, Int, Locality

ROWS = 64
"""Most rows of one bid."""

SPANS = (Locality.MACHINE, Locality.RACK, Locality.CROSS_RACK)


@dataclass(frozen=True, slots=True)
class Row:
    """One exclusive row of a bid: these gangs, each within the span, of this type, would leave ``left`` seconds."""

    gangs: tuple[tuple[int, int], ...]
    """(size, count), ..."""
    span: int
    gpu_type: int
    left: float
    anchor: int = NONE


def answer_ask(snapshot: Snapshot, ask: Ask) -> Bids:
    """The bids of all apps asked, as their agents would make them."""
    finish = FinishTime(snapshot, Form(ask.form))
    tables = [_Agent(snapshot, finish, ask.offer, a).rows() for a in ask.apps.tolist()]
    return _pack(snapshot, finish, ask.apps, tables)


def growing_job(s: Snapshot, a: int) -> int:
    """The running job of app row ``a`` that should grow first: the most work left; -1 if none can."""
    at = slice(int(s.job_ptr[a]), int(s.job_ptr[a + 1]))
    room = (s.job_held[at] > 0) & (s.job_held[at] < s.job_gpus_max[at])
    rows = np.flatnonzero(room)
    return int(s.job_id[at][rows[np.argmax(s.job_left[at][rows])]]) if len(rows) else NONE


def useful_gangs(s: Snapshot, finish: FinishTime, offer: Int, a: int) -> list[int]:
    """Gang sizes that app row ``a`` would take of an offer one after another; it declines what does not lower its rho."""
    rows = _Agent(s, finish, offer, a).rows()
    if not rows:
        return []
    best = min(rows, key=lambda row: (row.left, sum(size * count for size, count in row.gangs)))
    return [size for size, count in best.gangs for _ in range(count)]


class _Agent:
    def __init__(self, snapshot: Snapshot, finish: FinishTime, offer: Int, a: int) -> None:
        s = self.s = snapshot
        self.finish, self.offer, self.a = finish, offer, a
        self.at = slice(int(s.job_ptr[a]), int(s.job_ptr[a + 1]))
        held = s.job_held[self.at]
        self.running = np.flatnonzero(held > 0)
        waiting = np.flatnonzero(held == 0)
        left = s.job_left[self.at]
        # The order in which the app's scheduler will start them: warm ones, then the longest.
        order = np.lexsort((-left[waiting], s.job_expiring[self.at][waiting] == 0))
        self.waiting = waiting[order]
        config = int(s.job_config[self.at.start])
        self.scale: Float = s.speeds.scale[config]
        self.slowdown: list[float] = s.speeds.slowdown[config].tolist()
        self.worth: Float = _worth(s, self.at, self.running)
        self.held = float(self.worth.sum())
        offered = np.bincount(s.machine_type, weights=offer, minlength=len(s.gpu_types))
        allowed = s.job_allowed[self.at].any(axis=0)
        self.types = [(k, int(offered[k])) for k in range(len(s.gpu_types)) if offered[k] > 0 and allowed[k]]

    def rows(self) -> list[Row]:
        """All rows that strictly lower rho, at most ``ROWS``."""
        s, a = self.s, self.a
        if not len(self.waiting):
            found = self._extensions()
        elif s.app_rigid[a] and s.app_kind[a] == Kind.BAG:
            found = self._bag()
        else:
            found = self._shared()
        old = float(s.app_left_held[a])
        if not math.isfinite(old):
            old = float(self.finish.left_waiting[a])
        better = [row for row in found if row.left < old * (1 - 1e-9) - 1e-9]
        return sorted(better, key=lambda row: row.left)[:ROWS] if len(better) > ROWS else better

    def _spans(self, gang: int) -> list[Locality]:
        """Spans worth telling apart: of spans with equal slowdown only the widest is bid."""
        if gang == 1:
            return [Locality.MACHINE]
        wider = (*SPANS[1:], None)
        return [p for p, q in zip(SPANS, wider) if q is None or self.slowdown[q] > self.slowdown[p]]

    def _bag(self) -> Iterator[Row]:
        """Rigid bags: list scheduling, longest first, on the gangs held and the new ones."""
        s, gang = self.s, int(self.s.app_gang_min[self.a])
        left = s.job_left[self.at]
        works = np.sort(left[self.waiting])[::-1].tolist()
        held = list(zip((left[self.running] / self.worth).tolist(), self.worth.tolist()))
        for k, offered in self.types:
            for span in self._spans(gang):
                speed = float(self.scale[k, gang]) / self.slowdown[span]
                floor = max(works[0] / speed, max((t for t, _ in held), default=0.0))
                best = math.inf
                for count in _ladder(min(len(works), offered // gang)):
                    seconds = list_schedule(held + [(0.0, speed)] * count, works)
                    if seconds < best:
                        yield Row(((gang, count),), span, k, seconds)
                        best = seconds
                    if seconds <= floor * (1 + 1e-12):
                        break

    def _shared(self) -> Iterator[Row]:
        """Single jobs, sweeps and elastic bags: their phases share the GPUs as well as they can (fluid)."""
        for k, offered in self.types:
            splits = [gangs for gangs in self._splits(offered) if gangs]
            largest = max((size for gangs in splits for size, _ in gangs), default=0)
            for span in self._spans(largest):
                if not splits:
                    continue
                speed = self.scale[k] / self.slowdown[span]
                new = np.array([sum(speed[size] * count for size, count in gangs) for gangs in splits])
                gang = float(speed[self.s.app_gang_max[self.a]])
                left = self.finish.left_on(self.held + new, np.full(len(new), gang), self.a)
                for gangs, seconds in zip(splits, left.tolist()):
                    if span == Locality.MACHINE or max(size for size, _ in gangs) > 1:
                        yield Row(gangs, int(span), k, seconds)

    def _splits(self, offered: int) -> list[tuple[tuple[int, int], ...]]:
        """Gangs for the waiting jobs, from the fewest GPUs to the most that are offered and useful."""
        low = self.s.job_gpus_min[self.at][self.waiting]
        high = self.s.job_gpus_max[self.at][self.waiting]
        if (low != low[0]).any() or (high != high[0]).any():
            return self._mixed_splits(low, offered)
        small, large, jobs = int(low[0]), int(high[0]), len(low)
        most = min(offered // small, jobs)
        splits: list[tuple[tuple[int, int], ...]] = [((small, count),) for count in _ladder(most)]
        if large > small and most == jobs:
            for gpus in _ladder(min(offered, jobs * large) - jobs * small):
                size, larger = divmod(jobs * small + gpus, jobs)
                even = Counter({size: jobs - larger, size + 1: larger})
                splits.append(tuple((n, c) for n, c in even.items() if c))
        if large > small and jobs > 1:
            splits += [((large, count),) for count in _ladder(min(offered // large, jobs))]
        return splits

    def _mixed_splits(self, low: Int, offered: int) -> list[tuple[tuple[int, int], ...]]:
        """Jobs that differ: the first so many in the order of start, each at its fewest GPUs."""
        fit = np.cumsum(low) <= offered
        return [tuple(sorted(Counter(low[:count].tolist()).items())) for count in _ladder(int(fit.sum()))]

    def _extensions(self) -> Iterator[Row]:
        """All jobs run: enlarge the one with the most left, which costs it a restart."""
        s = self.s
        room = s.job_gpus_max[self.at] - s.job_held[self.at]
        grower = growing_job(s, self.a)
        if grower == NONE:
            return
        j = int(np.searchsorted(s.job_id, grower))
        job = j - self.at.start
        gpus = np.flatnonzero((s.gpu_job == s.job_id[j]).any(axis=1))
        machine = int(s.gpu_machine[gpus[0]])
        k, now_at = int(s.machine_type[machine]), int(s.job_locality[j])
        restart = s.restart_s + float(s.speeds.checkpoint_s[s.job_config[j]])
        if s.job_until[j] - s.now < 2 * restart:
            return
        for span in SPANS:
            if span < now_at:
                continue
            anchor = (machine, int(s.machine_rack[machine]), NONE)[span - 1]
            within = (np.arange(len(self.offer)) == anchor, s.machine_rack == anchor, np.ones(len(self.offer), bool))[span - 1]
            offered = int(self.offer[within & (s.machine_type == k)].sum())
            for more in range(1, min(int(room[job]), offered) + 1):
                speed = float(self.scale[k, s.job_held[j] + more]) / self.slowdown[span]
                gang = float(self.scale[k, s.app_gang_max[self.a]]) / self.slowdown[span]
                total = self.held - float(self.worth[self.running == job].sum()) + speed
                yield Row(((more, 1),), int(span), k, restart + float(self.finish.left_on(total, gang, self.a)), anchor)


def _worth(s: Snapshot, at: slice, running: Int) -> Float:
    """Reference GPUs that each held gang is worth."""
    if not len(running):
        return np.zeros(0)
    rows = running + at.start
    first = np.array([np.flatnonzero((s.gpu_job == j).any(axis=1))[0] for j in s.job_id[rows].tolist()])
    types = s.machine_type[s.gpu_machine[first]]
    return s.speeds.effective(s.job_config[rows], types, s.job_held[rows], s.job_locality[rows])


def _ladder(most: int) -> list[int]:
    """1, 2, ..., most, thinned geometrically beyond what a bid's rows can tell."""
    fine = ROWS // 4
    if most <= fine:
        return list(range(1, most + 1))
    steps = np.unique(np.round(np.geomspace(fine, most, fine)).astype(int))
    return [*range(1, fine), *steps.tolist()]


def _pack(s: Snapshot, finish: FinishTime, apps: Int, tables: Sequence[Sequence[Row]]) -> Bids:
    rows = [row for table in tables for row in table]
    bidder = np.repeat(np.arange(len(tables)), [len(t) for t in tables])
    left = np.array([row.left for row in rows])
    base = -np.log(finish.rho[apps])
    rho = finish.rho_of(left, apps[bidder]) if len(rows) else np.zeros(0)
    gangs = [gang for row in rows for gang in row.gangs]
    expiring = _expiring(s, apps)
    return Bids(
        base=base,
        expiring_bidder=expiring[0], expiring_machine=expiring[1], expiring_gpus=expiring[2],
        row_bidder=bidder, row_span=np.array([row.span for row in rows], dtype=np.int64),
        row_type=np.array([row.gpu_type for row in rows], dtype=np.int64),
        row_anchor=np.array([row.anchor for row in rows], dtype=np.int64), row_value=-np.log(rho),
        gang_ptr=np.concatenate([[0], np.cumsum([len(row.gangs) for row in rows])]).astype(np.int64),
        gang_size=np.array([size for size, _ in gangs], dtype=np.int64),
        gang_count=np.array([count for _, count in gangs], dtype=np.int64),
    )  # fmt: skip


def _expiring(s: Snapshot, apps: Int) -> tuple[Int, Int, Int]:
    """(bidder, machine, GPUs) of what the bidders hold until this instant."""
    g = np.flatnonzero(s.gpu_free & (s.gpu_job[:, 0] >= 0))
    row = np.searchsorted(s.job_id, s.gpu_job[g, 0])
    bidder = np.searchsorted(apps, s.job_app[np.minimum(row, s.jobs - 1)])
    mine = (bidder < len(apps)) & (apps[np.minimum(bidder, len(apps) - 1)] == s.job_app[np.minimum(row, s.jobs - 1)])
    key = bidder[mine] * len(s.free) + s.gpu_machine[g[mine]]
    pairs, count = np.unique(key, return_counts=True)
    return pairs // len(s.free), pairs % len(s.free), count
