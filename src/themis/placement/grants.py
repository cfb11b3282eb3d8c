"""Build a ``GpuGrant`` gang by gang, for policies that hand out GPUs in some order of apps.

``Demand`` says what an app could still use, in the steps in which its scheduler would use it; ``Hand`` deals.
Renewals come first wherever the order of apps gives an app as many GPUs as before, so that no policy restarts gangs
that it could have left alone.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from themis.model.answers import GpuGrant
from themis.model.snapshot import Snapshot
from themis.model.units import NONE, Int, Seconds
from themis.placement.packing import Counts, narrowest_of_types


@dataclass(slots=True)
class Demand:
    """What one app can use beyond what it holds.

    ``gangs`` grow in place: each waiting job's smallest gang in the order of start, then one GPU more for each in turn.
    """

    low: list[int]
    high: list[int]
    gangs: list[int] = field(default_factory=list)
    turn: int = 0

    def next_step(self) -> int:
        """GPUs of the next step: a whole smallest gang, or one more for a gang that can grow; 0 when satisfied."""
        if len(self.gangs) < len(self.low):
            return self.low[len(self.gangs)]
        return 1 if any(g < h for g, h in zip(self.gangs, self.high)) else 0

    def take(self) -> None:
        """Take the next step."""
        if len(self.gangs) < len(self.low):
            self.gangs.append(self.low[len(self.gangs)])
            return
        for _ in range(len(self.gangs)):
            at = self.turn
            self.turn = (self.turn + 1) % len(self.gangs)
            if self.gangs[at] < self.high[at]:
                self.gangs[at] += 1
                return


def demand_of(s: Snapshot, a: int) -> Demand:
    """What app row ``a`` can use for its waiting jobs: warm ones first, then the longest."""
    at = slice(int(s.job_ptr[a]), int(s.job_ptr[a + 1]))
    waiting = np.flatnonzero(s.job_held[at] == 0)
    order = waiting[np.lexsort((-s.job_left[at][waiting], s.job_expiring[at][waiting] == 0))]
    return Demand(low=s.job_gpus_min[at][order].tolist(), high=s.job_gpus_max[at][order].tolist())


def waiting_apps(s: Snapshot) -> Int:
    """Rows of the apps that have a job without GPUs beyond this instant."""
    return np.unique(s.job_app[s.job_held == 0])


def lease_end(s: Snapshot, starving: bool) -> Seconds:
    """When leases given now end: a full lease from now, unless somebody starves.

    Where a gang is due but larger than the offer, leases given meanwhile end with the last one that runs, so that all
    of them are on offer together; nothing idles and no lease is cut short (decision 0004).
    """
    full = s.now + s.lease_s
    running = s.job_until[s.job_held > 0]
    return min(full, max(float(running.max()), s.now + s.tick_s)) if starving and len(running) else full


class Hand:
    """Free GPUs being dealt to apps."""

    def __init__(self, snapshot: Snapshot) -> None:
        self.s = snapshot
        self.free: Int = snapshot.free.copy()
        self.rows: list[tuple[int, int, int, int, float, int]] = []
        self.gangs = 0
        self.standing: dict[int, list[tuple[int, Counts]]] = _standing(snapshot)

    @property
    def left(self) -> int:
        """GPUs not yet dealt."""
        return int(self.free.sum())

    def deal(self, wants: Sequence[tuple[int, Sequence[int]]], until: Seconds) -> None:
        """Place gangs: (app row, gang sizes) in order of precedence; what has no room is left out.

        Gangs that can stay where the app's expiring gangs stand do; the others follow, larger ones first.
        """
        rest: list[tuple[int, int, int]] = []
        for rank, (a, sizes) in enumerate(wants):
            rest += [(-size, rank, a) for size in sizes if not self.stay(a, size, until)]
        for minus, _, a in sorted(rest):
            self.put(a, -minus, until)

    def put(self, a: int, gpus: int, until: Seconds) -> bool:
        """Place one gang where it is best; False if there is no room."""
        s = self.s
        allowed = s.job_allowed[s.job_ptr[a] : s.job_ptr[a + 1]].any(axis=0)
        found = narrowest_of_types(self.free, s.machine_rack, s.machine_type, gpus, np.flatnonzero(allowed).tolist())
        if found is None:
            return False
        self.give(a, found[0], until)
        return True

    def give(self, a: int, counts: Counts, until: Seconds, extend: int = NONE) -> None:
        """Record one gang."""
        for n, c in counts:
            self.free[n] -= c
            self.rows.append((int(self.s.app_id[a]), self.gangs, n, c, until, extend))
        self.gangs += 1

    def grant(self) -> GpuGrant:
        """Everything dealt so far."""
        columns = list(zip(*self.rows)) or [()] * 6
        app, gang, machine, gpus, until, extend = columns
        whole = (np.array(c, dtype=np.int64) for c in (app, gang, machine, gpus, extend))
        a, g, n, c, e = whole
        return GpuGrant(app=a, gang=g, machine=n, gpus=c, until=np.array(until, dtype=np.float64), extend=e)

    def stay_or_put(self, a: int, gpus: int, until: Seconds) -> bool:
        """Place one gang where one of its app's stands until now, or else where it is best."""
        return self.stay(a, gpus, until) or self.put(a, gpus, until)

    def stay(self, a: int, size: int, until: Seconds) -> bool:
        """Leave a gang of the app where it stands, if one of this size does."""
        places = self.standing.get(a, [])
        for i, (gpus, counts) in enumerate(places):
            if gpus == size and all(self.free[n] >= c for n, c in counts):
                places.pop(i)
                self.give(a, counts, until)
                return True
        return False


def _standing(s: Snapshot) -> dict[int, list[tuple[int, Counts]]]:
    """Where each app's expiring gangs stand, by app row."""
    out: dict[int, list[tuple[int, Counts]]] = defaultdict(list)
    for row in np.flatnonzero(s.job_expiring > 0).tolist():
        gpus = list(s.gangs[int(s.job_id[row])])
        if s.gpu_free[gpus].all():
            counts = tuple(sorted(Counter(s.gpu_machine[gpus].tolist()).items()))
            out[int(s.job_app[row])].append((len(gpus), counts))
    return out
