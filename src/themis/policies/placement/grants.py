"""Build a ``GpuGrant`` gang by gang, for policies that hand out GPUs in some order of apps.

``Demand`` says what an app could still use, in the steps in which its scheduler would use it; ``Allocator`` places them.
Renewals come first wherever the order of apps gives an app as many GPUs as before, so that no policy restarts gangs
that it could have left alone.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property

import numpy as np

from themis.model.answers import GpuGrant
from themis.model.snapshot import Snapshot
from themis.model.units import NONE, Int, Locality, Seconds, end_of_lease
from themis.policies.placement.blind import Placing, blind_counts
from themis.policies.placement.packing import Counts
from themis.policies.placement.room import Room


@dataclass(slots=True)
class Demand:
    """GPUs that one app can use beyond those that it holds.

    ``gangs`` grow in place: first each waiting job's smallest gang in the order of start, then one GPU more for each in
    turn.
    """

    low: list[int]
    high: list[int]
    gangs: list[int] = field(default_factory=list)
    turn: int = 0

    def next_step(self) -> int:
        """GPUs of the next step: a whole smallest gang, or one more for a gang that can grow; 0 when satisfied."""
        if len(self.gangs) < len(self.low):
            return self.low[len(self.gangs)]
        for gpus, most in zip(self.gangs, self.high):
            if gpus < most:
                return 1
        return 0

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
    """Demand of app row ``a`` for its waiting jobs: warm ones first, then the longest."""
    begin, end = s.job_ptr.item(a), s.job_ptr.item(a + 1)
    if end - begin == 1 and not s.job_held.item(begin):
        return Demand([s.job_gpus_min.item(begin)], [s.job_gpus_max.item(begin)])
    at = slice(begin, end)
    waiting = np.flatnonzero(s.job_held[at] == 0)
    order = waiting[np.lexsort((-s.job_left[at][waiting], s.job_expiring[at][waiting] == 0))]
    return Demand(low=s.job_gpus_min[at][order].tolist(), high=s.job_gpus_max[at][order].tolist())


def demands_of(s: Snapshot, apps: Int) -> dict[int, Demand]:
    """Demand of each of these app rows."""
    job, first = jobs_of(s, apps)
    number = np.repeat(np.arange(len(apps)), np.diff(np.append(first, len(job))))
    waits = s.job_held[job] == 0
    job, number = job[waits], number[waits]
    job = job[np.lexsort((-s.job_left[job], s.job_expiring[job] == 0, number))]
    low, high = s.job_gpus_min[job].tolist(), s.job_gpus_max[job].tolist()
    ends = np.cumsum(np.bincount(number, minlength=len(apps))).tolist()
    return {
        a: Demand(low=low[begin:end], high=high[begin:end]) for a, begin, end in zip(apps.tolist(), [0, *ends], ends)
    }


def jobs_of(s: Snapshot, apps: Int) -> tuple[Int, Int]:
    """Job rows of these app rows, one app's after another's, and where each app's begin."""
    begin = s.job_ptr[apps]
    count = s.job_ptr[apps + 1] - begin
    first: Int = np.cumsum(count) - count
    return np.repeat(begin - first, count) + np.arange(int(count.sum())), first


def waiting_apps(s: Snapshot) -> Int:
    """Rows of the apps that have a job without GPUs beyond this instant."""
    out: Int = np.logical_or.reduceat(s.job_held == 0, s.job_ptr[:-1]).nonzero()[0]
    return out


def least_waiting(s: Snapshot) -> Int:
    """[A], GPUs of the smallest gang that waits; 0 where none does: such an app may still grow."""
    none = np.iinfo(np.int64).max
    least: Int = np.minimum.reduceat(np.where(s.job_held == 0, s.job_gpus_min, none), s.job_ptr[:-1])
    return np.where(least == none, 0, least)


def lease_end(s: Snapshot) -> Seconds:
    """End of leases given now: all end together, at the next step (decision 138)."""
    return end_of_lease(s.now, s.lease_s, s.step_s)


class Allocator:
    """Free GPUs while they are allocated to apps."""

    def __init__(self, snapshot: Snapshot, placement: Placing = Placing.PACKED) -> None:
        self.s = snapshot
        self.blind = placement is Placing.BLIND
        self.free: Int = snapshot.free.copy()
        self._free = self.free.data
        """The same, one cell at a time."""
        self.left = int(self.free.sum())
        """GPUs not yet allocated."""
        self.rows: list[tuple[int, int, int, int, float, int]] = []
        self.gangs = 0
        self._served: set[int] = set()
        self._alike: dict[int, tuple[int, int] | None] = {}
        """Cache of ``_alike_gangs`` by app row; valid because snapshots do not change."""
        self.standing: dict[int, list[tuple[int, Counts]]] = _standing(snapshot)

    def served(self) -> Int:
        """Rows of the apps that were allocated something."""
        return np.array(sorted(self._served), dtype=np.int64)

    def given(self) -> dict[int, list[tuple[int, int, int]]]:
        """(GPUs, GPU type, locality) of the gangs allocated to waiting jobs, by app row."""
        s, out = self.s, defaultdict[int, list[tuple[int, int, int]]](list)
        gangs = defaultdict[tuple[int, int], list[tuple[int, int]]](list)
        for app, gang, n, c, _, extend in self.rows:
            if extend == NONE:
                gangs[app, gang].append((n, c))
        for (app, _), counts in gangs.items():
            size, span = sum(c for _, c in counts), self._span(tuple(counts))
            out[int(np.searchsorted(s.app_id, app))].append((size, int(s.machine_type[counts[0][0]]), int(span)))
        return out

    def grant(self) -> GpuGrant:
        """All allocations so far."""
        columns = list(zip(*self.rows)) or [()] * 6
        app, gang, machine, gpus, until, extend = columns
        whole = (np.array(c, dtype=np.int64) for c in (app, gang, machine, gpus, extend))
        a, g, n, c, e = whole
        return GpuGrant(app=a, gang=g, machine=n, gpus=c, until=np.array(until, dtype=np.float64), extend=e)

    def allocate(self, wants: Sequence[tuple[int, Sequence[int]]], until: Seconds) -> None:
        """Place gangs: (app row, gang sizes) in order of precedence; what has no room is left out.

        Gangs that can stay where the app's expiring gangs stand do; the others follow, larger ones first.
        """
        rest: list[tuple[int, int, int]] = []
        for rank, (a, sizes) in enumerate(wants):
            rest += [(-size, rank, a) for size in sizes if not self.stay(a, size, until)]
        for minus, _, a in sorted(rest):
            self.put(a, -minus, until)

    def stay_or_put(self, a: int, gpus: int, until: Seconds) -> bool:
        """Place one gang where it is best, the restart that a move costs included; False if there is no room."""
        return self.stay(a, gpus, until) or self.put(a, gpus, until)

    def stay(self, a: int, size: int, until: Seconds) -> bool:
        """Leave a gang of the app where it stands, if one of this size does and a better place is not worth the move."""
        counts = self._stays(a, size)
        if counts is None:
            return False
        self.give(a, counts, until)
        return True

    def home_unless_better(self, a: int, size: int) -> tuple[Counts, Locality] | None:
        """Place of an expiring gang of the app that has this size, if there is one and no better place is worth the move."""
        counts = self._stays(a, size)
        return None if counts is None else (counts, self._span(counts))

    def _stays(self, a: int, size: int) -> Counts | None:
        counts = self.home(a, size, Locality.CROSS_RACK)
        return None if counts is None or self._worth_moving(a, counts) else counts

    def put(self, a: int, gpus: int, until: Seconds) -> bool:
        """Place one gang where it is best; False if there is no room."""
        found = self.best_place(a, gpus)
        if found is None:
            return False
        self.give(a, self.home(a, sum(c for _, c in found[0]), found[1]) or found[0], until)
        return True

    def give(self, a: int, counts: Counts, until: Seconds, extend: int = NONE) -> None:
        """Record one gang."""
        if standing := self.standing.get(a):
            stood = (sum(c for _, c in counts), counts)
            if stood in standing:
                standing.remove(stood)
        free, app, room = self._free, self.s.app_id.item(a), self.__dict__.get("_room")
        for n, c in counts:
            free[n] -= c
            self.left -= c
            if room is not None:
                room.take(n, c)
            self.rows.append((app, self.gangs, n, c, until, extend))
        self.gangs += 1
        self._served.add(a)

    def home(self, a: int, size: int, locality: Locality) -> Counts | None:
        """Place of an expiring gang of the app that has this size and spans at most ``locality``, if there is one."""
        for gpus, counts in self.standing.get(a, ()):
            if gpus == size and self._fits(counts) and (len(counts) == 1 or self._span(counts) <= locality):
                return counts
        return None

    def _fits(self, counts: Counts) -> bool:
        for n, c in counts:  # noqa: SIM110 - a generator takes twice the time
            if self._free[n] < c:
                return False
        return True

    def best_place(self, a: int, gpus: int, fewest: Sequence[int] | None = None) -> tuple[Counts, Locality] | None:
        """Place in which a gang of up to ``gpus`` GPUs trains fastest now, or GPUs drawn blindly; None without room.

        An elastic gang that would have to spread takes fewer GPUs closer together when these are worth more: no app's
        scheduler accepts GPUs that slow its job down, whatever the policy. So does one that no type has room for.

        ``fewest`` : ``least`` of the same, where it is known.
        """
        s, fewest = self.s, self.least(a, gpus) if fewest is None else fewest
        if self.blind:
            drawn = blind_counts(self.free, s.machine_type, gpus, np.array(fewest), (s.seed, s.round, self.gangs, a))
            return (drawn, self._span(drawn)) if drawn else None
        types = [k for k, low in enumerate(fewest) if low <= gpus]
        room = self._room
        best = room.narrowest_of_types(gpus, types)
        if min(fewest) >= gpus or (best is not None and best[1] <= Locality.MACHINE):
            return best
        config = int(s.job_config[s.job_ptr[a]])
        worth = self._worth(config, gpus, best) if best else 0.0
        for k in types:
            for most in {room.largest(k), int(room.by_rack[k].max()), room.total[k]}:
                if fewest[k] <= most < gpus:
                    closer = room.narrowest(k, most)
                    if closer is not None and self._worth(config, most, closer) > worth:
                        best, worth = closer, self._worth(config, most, closer)
        return best

    def least(self, a: int, gpus: int) -> list[int]:
        """[K], smallest gang on each GPU type that the app's waiting jobs take in place of ``gpus``; more where none does."""
        s, begin, end = self.s, self.s.job_ptr.item(a), self.s.job_ptr.item(a + 1)
        if end - begin == 1:
            # Single jobs are many, and thousands of them are allocated one GPU each.
            low = s.job_gpus_min.item(begin)
            takes = s.job_held.item(begin) == 0 and low <= gpus <= s.job_gpus_max.item(begin)
            may: list[bool] = s.job_allowed[begin].tolist()
            return [low if takes and allowed else gpus + 1 for allowed in may]
        if a not in self._alike:
            self._alike[a] = self._alike_gangs(begin, end)
        alike = self._alike[a]
        if alike is not None:
            return [alike[0] if alike[0] <= gpus <= alike[1] else gpus + 1] * len(s.gpu_types)
        at = slice(begin, end)
        fits = (s.job_held[at] == 0) & (s.job_gpus_min[at] <= gpus) & (gpus <= s.job_gpus_max[at])
        sizes = np.where(s.job_allowed[at] & fits[:, None], s.job_gpus_min[at][:, None], gpus + 1)
        out: list[int] = sizes.min(axis=0).tolist()
        return out

    def _alike_gangs(self, begin: int, end: int) -> tuple[int, int] | None:
        """Minimum and maximum GPUs of an app's jobs, if these are equal, one of them waits, and all types will do."""
        s = self.s
        low, high = set(s.job_gpus_min[begin:end].tolist()), set(s.job_gpus_max[begin:end].tolist())
        if len(low) > 1 or len(high) > 1 or not self._all_allowed or 0 not in s.job_held[begin:end].tolist():
            return None
        return low.pop(), high.pop()

    @cached_property
    def _all_allowed(self) -> bool:
        return bool(self.s.job_allowed.all())

    @cached_property
    def _room(self) -> Room:
        """``free`` in order; made for the first gang that looks for a place."""
        s = self.s
        return Room(self.free, s.machine_rack, s.machine_type, len(s.gpu_types))

    def _worth_moving(self, a: int, counts: Counts) -> bool:
        """True if a spread gang would do more work in a lease elsewhere, the restart included."""
        s = self.s
        if len(counts) == 1 or self.blind:
            return False
        gpus = sum(c for _, c in counts)
        best = self.best_place(a, gpus)
        if best is None:
            return False
        config = int(s.job_config[s.job_ptr[a]])
        here = self._worth(config, gpus, (counts, self._span(counts)))
        restart = s.restart_s + float(s.speeds.checkpoint_s[config])
        return self._worth(config, sum(c for _, c in best[0]), best) * (s.lease_s - restart) > here * s.lease_s

    def _worth(self, config: int, gpus: int, place: tuple[Counts, Locality]) -> float:
        k = int(self.s.machine_type[place[0][0][0]])
        return float(self.s.speeds.scale[config, k, gpus] / self.s.speeds.slowdown[config, place[1]])

    def _span(self, counts: Counts) -> Locality:
        if len(counts) == 1:
            return Locality.MACHINE
        return Locality.RACK if len({int(self.s.machine_rack[n]) for n, _ in counts}) == 1 else Locality.CROSS_RACK


def expiring_on(s: Snapshot) -> Mapping[tuple[int, int], list[int]]:
    """Machine of each GPU on offer that a job holds until this instant, by job id and seat."""
    return s.once(expiring_on, _expiring_on)


def expiring_jobs(s: Snapshot) -> Mapping[int, tuple[int, int]]:
    """App row and GPUs of each job that holds some until this instant, by job id, rising."""
    return s.once(expiring_jobs, _expiring_jobs)


def _expiring_jobs(s: Snapshot) -> Mapping[int, tuple[int, int]]:
    rows = s.job_expiring.nonzero()[0]
    return dict(zip(s.job_id[rows].tolist(), zip(s.job_app[rows].tolist(), s.job_expiring[rows].tolist())))


def _expiring_on(s: Snapshot) -> Mapping[tuple[int, int], list[int]]:
    out: dict[tuple[int, int], list[int]] = {}
    held = s.gpu_free[:, None] & (s.gpu_job >= 0)
    g, seat = held.nonzero()
    for n, j, at in zip(s.gpu_machine[g].tolist(), s.gpu_job[held].tolist(), seat.tolist()):
        out.setdefault((j, at), []).append(n)
    return out


def _standing(s: Snapshot) -> dict[int, list[tuple[int, Counts]]]:
    """Places of each app's expiring gangs, by app row, without gangs that lost a GPU: they are not on offer whole."""
    out: dict[int, list[tuple[int, Counts]]] = defaultdict(list)
    if not expiring_jobs(s):
        return out
    held = {j: machines for (j, _), machines in expiring_on(s).items()}
    for j, (a, gpus) in expiring_jobs(s).items():
        machines = held.get(j, [])
        if len(machines) == gpus:
            one = len(set(machines)) == 1
            counts = ((machines[0], gpus),) if one else tuple(sorted(Counter(machines).items()))
            out[a].append((gpus, counts))
    return out
