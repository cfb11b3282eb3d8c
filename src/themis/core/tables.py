"""Growable columns: the state's rows live in two blocks, so that one indexing call gathers them all for a snapshot."""

from __future__ import annotations

import math
from bisect import bisect_left, bisect_right, insort
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import field
from enum import IntEnum
from types import SimpleNamespace
from typing import Any, ClassVar, Generic, TypeVar

import numpy as np
from numpy.typing import NDArray

from themis.model.units import Bool, Float, Int

Scalar = TypeVar("Scalar", bound=np.generic)


class Status(IntEnum):
    """Status of a job; only the first two can use GPUs now. Transitions: ``core.job_lifecycle``; a new row waits."""

    WAITING = 0
    RUNNING = 1
    PAUSED = 2
    ENDED = 3
    HELD = 4
    """The user does not want it to run now."""


WAITING, RUNNING, ENDED, HELD = map(int, (Status.WAITING, Status.RUNNING, Status.ENDED, Status.HELD))
"""Plain integers, because they are compared millions of times: enumeration members take ten times as long."""

RECENT = 4096
"""Changes of statuses that are remembered."""

OUTCOMES = ("", "completed", "stopped", "cancelled", "failed")
"""Endings of a job in ``JobEnded``; the column holds the position."""


def kept(make: Callable[[], Any]) -> Any:
    """A field of the state that ``core.checkpoint`` saves under its name; ``make`` gives its first value."""
    return field(init=False, default_factory=make)


def derived(make: Callable[[], Any]) -> Any:
    """A field of the state that is computed from others, or that ``core.checkpoint`` saves in its own way."""
    return field(init=False, default_factory=make, metadata={"saved": False})


class Table:
    """Rows that are only ever appended; subclasses name their float and int columns.

    Columns are attributes that view one row of a block; they are rebound when the table grows. ``one`` has the same columns
    for one cell at a time: plain numbers come out, in a third of the time that indexing an array takes.
    """

    floats: ClassVar[tuple[str, ...]] = ()
    ints: ClassVar[tuple[str, ...]] = ()

    def __init__(self, capacity: int = 64) -> None:
        self.size = 0
        self.f: Float = np.zeros((len(self.floats), capacity))
        self.i: Int = np.zeros((len(self.ints), capacity), dtype=np.int64)
        self._bind()

    def extend(self, rows: int) -> slice:
        """Append zeroed rows and return where they are."""
        start, self.size = self.size, self.size + rows
        while self.size > self.f.shape[1]:
            self.f = np.concatenate([self.f, np.zeros_like(self.f)], axis=1)
            self.i = np.concatenate([self.i, np.zeros_like(self.i)], axis=1)
            self._bind()
        return slice(start, self.size)

    def _bind(self) -> None:
        self.one = SimpleNamespace()
        for names, block in ((self.floats, self.f), (self.ints, self.i)):
            for row, name in enumerate(names):
                setattr(self, name, block[row])
                setattr(self.one, name, block[row].data)


class Growing(Generic[Scalar]):
    """One array that only ever grows at its end: appending costs what is appended, however much is there."""

    def __init__(self, empty: NDArray[Scalar]) -> None:
        self._room, self.size = empty, 0

    def extend(self, values: NDArray[Scalar]) -> NDArray[Scalar]:
        """Append and return a view of everything; views returned before keep their length."""
        start, self.size = self.size, self.size + len(values)
        if self.size > len(self._room):
            room = np.zeros((max(self.size, 2 * len(self._room)), *self._room.shape[1:]), self._room.dtype)
            room[:start] = self._room[:start]
            self._room = room
        self._room[start : self.size] = values
        return self._room[: self.size]


class Unended:
    """Rows of a table that may still change: a look at them costs what is there, however many rows ended before."""

    def __init__(self) -> None:
        self._rows: Int = np.zeros(0, dtype=np.int64)
        self._upto = 0

    def of(self, table: Table, unended: Callable[[Int], Bool]) -> Int:
        """Rows for which ``unended`` is true, rising, and at most as many others; what it says of a row once ended is final."""
        if self._upto < table.size:
            self._rows = np.append(self._rows, np.arange(self._upto, table.size))
            self._upto = table.size
        left = unended(self._rows)
        if 2 * np.count_nonzero(left) < len(self._rows):
            self._rows = self._rows[left]
        return self._rows


class LeaseEnds:
    """Jobs by the end of their leases, in order: many leases end together, so there are far fewer ends than jobs."""

    def __init__(self) -> None:
        self.jobs: dict[float, set[int]] = {}
        self.times: list[float] = []

    def put(self, j: int, until: float) -> None:
        """A job has a lease that ends then."""
        if (there := self.jobs.get(until)) is None:
            self.jobs[until] = {j}
            insort(self.times, until)
        else:
            there.add(j)

    def drop(self, j: int, until: float) -> None:
        """The lease that ended then is no more."""
        there = self.jobs[until]
        there.remove(j)
        if not there:
            del self.jobs[until], self.times[bisect_left(self.times, until)]

    def move(self, jobs: Sequence[int], by: float, until: float) -> None:
        """``drop`` and ``put`` of these jobs, which are all whose leases end ``by`` then."""
        gone = bisect_right(self.times, by)
        for time in self.times[:gone]:
            del self.jobs[time]
        del self.times[:gone]
        if (there := self.jobs.get(until)) is None:
            self.jobs[until] = set(jobs)
            insort(self.times, until)
        else:
            there.update(jobs)

    def by(self, time: float) -> list[int]:
        """Jobs whose leases end by then, rising."""
        out: list[int] = []
        for until in self.times:
            if until > time:
                break
            out += self.jobs[until]
        out.sort()
        return out

    def after(self, time: float) -> list[float]:
        """Ends later than that, rising."""
        return self.times[bisect_right(self.times, time) :]

    def first(self, time: float) -> float:
        """The first end later than that; infinite without one."""
        at = bisect_right(self.times, time)
        return self.times[at] if at < len(self.times) else math.inf


class Apps(Table):
    """One row per app ever submitted."""

    floats = (
        "arrival",
        "weight",
        "contention_0",
        "capacity_0",
        "attained",
        "since",
        "budget",
        "longest_s",
        "finish",
        "deadline",
        "jobs_0",
        "away",
        "held_at",
        "ended",
        "shadow",
        "reference",
        "given",
        "own",
    )
    ints = (
        "user",
        "kind",
        "gang_min",
        "gang_max",
        "rigid",
        "demand",
        "first_job",
        "jobs",
        "leased",
        "active",
        "stale",
        "config",
        "held",
        "in_reference",
        "unknown",
    )

    arrival: Float
    weight: Float
    """The weight in force: see ``core.fairness_unit``. ``given`` : with the user's and group's; ``own`` : without."""
    given: Float
    own: Float
    contention_0: Float
    """Integral of (sum of weights in the system) dt at arrival."""
    capacity_0: Float
    """Integral of in-service GPUs dt at arrival."""
    jobs_0: Float
    """Integral of jobs in the system dt at arrival."""
    away: Float
    """Seconds that its user had held it, until it was last resumed; ``held_at`` : since when it is held, if it is."""
    held_at: Float
    ended: Float
    """Time of its end; 0 before."""
    shadow: Float
    """Work that it did in the reference (``core.reference``) until the state's ``reference_at``, reference GPU-seconds."""
    reference: Float
    """Finish time in the reference; NaN before."""
    in_reference: Int
    """1 while it is served in the reference."""
    attained: Float
    since: Float
    """``attained`` is exact at this time; since then ``leased`` GPUs accrue."""
    budget: Float
    longest_s: Float
    finish: Float
    """Bags: forecast finish (absolute) on the held gangs; NaN without one."""
    deadline: Float
    user: Int
    kind: Int
    gang_min: Int
    gang_max: Int
    rigid: Int
    demand: Int
    first_job: Int
    jobs: Int
    leased: Int
    active: Int
    stale: Int
    """1 when ``finish`` must be recomputed because the app's leases or jobs changed."""
    config: Int
    held: Int
    """1 while its user holds it; its integrals then stand at the hold's beginning."""
    unknown: Int
    """1 if its work was not given."""


class Jobs(Table):
    """One row per job ever submitted."""

    floats = (
        "done",
        "rate",
        "synced",
        "target",
        "regime_end",
        "serial",
        "later",
        "until",
        "attained",
        "since",
        "total",
        "loss",
        "loss_a",
        "loss_b",
        "ready",
    )
    ints = (
        "app",
        "config",
        "gpus_min",
        "gpus_max",
        "status",
        "attempt",
        "locality",
        "gpus",
        "regime",
        "gpu_type",
        "bracket",
        "rung",
        "order",
        "outcome",
    )

    done: Float
    """Steps done at ``synced``; since then ``rate`` steps/s accrue."""
    rate: Float
    synced: Float
    target: Float
    """Steps after which it reports: the end of its rung, or all its work."""
    regime_end: Float
    """Steps at which the current regime, or the target, ends."""
    serial: Float
    """Seconds per step on one reference GPU in the current regime."""
    later: Float
    """Reference GPU-seconds of the regimes after the current one, up to the target."""
    until: Float
    attained: Float
    since: Float
    total: Float
    loss: Float
    loss_a: Float
    loss_b: Float
    """Parameters a and b of the job's loss curve; ``loss`` is the last reported value."""
    ready: Float
    """Earliest time of its next GPUs."""
    app: Int
    config: Int
    gpus_min: Int
    gpus_max: Int
    status: Int
    attempt: Int
    locality: Int
    gpus: Int
    regime: Int
    gpu_type: Int
    bracket: Int
    """Bracket of its app's sweep, counted from 0; ``rung`` : rung of the bracket that the job is in, or ended in."""
    rung: Int
    outcome: Int
    """The job's ending, a position in ``OUTCOMES``; 0 while the job is active."""
    order: Int
    """Below 0 where its app's own scheduler said in which order its jobs get gangs: the lowest first."""

    def __init__(self, capacity: int = 64) -> None:
        super().__init__(capacity)
        self.changes: deque[tuple[float, int, IntEnum]] = deque(maxlen=RECENT)
        """The latest changes of statuses, (time, job, change): for messages about faults (``core.job_lifecycle``)."""
        self.forget()

    def forget(self) -> None:
        """Forget what follows from the columns and is kept by changes of statuses."""
        self._left = Unended()
        self._present: Int | None = None
        self._waiting: set[int] | None = None

    def extend(self, rows: int) -> slice:
        """Append rows of jobs, which wait."""
        out = super().extend(rows)
        self._present = None
        if self._waiting is not None:
            self._waiting.update(range(out.start, out.stop))
        return out

    def moved(self, j: int, before: int, after: int) -> None:
        """A job's status changed."""
        if (before <= RUNNING) is not (after <= RUNNING):
            self._present = None
        if self._waiting is not None:
            if after == WAITING:
                self._waiting.add(j)
            else:
                self._waiting.discard(j)

    def present(self) -> Int:
        """Jobs that wait or run, rising; kept until one comes or goes, so not to be written to."""
        if self._present is None:
            status = self.status
            rows = self._left.of(self, lambda rows: status[rows] != ENDED)
            self._present = rows[status[rows] <= RUNNING]
            self._present.flags.writeable = False
        return self._present

    @property
    def waiting(self) -> set[int]:
        """Jobs that wait."""
        if self._waiting is None:
            rows = self.present()
            self._waiting = set(rows[self.status[rows] == WAITING].tolist())
        return self._waiting
