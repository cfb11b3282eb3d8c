"""GPUs on offer and the jobs that may take them, read from the live state for one decision."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from themis.core import quota_limits
from themis.core.state import EPS, State
from themis.core.tables import RUNNING, WAITING
from themis.model.units import NONE, Bool, Int, Seconds


@dataclass(slots=True, kw_only=True)
class FreeGpus:
    """GPUs on offer and the jobs that could use them.

    Attributes
    ----------
    by : leases that end by then count as over. ``free`` : [G], in service, not leased beyond, no gang still stopping on them.
    blocked : jobs that wait but may not run now: see ``core.quota_limits``.
    """

    state: State
    by: Seconds
    free: Bool = field(init=False)
    blocked: Int = field(init=False)
    present: Int = field(init=False)
    """Jobs that wait or run."""
    ending: list[int] = field(init=False)
    """Jobs whose lease counts as over, rising."""
    stands: bool = field(init=False, default=False)
    """Each of these may keep its GPUs (``core.uncontested``)."""

    def __post_init__(self) -> None:
        s = self.state
        self.ending = s.ends.by(self.by + EPS)
        self.free, self.present = free_gpus(s, self.by, self.ending), s.present()
        self.blocked = np.zeros(0, dtype=np.int64)
        if s.quotas or s.at_once or s.delayed:
            why, _ = quota_limits.blocked(s, self.present)
            self.blocked = self.present[why > 0]

    def over(self, rows: Int) -> Bool:
        """[J], whether each job's lease, if it has one, counts as over."""
        out: Bool = self.state.jobs.until[rows] <= self.by + EPS
        return out

    def idle(self, rows: Int) -> Bool:
        """Whether each job could get GPUs: it waits, or its lease has expired; -1 (no job) always can. Any shape."""
        status = self.state.jobs.status[rows]
        out: Bool = (status == WAITING) | ((status == RUNNING) & self.over(rows)) | (rows == NONE)
        if len(self.blocked):
            out &= ~np.isin(rows, self.blocked)
        return out

    def idle_one(self, j: int) -> bool:
        """``idle`` of one job."""
        t = self.state.jobs.one
        status = t.status[j]
        ends = status == RUNNING and t.until[j] <= self.by + EPS
        return bool(status == WAITING or ends) and not (len(self.blocked) and j in self.blocked)

    def waiting(self) -> Int:
        """Jobs that could get GPUs."""
        out: Int = self.present[self.idle(self.present)]
        return out

    def may_run(self, j: int) -> bool:
        """True if there is such a job, and it runs or could."""
        s = self.state
        there = 0 <= j < s.jobs.size and bool(s.jobs.one.status[j] <= RUNNING)
        return there and not (len(self.blocked) and j in self.blocked)

    def wanted(self) -> bool:
        """True if any job could use more GPUs than it holds beyond this offer."""
        t, rows = self.state.jobs, self.present
        if (self.ending or t.waiting) and not (self.state.quotas or len(self.blocked)):
            return True
        held = np.where(t.until[rows] > self.by + EPS, t.gpus[rows], 0)
        more = held < t.gpus_max[rows]
        if self.state.quotas or len(self.blocked):
            why, room = quota_limits.blocked(self.state, rows)
            more = (why == 0) & (held < np.maximum(np.minimum(t.gpus_max[rows] - held, room) + held, t.gpus_min[rows]))
        return bool(more.any())


def free_gpus(s: State, by: Seconds, ending: Sequence[int] | None = None) -> Bool:
    """[G], see ``FreeGpus.free``; ``ending`` : as there, where it is known."""
    over = s.ends.by(by + EPS) if ending is None else ending
    open_ = s.open_gpus()
    free: Bool = open_ & ~s.taken
    if not over:
        return free
    out, may, leased, on, until = free.data, open_.data, s.leased_to, s.occupied_by, s.jobs.one.until
    seats, end = ((on[0], on[1], leased[1]), (on[1], on[0], leased[0])), by + EPS
    for j in over:
        here, beside, shares = seats[s.job_seat[j]]
        for g in s.job_gpus[j]:
            other, there, neighbour = shares[g], here[g], beside[g]
            stops = (there != NONE and there != j) or (neighbour != NONE and neighbour != other)
            out[g] = may[g] and not stops and (other == NONE or until[other] <= end)
    return free
