"""Replay: a log's events through a fresh core must give the log's commands again, and with them the same state.

Allocations are applied as logged, never solved again. What the log leaves out is the machinery: ``Wake`` comes from
the core's own ``WakeAt`` commands. One is due before the next record when that record is later than it, or at its
time and something that only it can have caused: a command, or the answer to a ``Solve``. A service's journal has its wakes
too, and is replayed by these; of a log that a service exported without them, numbers agree within ``events.TOLERANCE``.
"""

from __future__ import annotations

import heapq
import math
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from themis.core.driver import logged_commands
from themis.core.scheduler import Scheduler
from themis.errors import InputError, UnknownName
from themis.model.events import (
    SCHEMA,
    Allocated,
    Command,
    Compacted,
    Event,
    Header,
    Wake,
    agrees,
)
from themis.model.log import read_log
from themis.model.settings import Settings
from themis.model.speed import Profile, ProfileBook
from themis.model.units import Seconds
from themis.policies.api import forecaster_of, make_policy
from themis.traces.profiles.library import BOOKS
from themis.traces.profiles.models import DEFAULT_BOOK

Record = Header | Event | Command


@dataclass(frozen=True, slots=True, kw_only=True)
class Difference:
    """The first difference between core and log; None means "nothing more"."""

    record: int
    """Position in the log, counted from 1."""
    time: Seconds
    logged: Record | None
    replayed: Command | None

    def __str__(self) -> str:
        core = f"the core commands {_short(self.replayed)}" if self.replayed else "the core commands nothing"
        return f"record {self.record} at {self.time:.3f} s: {core}, but the log has {_short(self.logged)}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Replayed:
    """A finished replay: the core in its last state, and the first difference if there was one."""

    header: Header
    core: Scheduler
    records: int
    events: int
    commands: int
    difference: Difference | None


def replay(path: Path, book: ProfileBook | None = None) -> Replayed:
    """Replay a log file; without a book, by that of the shipped ones which the run had.

    Raises
    ------
    InputError : the file cannot be read, is not a log, or is of another schema.
    """
    return replay_records(read_log(path), name=str(path), book=book)


def replay_records(
    records: Iterable[tuple[Seconds, Record]],
    *,
    name: str = "log",
    book: ProfileBook | None = None,
    submitted: Sequence[Profile] = (),
    wakes: bool = False,
    exact_after: int = 0,
    seen: Callable[[int, Scheduler], None] = lambda records, core: None,
) -> Replayed:
    """Replay records in order; the first is the header.

    Parameters
    ----------
    submitted : speeds that came with submissions, which no log holds. ``wakes`` : the records hold every ``Wake``.
    exact_after : records up to this one, counted from 1, may differ in the last digits of their numbers.
    seen : called with the number of records so far and the core, whenever everything that follows from them was replayed.
    """
    rest = iter(records)
    _, header = next(rest, (0.0, None))
    if not isinstance(header, Header):
        raise InputError(f"{name} does not begin with a header, expected a log written by themis simulate --out.")
    if header.schema != SCHEMA:
        raise InputError(
            f"{name} has log schema {header.schema}, this version reads {SCHEMA}; use themis {header.version} for it."
        )
    shipped = (build() for build in BOOKS.values())
    book = book or next((b for b in shipped if b.fingerprint == header.profiles), DEFAULT_BOOK)
    if header.profiles and header.profiles != book.fingerprint:
        raise InputError(
            f"{name} was made with other model profiles than it is replayed with; pass those that made it (--profiles). "
            "Runs with estimated speeds can be replayed from Python alone."
        )
    try:
        return _Replay(header, book.with_profiles(submitted), wakes, exact_after, seen).run(rest)
    except UnknownName as error:  # the book is the run's own, so the name came with a submission
        raise InputError(
            f"{name}: {error} A log lacks the speeds that came with submissions; replay the service's data directory instead."
        ) from None


class _Replay:
    def __init__(
        self,
        header: Header,
        book: ProfileBook,
        has_wakes: bool,
        exact_after: int,
        seen: Callable[[int, Scheduler], None],
    ) -> None:
        policy = make_policy(header.policy.partition(":")[0], header.params)
        self.header = header
        self.core = Scheduler(
            book,
            Settings(**header.settings, seed=header.seed),
            policy.pace,
            policy.needs,
            forecaster_of(policy),
        )
        self.seen = seen
        self.wakes: list[Seconds] = []
        self.has_wakes = has_wakes
        """True if the records hold every ``Wake``."""
        # A restarted service delivered late what was due meanwhile; where its records lack the wakes, only when is unknown.
        self.exact_after = exact_after if has_wakes or header.simulated else math.inf
        self.now: Seconds = 0.0
        self.pending: deque[Command] = deque()
        """Commands of the core that the log must show next."""
        self.counts = {"records": 1, "events": 0, "commands": 0}

    def run(self, records: Iterable[tuple[Seconds, Record]]) -> Replayed:
        for time, record in records:
            self.counts["records"] += 1
            if isinstance(record, Header):
                raise InputError(f"record {self.counts['records']} of the log is a second header; the file was joined.")
            if isinstance(record, Compacted):
                raise InputError(
                    f"the log lacks {record.records} records up to {time:.0f} s, which its journal dropped; only a "
                    "whole log can be replayed. `themis dump` gives the state as it is now."
                )
            difference = self._command(time, record) if isinstance(record, Command) else self._event(time, record)
            if difference:
                return self._result(difference)
            if not self.pending:
                self.seen(self.counts["records"], self.core)
        return self._result(self._difference(self.now, None, self.pending[0]) if self.pending else None)

    def _result(self, difference: Difference | None) -> Replayed:
        return Replayed(header=self.header, core=self.core, difference=difference, **self.counts)

    def _command(self, time: Seconds, record: Command) -> Difference | None:
        """A logged command must be the core's next one; if the core has none ready, a wake caused it."""
        self.counts["commands"] += 1
        while not self.pending and self.wakes and self.wakes[0] <= time and not self.has_wakes:
            self._wake()
        replayed = self.pending.popleft() if self.pending else None
        same = agrees(record, replayed, exactly=self.counts["records"] > self.exact_after)
        return None if same and self.now == time else self._difference(time, record, replayed)

    def _event(self, time: Seconds, event: Event) -> Difference | None:
        """An event goes in when the core has no command left; an answer waits for the core's question."""
        if isinstance(event, Wake):
            if self.pending or not self.wakes:
                return self._difference(time, event, self.pending[0] if self.pending else None)
            heapq.heappop(self.wakes)
            self._step(event, time)
            return None
        self.counts["events"] += 1
        while not self.pending and self._wake_is_due(time, event):
            self._wake()
        if self.pending:
            return self._difference(time, event, self.pending[0])
        self._step(event, time)
        return None

    def _wake_is_due(self, time: Seconds, event: Event) -> bool:
        if self.has_wakes or not self.wakes or self.wakes[0] > time:
            return False
        return self.wakes[0] < time or (isinstance(event, Allocated) and self.core.solving is None)

    def _wake(self) -> None:
        self._step(Wake(), heapq.heappop(self.wakes))

    def _step(self, event: Event, time: Seconds) -> None:
        self.now = max(time, self.now)
        self.pending += logged_commands(self.core, event, self.now, self.wakes)

    def _difference(self, time: Seconds, logged: Record | None, replayed: Command | None) -> Difference:
        return Difference(record=self.counts["records"], time=time, logged=logged, replayed=replayed)


def _short(record: object) -> str:
    if record is None:
        return "nothing"
    text = repr(record)
    return text if len(text) <= 160 else text[:157] + "..."
