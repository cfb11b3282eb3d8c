"""A heap kernel in plain Python: ``drf`` on rigid single jobs of equal weight, on GPUs of one type; the yardstick of the simulator.

It knows nothing but this one case, and takes the same decisions at the same times: ``tests/sim/test_heap_kernel.py`` compares
grants and completions. Speeds are looked up in the book before it starts.
"""

from __future__ import annotations

import heapq
import math
from collections.abc import Callable
from dataclasses import dataclass, field

from themis.model.cluster import Cluster
from themis.model.settings import Settings
from themis.model.speed import ProfileBook
from themis.model.units import Locality
from themis.model.workload import Workload

EPS = 1e-6
ARRIVES, ENDS, WAKES = 0, 1, 2


@dataclass(slots=True)
class Task:
    """A job and its app."""

    gpus: int
    arrival: float
    steps: float
    again_s: float
    """Seconds that a start after the first takes longer."""
    rate: dict[int, float]
    """Steps per second by locality."""
    worth: dict[int, float]
    """Reference GPUs by locality."""
    done: float = 0.0
    began: float = 0.0
    speed: float = 0.0
    attempt: int = 0
    at: tuple[int, ...] = ()
    until: float = 0.0
    since: float = 0.0
    attained: float = 0.0


def tasks_of(workload: Workload, cluster: Cluster, book: ProfileBook) -> list[Task]:
    """The jobs of a workload of single rigid jobs with one regime each."""
    kind, out = cluster.gpu_types[0], []
    for app in workload.apps:
        (job,) = app.jobs
        (regime,) = job.regimes
        scale, slowdown = job.scale(regime.batch) * regime.pace, book.get(job.model).slowdown
        rates = {
            int(where): book.rate(job.model, regime.batch, kind, job.gpus_min, where) / scale for where in Locality
        }
        worth = {int(where): 1.0 / slowdown[where] for where in Locality}
        checkpoint = book.get(job.model).checkpoint_s
        out.append(Task(job.gpus_min, app.arrival, regime.steps, checkpoint, rates, worth))
    return out


@dataclass(slots=True)
class HeapKernel:
    """The simulation; ``granted`` and ``ended`` are called with (time, job, GPUs) and (time, job)."""

    tasks: list[Task]
    cluster: Cluster
    settings: Settings
    granted: Callable[[float, int, tuple[int, ...]], None] = lambda time, job, gpus: None
    ended: Callable[[float, int], None] = lambda time, job: None
    decisions: int = 0
    now: float = 0.0
    heap: list[tuple[float, int, int, int]] = field(default_factory=list)
    waiting: set[int] = field(default_factory=set)
    running: set[int] = field(default_factory=set)
    machine: list[int] = field(init=False)
    slot: list[int] = field(init=False)
    rack: list[int] = field(init=False)
    free: list[list[int]] = field(init=False)
    """GPUs that are free on each machine, rising."""

    def run(self) -> None:
        """From the first arrival to the last completion."""
        c = self.cluster
        self.machine, self.slot, self.rack = c.gpu_machine.tolist(), c.gpu_slot.tolist(), c.machine_rack.tolist()
        self.free = [[] for _ in self.rack]
        for g, n in enumerate(self.machine):
            self.free[n].append(g)
        self.heap = [(task.arrival, ARRIVES, j, 0) for j, task in enumerate(self.tasks)]
        heapq.heapify(self.heap)
        left, due = len(self.tasks), False
        while left:
            self.now, kind, j, attempt = heapq.heappop(self.heap)
            due |= kind != ENDS
            if kind == ARRIVES:
                self.waiting.add(j)
            elif kind == ENDS and j in self.running and self.tasks[j].attempt == attempt:
                self._release(j)
                self.waiting.discard(j)
                self.ended(self.now, j)
                left -= 1
                due = True
            if due and not (self.heap and self.heap[0][0] <= self.now):
                self._decide()
                due = False

    def _release(self, j: int) -> None:
        task = self.tasks[j]
        self.running.discard(j)
        self.waiting.add(j)
        trained = self.now - task.began
        if trained > 0:
            left = task.steps - task.done
            task.done = task.done + task.speed * trained if left / task.speed > trained else task.steps
        task.attained += task.gpus * (self.now - task.since)
        for g in task.at:
            free = self.free[self.machine[g]]
            free.append(g)
            free.sort()
        task.at = ()

    def _decide(self) -> None:
        tasks, now, tick_s = self.tasks, self.now, self.settings.tick_s
        over = sorted(j for j in self.running if tasks[j].until <= now + EPS)
        room = [len(free) for free in self.free]
        for j in over:
            for g in tasks[j].at:
                room[self.machine[g]] += 1
        left = sum(room)
        if not left or not (over or self.waiting):
            return
        self.decisions += 1
        line = sorted(
            (tasks[j].attained + (tasks[j].gpus * (now - tasks[j].since) if tasks[j].at else 0.0), tasks[j].arrival, j)
            for j in (*over, *self.waiting)
        )
        chosen = []
        for *_, j in line:
            if tasks[j].gpus <= left:
                chosen.append(j)
                left -= tasks[j].gpus
            if not left:
                break
        lease_s = self.settings.lease_s
        until = min(now + lease_s, (math.floor(now / lease_s + 1e-9) + 1) * lease_s)
        self._place(chosen, over, room, max(math.ceil(until / tick_s - 1e-9) * tick_s, now + EPS))

    def _place(self, chosen: list[int], over: list[int], room: list[int], until: float) -> None:
        tasks, stands, places = self.tasks, set(over), dict[int, list[tuple[int, int]]]()
        moves = []
        for rank, j in enumerate(chosen):
            counts = self._counts(j) if j in stands else []
            if counts and all(room[n] >= c for n, c in counts) and not self._better(j, counts, room):
                places[j] = counts
                for n, c in counts:
                    room[n] -= c
            else:
                moves.append((-tasks[j].gpus, rank, j))
        for *_, j in sorted(moves):
            found, span = self._narrowest(tasks[j].gpus, room)
            if found:
                home = self._counts(j) if j in stands else []
                if home and self._span(home) <= span and all(room[n] >= c for n, c in home):
                    found = home
                places[j] = found
                for n, c in found:
                    room[n] -= c
        stay = {j for j in places if j in stands and self._counts(j) == places[j]}
        for j in over:
            if j not in stay:
                self._release(j)
        for j in stay:
            tasks[j].until = until
        for j in places:
            if j not in stay:
                self._start(j, tuple(sorted(g for n, c in places[j] for g in self._pick(n, c))), until)
        if places:
            heapq.heappush(self.heap, (until, WAKES, 0, 0))

    def _start(self, j: int, gpus: tuple[int, ...], until: float) -> None:
        task, where = self.tasks[j], self._locality(gpus)
        for g in gpus:
            self.free[self.machine[g]].remove(g)
        self.waiting.discard(j)
        self.running.add(j)
        task.attempt += 1
        task.at, task.until, task.since, task.speed = gpus, until, self.now, task.rate[where]
        task.began = self.now + self.settings.container_s + (task.again_s if task.attempt > 1 else 0.0)
        heapq.heappush(self.heap, (task.began + (task.steps - task.done) / task.speed, ENDS, j, task.attempt))
        self.granted(self.now, j, gpus)

    def _counts(self, j: int) -> list[tuple[int, int]]:
        on: dict[int, int] = {}
        for g in self.tasks[j].at:
            on[self.machine[g]] = on.get(self.machine[g], 0) + 1
        return sorted(on.items())

    def _span(self, counts: list[tuple[int, int]]) -> int:
        if len(counts) == 1:
            return Locality.MACHINE
        return Locality.RACK if len({self.rack[n] for n, _ in counts}) == 1 else Locality.CROSS_RACK

    def _locality(self, gpus: tuple[int, ...]) -> int:
        if len({self.slot[g] for g in gpus}) == 1:
            return Locality.SLOT
        return self._span([(n, 0) for n in {self.machine[g] for g in gpus}])

    def _better(self, j: int, counts: list[tuple[int, int]], room: list[int]) -> bool:
        """Whether a gang that is spread does more work elsewhere, a restart included."""
        if len(counts) == 1:
            return False
        task, (found, span) = self.tasks[j], self._narrowest(self.tasks[j].gpus, room)
        lease_s = self.settings.lease_s
        after = lease_s - self.settings.container_s - task.again_s
        return bool(found) and task.worth[span] * after > task.worth[self._span(counts)] * lease_s

    def _narrowest(self, gpus: int, room: list[int]) -> tuple[list[tuple[int, int]], int]:
        """The fullest machine that fits, else the fullest rack, else the emptiest machines."""
        fits = [(c, n) for n, c in enumerate(room) if c >= gpus]
        if fits:
            return [(min(fits)[1], gpus)], Locality.MACHINE
        racks: dict[int, int] = {}
        for n, c in enumerate(room):
            racks[self.rack[n]] = racks.get(self.rack[n], 0) + c
        fit = [(c, r) for r, c in racks.items() if c >= gpus]
        if sum(room) < gpus:
            return [], Locality.CROSS_RACK
        allowed = min(fit)[1] if fit else None
        out = []
        for c, n in sorted((-c, n) for n, c in enumerate(room) if c and allowed in (None, self.rack[n])):
            out.append((n, min(gpus, -c)))
            gpus -= out[-1][1]
            if not gpus:
                break
        return out, Locality.RACK if fit else Locality.CROSS_RACK

    def _pick(self, n: int, gpus: int) -> list[int]:
        """The smallest slot that holds them all, else whole slots, fullest first."""
        slots: dict[int, list[int]] = {}
        for g in self.free[n]:
            slots.setdefault(self.slot[g], []).append(g)
        whole = [ids for ids in slots.values() if len(ids) >= gpus]
        if whole:
            return min(whole, key=len)[:gpus]
        out: list[int] = []
        for ids in sorted(slots.values(), key=lambda ids: (-len(ids), ids[0])):
            out += ids[: gpus - len(out)]
        return out
