"""Intent -> Placement: exact GPUs and, where the app's own scheduler chooses, exact jobs.

A gang that stands where one of its app's jobs stood until now renews that job. What no longer fits is dropped; the
GPUs stay free and the next decision has them.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from themis.core.intend import Gang
from themis.model.snapshot import Snapshot
from themis.model.units import NONE, Seconds
from themis.placement.packing import Counts, narrowest_of_types, pick_gpus
from themis.tuning.split import choose_job


@dataclass(frozen=True, slots=True, kw_only=True)
class Placed:
    """A gang on exact GPUs."""

    job: int
    gpus: tuple[int, ...]
    seat: int
    until: Seconds


def place(snapshot: Snapshot, gangs: Sequence[Gang]) -> list[Placed]:
    """Put the gangs on exact GPUs: renewals where they stand, then the others in order."""
    return _Placer(snapshot).run(gangs)


class _Placer:
    def __init__(self, snapshot: Snapshot) -> None:
        self.s = snapshot
        self.row_of = {int(j): r for r, j in enumerate(snapshot.job_id)}
        self.free: list[set[int]] = [set() for _ in snapshot.free]
        for g in np.flatnonzero(snapshot.gpu_free).tolist():
            self.free[snapshot.gpu_machine[g]].add(g)
        self.expiring: dict[int, tuple[int, ...]] = {}
        self.app_expiring: dict[int, list[int]] = {}
        for row in np.flatnonzero(snapshot.job_expiring > 0).tolist():
            j, app = int(snapshot.job_id[row]), int(snapshot.app_id[snapshot.job_app[row]])
            self.expiring[j] = snapshot.gangs[j]
            self.app_expiring.setdefault(app, []).append(j)
        self.taken: set[int] = set()
        self.out: list[Placed] = []

    def run(self, gangs: Sequence[Gang]) -> list[Placed]:
        rest = [gang for gang in gangs if not self._renew(gang)]
        for gang in rest:
            self._fresh(gang)
        return self.out

    def _renew(self, gang: Gang) -> bool:
        """Leave the gang where one of its app's expiring jobs already is."""
        if gang.extend:
            return False
        named = [j for j in (gang.job, gang.partner) if j != NONE]
        if any(j in self.taken for j in named):
            return False
        for j in named or self.app_expiring.get(gang.app, []):
            gpus = self.expiring.get(j, ())
            if j not in self.taken and len(gpus) == gang.gpus and self._stands(gang, gpus):
                self._put(gang, gang.job if named else j, gpus)
                return True
        return False

    def _stands(self, gang: Gang, gpus: tuple[int, ...]) -> bool:
        machines = self.s.gpu_machine[list(gpus)].tolist()
        if not all(g in self.free[n] for g, n in zip(gpus, machines)):
            return False
        if gang.gpu_type != NONE and self.s.machine_type[machines[0]] != gang.gpu_type:
            return False
        return gang.counts is None or Counter(machines) == dict(gang.counts)

    def _fresh(self, gang: Gang) -> None:
        counts = gang.counts if gang.counts is not None else self._choose(gang)
        if counts is None or any(len(self.free[n]) < c for n, c in counts):
            return
        job = gang.job
        if job == NONE:
            job = self._app_job(gang, int(self.s.machine_type[counts[0][0]]))
        if job in self.taken or job not in self.row_of or gang.partner in self.taken:
            return
        gpus = [g for n, c in counts for g in pick_gpus(sorted(self.free[n]), self.s.gpu_slot, c)]
        if gang.extend:
            if not self.s.job_held[self.row_of[job]]:
                return  # it lost its GPUs since the answer was asked for
            held = list(self.s.gangs[job])
            until = min(gang.until, float(self.s.job_until[self.row_of[job]]))
            self._take(gpus)
            self.taken.add(job)
            self.out.append(Placed(job=job, gpus=tuple(sorted(held + gpus)), seat=0, until=until))
            return
        self._put(gang, job, tuple(sorted(gpus)))

    def _choose(self, gang: Gang) -> Counts | None:
        free = np.array([len(f) for f in self.free], dtype=np.int64)
        if gang.job not in self.row_of:
            return None
        allowed: list[int] = np.flatnonzero(self.s.job_allowed[self.row_of[gang.job]]).tolist()
        types = [gang.gpu_type] if gang.gpu_type != NONE else allowed
        found = narrowest_of_types(free, self.s.machine_rack, self.s.machine_type, gang.gpus, types)
        return found[0] if found else None

    def _app_job(self, gang: Gang, gpu_type: int) -> int:
        s = self.s
        a = int(np.searchsorted(s.app_id, gang.app))
        if a >= s.apps or s.app_id[a] != gang.app:
            return NONE
        at = slice(s.job_ptr[a], s.job_ptr[a + 1])
        fits = (s.job_held[at] == 0) & (s.job_gpus_min[at] <= gang.gpus) & (gang.gpus <= s.job_gpus_max[at])
        fits &= s.job_allowed[at, gpu_type]
        if self.taken:
            fits &= [j not in self.taken for j in s.job_id[at].tolist()]
        return choose_job(s.job_id[at], s.job_left[at], s.job_expiring[at] > 0, fits, s.job_order[at])

    def _put(self, gang: Gang, job: int, gpus: tuple[int, ...]) -> None:
        self._take(gpus)
        self.taken.add(job)
        seat = self._seat(job, gang.partner, gpus)
        self.out.append(Placed(job=job, gpus=gpus, seat=seat, until=gang.until))
        if gang.partner != NONE:
            self.taken.add(gang.partner)
            self.out.append(Placed(job=gang.partner, gpus=gpus, seat=1 - seat, until=gang.until))

    def _seat(self, job: int, partner: int, gpus: tuple[int, ...]) -> int:
        """Whoever was on these GPUs keeps its seat, so that a new neighbour restarts nobody."""
        first, second = self.s.gpu_job[gpus[0]].tolist()
        return int(second == job or (partner != NONE and first == partner))

    def _take(self, gpus: Sequence[int]) -> None:
        for g in gpus:
            self.free[self.s.gpu_machine[g]].discard(g)
