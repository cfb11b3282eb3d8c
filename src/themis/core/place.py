"""Intent -> Placement: exact GPUs and, where the app's own scheduler chooses, exact jobs.

A gang that stands where one of its app's jobs stood until now renews that job. What no longer fits is dropped; the
GPUs stay free and the next decision has them.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from functools import cached_property
from operator import attrgetter
from typing import NamedTuple

import numpy as np

from themis.core.offer import FreeGpus
from themis.core.placed_gangs import Placed, WantedGang
from themis.core.state import EPS, State
from themis.core.tables import RUNNING
from themis.model.units import NONE, Bool, Int
from themis.policies.placement.packing import Counts, fullest, narrowest, narrowest_of_types, pick_gpus
from themis.policies.tuning.split import in_order

_FEW = 32
"""Number of machines up to which a loop over them is faster than arrays."""


def place(state: State, gangs: Sequence[WantedGang], offer: FreeGpus) -> list[Placed]:
    """Put the gangs on GPUs of the offer: renewals where they stand, then the others in order."""
    return _Placer(state, offer).run(gangs)


_gpus_of = attrgetter("gpus")


def _named(gang: WantedGang) -> bool:
    """True for one job's gang alone, without placement limits: the common case in rounds, and where leases are renewed."""
    return gang.counts is None and gang.job != NONE and gang.partner == NONE and not gang.extend


_Candidate = tuple[int, int, int, list[bool]]
"""A job, its fewest and most GPUs, and which GPU types it may use."""


class _Lines(NamedTuple):
    """Jobs of several apps, each app's in the order of its choice, and where each app's are."""

    jobs: list[_Candidate]
    spans: dict[int, tuple[int, int]]


class _Placer:
    """Placement from the live state, not from a snapshot: rounds are assigned far more often than shares are solved."""

    def __init__(self, state: State, offer: FreeGpus) -> None:
        self.s, self.offer = state, offer
        self.open = bytearray(offer.free.tobytes())
        """[G], 1 while a GPU is on offer and not yet given away."""
        self.room: Int = np.bincount(state.gpu_machine[offer.free], minlength=len(state.machines))
        self.room_of = self.room.data
        self.on: dict[int, list[int]] = {}
        """GPUs of a machine that were open when it was first looked at, rising."""
        self.of_type: dict[int, Bool] = {}
        self.usable: dict[tuple[int, ...], Int] = {}
        """Machines of these types, rising."""
        self.taken: set[int] = set()
        self.choosing: set[int] = set()
        """Apps with several jobs whose own schedulers choose the job that gets a gang."""
        self.out: list[Placed] = []
        self.unplaced: list[WantedGang] = []
        """Gangs for which no machine has room now."""

    def run(self, gangs: Sequence[WantedGang]) -> list[Placed]:
        jobs, apps = self.s.apps.one.jobs, self.s.apps.size
        self.choosing = {g.app for g in gangs if g.job == NONE and 0 <= g.app < apps and jobs[g.app] > 1}
        if self.s.on_machine:
            gangs = [self._on_its_own(gang) for gang in gangs]
        near = [gang for gang in gangs if gang.near]
        done = self._on_one_machine(near) if near else set[int]()
        gangs = [gang for gang in gangs if gang.job not in done] if done else gangs
        if self.s.one_machine:
            gangs = self._whole_first(gangs)
        rest = [gang for gang in gangs if not (self._stays(gang) if _named(gang) else self._renew(gang))]
        for gang in rest:
            if not (gang.gpus == 1 and gang.gpu_type != NONE and _named(gang) and self._one(gang)):
                self._fresh(gang)
        if self.unplaced:
            self._reserve()
        return self.out

    def _on_its_own(self, gang: WantedGang) -> WantedGang:
        """A gang whose app runs on one named machine, as if the answer named that one; policies plan without this limit."""
        s, j = self.s, self._job_of(gang)
        n = s.on_machine.get(s.jobs.one.app[j]) if 0 <= j < s.jobs.size else None
        if n is None:
            return gang
        return gang._replace(counts=((n, gang.gpus),), gpu_type=s.type_of[n], near=None)

    def _whole(self, gang: WantedGang) -> bool:
        """True if the gang is one process, which has all its GPUs on one machine."""
        return self._job_of(gang) in self.s.one_machine or gang.partner in self.s.one_machine

    def _job_of(self, gang: WantedGang) -> int:
        """The gang's job, or one that stands for those of its app."""
        named = gang.job != NONE or not 0 <= gang.app < self.s.apps.size
        return gang.job if named else self.s.apps.one.first_job[gang.app]

    def _whole_first(self, gangs: Sequence[WantedGang]) -> list[WantedGang]:
        """Place gangs that need one machine before the others take its GPUs in pieces; returns the others.

        Policies plan without this limit. A gang that is moved out of the way is placed as if its answer named no machines.
        """
        s, rest, whole = self.s, list[WantedGang](), list[WantedGang]()
        for gang in gangs:
            if gang.gpus == 1 or gang.extend or not self._whole(gang):
                rest.append(gang)
            elif gang.counts is not None and len(gang.counts) > 1:
                whole.append(gang._replace(counts=None, gpu_type=s.type_of[gang.counts[0][0]]))
            else:
                whole.append(gang)
        moves = [gang for gang in whole if not self._renew(gang)]
        planned = np.zeros(len(s.machines), dtype=np.int64)
        for gang in (*rest, *moves):
            stands = [(s.machine_of[g], 1) for g in s.job_gpus.get(gang.job, ()) if self.open[g]]
            for n, c in stands or gang.counts or ():
                planned[n] += c
        for gang in sorted(moves, key=lambda gang: (gang.counts is None, -gang.gpus)):
            if gang.counts is None and (found := self._machine_for(gang, planned)) is not None:
                gang = gang._replace(counts=(found,), gpus=found[1])
            before = len(self.out)
            if gang.counts is not None:
                self._fresh(gang)
            if len(self.out) == before:
                self.unplaced.append(gang)
        return [
            gang._replace(counts=None, gpu_type=s.type_of[gang.counts[0][0]])
            if gang.counts and not gang.extend and any(self.room_of[n] < c for n, c in gang.counts)
            else gang
            for gang in rest
        ]

    def _machine_for(self, gang: WantedGang, planned: Int) -> tuple[int, int] | None:
        """The machine for the whole gang where it displaces fewest GPUs of others, the fullest of these, and its GPUs there.

        An elastic gang that fits nowhere takes fewer GPUs, as many as one machine has. ``planned`` : [N], GPUs for others.
        """
        usable = self._usable(gang)
        room = self.room[usable]
        gpus = min(gang.gpus, int(room.max(initial=0)))
        if gpus < gang.gpus and gpus < self.s.jobs.one.gpus_min[self._job_of(gang)]:
            return None
        fits = usable[room >= gpus]
        room = self.room[fits]
        return int(fits[np.lexsort((room, np.maximum(gpus - room + planned[fits], 0)))[0]]), gpus

    def _usable(self, gang: WantedGang) -> Int:
        """Machines that the gang may use, rising."""
        s, types = self.s, tuple[int, ...]((gang.gpu_type,))
        if gang.gpu_type == NONE:
            types = tuple(np.flatnonzero(s.allowed(np.array([self._job_of(gang)]))[0]).tolist())
        if types not in self.usable:
            self.usable[types] = np.flatnonzero(np.isin(s.machine_type, types))
        return self.usable[types]

    def _reserve(self) -> None:
        """Have leases on one machine end together with the last that runs there, for each gang that found no machine.

        Else gangs that end one after the other would be followed by others, and the machine never be free as a whole.
        """
        s, ends, reserved = self.s, np.zeros(len(self.s.machines)), dict[int, float]()
        last = np.where(s.gpu_job != NONE, s.jobs.until[s.gpu_job], 0.0).max(axis=1)
        runs = last > self.offer.by + EPS
        np.maximum.at(ends, s.gpu_machine[runs], last[runs])
        for gang in self.unplaced:
            usable = self._usable(gang)
            usable = usable[(ends[usable] > 0) & (s.machine_size[usable] >= gang.gpus)]
            if len(usable):
                best = int(usable[ends[usable].argmin()])
                reserved[best], ends[best] = float(ends[best]), 0.0
        self.out = [
            p._replace(until=min(p.until, *(reserved.get(s.machine_of[g], p.until) for g in p.gpus))) for p in self.out
        ]

    def _on_one_machine(self, near: Sequence[WantedGang]) -> set[int]:
        """Gangs that are owed time on one machine: as many as fit, those first that are owed most. Returns the jobs placed.

        Of these, gangs that stand on one machine stay. The others are placed as any gangs are, after them.
        """
        s, room, first = self.s, self.room.tolist(), []
        for gang in sorted(near, key=lambda gang: -(gang.near or 0.0)):
            n = fullest(room, s.machines_of[gang.gpu_type], gang.gpus)
            if n != NONE:
                room[n] -= gang.gpus
                first.append(gang)
        moves = []
        for gang in first:
            stands = {s.machine_of[g] for g in s.job_gpus.get(gang.job, ())}
            if len(stands) != 1 or not self._stays(gang):
                moves.append(gang)
        for gang in sorted(moves, key=_gpus_of, reverse=True):
            if fullest(self.room_of, s.machines_of[gang.gpu_type], gang.gpus) != NONE:
                self._fresh(gang)
        return {gang.job for gang in first if gang.job in self.taken}

    def _stays(self, gang: WantedGang) -> bool:
        """``_renew`` of a gang that is one job's, wherever it stands."""
        j = gang.job
        gpus = self.s.job_gpus.get(j)
        if gpus is None or len(gpus) != gang.gpus or j in self.taken:
            return False
        open_, machine_of, room_of = self.open, self.s.machine_of, self.room_of
        if gang.gpu_type != NONE and self.s.type_of[machine_of[gpus[0]]] != gang.gpu_type:
            return False
        for g in gpus:
            if not open_[g]:
                return False
        for g in gpus:
            open_[g] = 0
            room_of[machine_of[g]] -= 1
        self.taken.add(j)
        self.out.append(Placed(j, gpus, int(self.s.leased_to[1][gpus[0]] == j), gang.until))
        return True

    def _one(self, gang: WantedGang) -> bool:
        """``_fresh`` of one GPU on a type of few machines, of one slot each; false where it is for ``_fresh``."""
        s, j = self.s, gang.job
        machines = s.machines_of[gang.gpu_type]
        if len(machines) > _FEW:
            return False
        n = fullest(self.room_of, machines, 1)
        if n == NONE or s.machines[n].slot < s.machines[n].gpus or n in s.scattered:
            return False
        if j not in self.taken and self.offer.may_run(j):
            first = s.machine_first[n]
            g = self.open.find(1, first, first + s.machines[n].gpus)
            self.open[g] = 0
            self.room_of[n] -= 1
            self.taken.add(j)
            self.out.append(Placed(j, (g,), int(s.leased_to[1][g] == j), gang.until))
        return True

    def _renew(self, gang: WantedGang) -> bool:
        """Leave the gang where one of its app's expiring jobs already is."""
        if gang.extend:
            return False
        named = [gang.job] if gang.partner == NONE else [gang.job, gang.partner]
        if gang.job == NONE:
            named = self._expiring(gang.app)
        elif not self.taken.isdisjoint(named):
            return False
        size, held = gang.gpus, self.s.job_gpus
        for j in named:
            gpus = held.get(j, ())
            if len(gpus) == size and j not in self.taken and self._stands(gang, gpus):
                self._put(gang, j if gang.job == NONE else gang.job, gpus)
                return True
        return False

    def _expiring(self, a: int) -> list[int]:
        """Jobs of an app whose leases end at this instant."""
        if not 0 <= a < self.s.apps.size:
            return []
        apps, t = self.s.apps.one, self.s.jobs.one
        if apps.jobs[a] == 1:
            # Single jobs are many: no arrays of one.
            j = apps.first_job[a]
            return [j] if t.status[j] == RUNNING and t.until[j] <= self.offer.by + EPS else []
        return self._ending.get(a, [])

    @cached_property
    def _ending(self) -> dict[int, list[int]]:
        """Jobs whose leases end at this instant, rising, by app."""
        out: dict[int, list[int]] = {}
        t = self.s.jobs.one
        for j in self.offer.ending:
            out.setdefault(t.app[j], []).append(j)
        return out

    def _stands(self, gang: WantedGang, gpus: tuple[int, ...]) -> bool:
        # An offered GPU that a job holds is one whose lease ends now.
        machine_of, open_ = self.s.machine_of, self.open
        if gang.gpu_type != NONE and self.s.type_of[machine_of[gpus[0]]] != gang.gpu_type:
            return False
        for g in gpus:
            if not open_[g]:
                return False
        if gang.counts is None:
            return True
        if len(gang.counts) == 1:
            # As many GPUs as the gang has, so it is enough that all are there.
            n = gang.counts[0][0]
            for g in gpus:  # noqa: SIM110 - a generator takes twice the time
                if machine_of[g] != n:
                    return False
            return True
        return Counter(machine_of[g] for g in gpus) == dict(gang.counts)

    def _fresh(self, gang: WantedGang) -> None:
        counts = gang.counts if gang.counts is not None else self._choose(gang)
        if counts is None:
            return
        for n, c in counts:
            if self.room_of[n] < c:
                return
        job = gang.job
        if job == NONE:
            job = self._app_job(gang, self.s.type_of[counts[0][0]])
        if job in self.taken or not self.offer.may_run(job) or gang.partner in self.taken:
            return
        gpus = [g for n, c in counts for g in pick_gpus(self._free(n), self.s.slot_of, c)]
        if self.s.one_machine and job in self.s.one_machine:
            stands = self.s.job_gpus.get(job, ()) if gang.extend else ()
            if len({n for n, _ in counts} | {self.s.machine_of[g] for g in stands}) > 1:
                return
        if gang.extend:
            if job not in self.s.job_gpus or self.s.jobs.until[job] <= self.offer.by + EPS:
                return  # it lost its GPUs since the answer was asked for
            held = list(self.s.job_gpus[job])
            until = min(gang.until, float(self.s.jobs.until[job]))
            self._take(gpus)
            self.taken.add(job)
            self.out.append(Placed(job=job, gpus=tuple(sorted(held + gpus)), seat=0, until=until))
            return
        self._put(gang, job, tuple(sorted(gpus)))

    def _free(self, n: int) -> list[int]:
        if n not in self.on:
            self.on[n] = self.s.gpus_of[n]
        self.on[n] = free = [g for g in self.on[n] if self.open[g]]
        return free

    def _choose(self, gang: WantedGang) -> Counts | None:
        s = self.s
        if not self.offer.may_run(gang.job):
            return None
        if gang.gpu_type != NONE:
            machines = s.machines_of[gang.gpu_type]
            if len(machines) <= _FEW and (n := fullest(self.room_of, machines, gang.gpus)) != NONE:
                return ((n, gang.gpus),)
            found = narrowest(self.room, s.machine_rack, gang.gpus, self._machines(gang.gpu_type))
        else:
            allowed: list[int] = np.flatnonzero(s.allowed(np.array([gang.job]))[0]).tolist()
            found = narrowest_of_types(self.room, s.machine_rack, s.machine_type, gang.gpus, allowed)
        return found[0] if found else None

    def _machines(self, gpu_type: int) -> Bool:
        if gpu_type not in self.of_type:
            self.of_type[gpu_type] = self.s.machine_type == gpu_type
        return self.of_type[gpu_type]

    def _app_job(self, gang: WantedGang, gpu_type: int) -> int:
        """The job that the app's own scheduler gives the gang to."""
        s, t = self.s, self.s.jobs
        if not 0 <= gang.app < s.apps.size:
            return NONE
        if s.apps.one.jobs[gang.app] == 1:
            # No arrays of one, as in ``_expiring``.
            j, one = s.apps.one.first_job[gang.app], t.one
            fits_one = (
                self.offer.idle_one(j) and one.gpus_min[j] <= gang.gpus <= one.gpus_max[j] and s.may_use(j, gpu_type)
            )
            return j if fits_one and j not in self.taken else NONE
        for j, least, most, may in self._line(gang.app):
            if least <= gang.gpus <= most and may[gpu_type] and j not in self.taken:
                return j
        return NONE

    def _line(self, a: int) -> Sequence[_Candidate]:
        """An app's jobs that could get a gang, in the order in which its own scheduler chooses (``policies.tuning.split``)."""
        first, end = self._lines.spans.get(a, (0, 0))
        return self._lines.jobs[first:end]

    @cached_property
    def _lines(self) -> _Lines:
        """Lines of all apps whose own schedulers choose in this decision."""
        s, t = self.s, self.s.jobs
        apps = np.array(sorted(self.choosing), dtype=np.int64)
        first, count = s.apps.first_job[apps], s.apps.jobs[apps]
        jobs = np.repeat(first - (np.cumsum(count) - count), count) + np.arange(int(count.sum()))
        jobs = jobs[self.offer.idle(jobs)]
        over = t.status[jobs] == RUNNING  # of those that could get GPUs
        jobs = jobs[in_order(jobs, s.work_left(jobs), over, t.order[jobs], t.app[jobs])]
        low, high, may = t.gpus_min[jobs].tolist(), t.gpus_max[jobs].tolist(), s.allowed(jobs).tolist()
        ends = np.searchsorted(t.app[jobs], apps, side="right").tolist()
        begins = np.searchsorted(t.app[jobs], apps, side="left").tolist()
        return _Lines(list(zip(jobs.tolist(), low, high, may)), dict(zip(apps.tolist(), zip(begins, ends))))

    def _put(self, gang: WantedGang, job: int, gpus: tuple[int, ...]) -> None:
        self._take(gpus)
        self.taken.add(job)
        seat = self._seat(job, gang.partner, gpus)
        self.out.append(Placed(job, gpus, seat, gang.until))
        if gang.partner != NONE:
            self.taken.add(gang.partner)
            self.out.append(Placed(gang.partner, gpus, 1 - seat, gang.until))

    def _seat(self, job: int, partner: int, gpus: tuple[int, ...]) -> int:
        """The job that was on these GPUs keeps its seat, so that a new neighbour restarts no job."""
        (one, other), g = self.s.leased_to, gpus[0]
        return int(other[g] == job or (partner != NONE and one[g] == partner))

    def _take(self, gpus: Sequence[int]) -> None:
        open_, room_of, machine_of = self.open, self.room_of, self.s.machine_of
        for g in gpus:
            if open_[g]:
                open_[g] = 0
                room_of[machine_of[g]] -= 1
