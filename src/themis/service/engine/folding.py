"""The state from the journal alone: events replayed, allocations as recorded, commands compared.

The live service and a fold take the same steps on the same bytes, so every command is drawn again to the last bit
([decision 17](docs/decisions/0017-journals-fold-exactly.md)). Records that were written where floats may be rounded otherwise,
by an older version or on another kind of processor, may differ by ``TOLERANCE``.
"""

from __future__ import annotations

import heapq
import logging
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from themis.core.driver import logged_commands
from themis.core.state import State
from themis.errors import InputError
from themis.model.events import (
    TOLERANCE,
    Command,
    Compacted,
    Event,
    Header,
    JobStopped,
    Quarantined,
    Renew,
    Wake,
    agrees,
)
from themis.model.units import Seconds
from themis.service.engine import state_snapshots
from themis.service.engine.engine import Engine
from themis.service.engine.quarantine import Owner, of_record, owner_of, quarantines, words_of

log = logging.getLogger("themis.service")


class Differs(InputError):
    """A record is not what follows from those before it. ``number`` : of the record."""

    def __init__(self, number: int, sentence: str) -> None:
        super().__init__(sentence)
        self.number = number


class Unfolded(Differs):
    """An error of the core at a record.

    Attributes
    ----------
    owner : the app or the machine of the record; None if there is none to quarantine. ``error`` : the core's.
    """

    def __init__(self, number: int, sentence: str, owner: Owner | None, error: Exception) -> None:
        super().__init__(number, sentence)
        self.owner, self.error = owner, error


@dataclass(slots=True)
class RunningFold:
    """A fold under way.

    Attributes
    ----------
    exact_after : records up to this number may differ in the last digits. ``near`` : how many did.
    number : of the last record that was folded, ``event`` : of the last event.
    pending : commands that the journal must show next.
    skips : quarantines that hold in place of the records with these numbers. ``skipping`` : the last event was one of them, or of
        an app that is quarantined from such a record on.
    """

    engine: Engine
    exact_after: int = 0
    near: int = 0
    number: int = 0
    event: int = 0
    pending: deque[Command] = field(default_factory=deque)
    skips: Mapping[int, Quarantined] = field(default_factory=dict)
    skipping: bool = False

    def take(self, number: int, time: Seconds, record: Header | Event | Command) -> None:
        """Fold one record.

        Raises
        ------
        Differs : it does not follow from those before it.
        """
        engine, pending = self.engine, self.pending
        if isinstance(record, Compacted):
            raise InputError(
                f"{engine.journal.path} lacks {record.records} records and a snapshot of the state after them."
            )
        if isinstance(record, Command):
            left = None if self.skipping else self._unskipped(record)
            if left is None:
                self.number = number
                return
            drawn = pending.popleft() if pending else None
            if not agrees(left, drawn):
                if number > self.exact_after or not agrees(left, drawn, exactly=False):
                    raise self._differs(number, record)
                self.near += 1
            engine.remember(left)
        elif not isinstance(record, Header):
            if pending:
                raise self._differs(number, pending[0])
            if isinstance(record, Wake):
                if not engine.wakes:
                    raise self._differs(number, record)
                heapq.heappop(engine.wakes)
            self.event = number
            if self._skips(number, time, record):
                self.number = number
                return
            engine.note(record)
            pending += filter(None, map(self._unskipped, self._step(number, time, record)))
        self.number = number

    def _skips(self, number: int, time: Seconds, record: Event) -> bool:
        """Whether an event is not taken in: a quarantine holds in its place, or its app is quarantined since such an event."""
        self.skipping = False
        if (instead := self.skips.get(number)) is not None:
            self.skipping = True
            owner = of_record(instead)
            self.engine.late_owners.add(owner)
            for command in self._step(number, time, instead):
                self.engine.remember(command)
                self.engine.late.append((owner, command))
        elif isinstance(record, Quarantined) and record.skipped:
            self.pending += self._step(number, time, record)
            self.pending += self.engine.take_late(of_record(record))
            return True
        elif self._of_skipped(record):
            self.skipping = True
            if isinstance(record, JobStopped):
                self.engine.note(record)
                self._step(number, time, record)
        return self.skipping

    def _unskipped(self, command: Command) -> Command | None:
        """The command without what is of such apps and machines (``_of_skipped``); None if nothing is left of it."""
        if not isinstance(command, Renew) or not self.engine.late_owners:
            return None if self._of_skipped(command) else command
        app = self.engine.core.state.jobs.app
        jobs = tuple(j for j in command.jobs if Owner("app", int(app[j])) not in self.engine.late_owners)
        return Renew(jobs=jobs, until=command.until) if jobs else None

    def _of_skipped(self, record: Event | Command) -> bool:
        """Whether a record is of an app or a machine that is quarantined from a skipped record on, before its own record."""
        if not self.engine.late_owners:
            return False
        owner = owner_of(record, self.engine.core.state)
        return owner is not None and owner in self.engine.late_owners

    def _step(self, number: int, time: Seconds, record: Event) -> list[Command]:
        """The commands that follow.

        Raises
        ------
        Unfolded : the core cannot take it in.
        """
        try:
            return logged_commands(self.engine.core, record, time, self.engine.wakes)
        except Exception as error:
            found = self._differs(number, record)
            raise Unfolded(
                number, f"{found} ({words_of(error)})", _quarantinable(record, self.engine.core.state), error
            ) from error

    def end(self) -> None:
        """The journal has no more records.

        Raises
        ------
        Differs : it should have.
        """
        if self.pending:
            raise self._differs(self.event, self.pending[0])

    def _differs(self, number: int, record: Event | Command) -> Differs:
        return Differs(
            number,
            f"{self.engine.journal.path}, record {number}: a {type(record).__name__} does not follow from the records before "
            "it; the journal was written by another version of Themis, or with other profiles. Use that version, or go on from "
            "the record before with `themis up --repair`.",
        )


def fold(
    engine: Engine,
    *,
    whole: bool = False,
    seen: Callable[[RunningFold], None] = lambda fold: None,
    upto: int | None = None,
) -> int:
    """Bring a fresh engine to where its journal ends; returns the number of the last record.

    Parameters
    ----------
    whole : from the first record, not from the last snapshot of the state.
    seen : called after each record. ``upto`` : the last record to fold; None: all.

    Raises
    ------
    InputError : a record cannot be read, or older ones were dropped and ``whole``.
    Differs : a record is not what follows from those before it. Unfolded : the core cannot take one in.
    """
    journal = engine.journal
    known = {number: record for _, record in quarantines(journal) for number in record.skipped}
    state = RunningFold(engine, journal.exact_after(), skips=known | engine.quarantine.skips)
    snapshot = None if whole else journal.snapshot(upto)
    if snapshot is not None:
        state.number = snapshot[0]
        state_snapshots.restore(engine, snapshot[1])
    for number, time, record in journal.numbered(state.number):
        if upto is not None and number > upto:
            break
        state.take(number, time, record)
        seen(state)
    if upto is None:
        state.end()
    if state.near:
        log.warning(
            "%s: %d commands differ from what they are now in the last digits of numbers, by less than %g of them. They were "
            "written by an older version of Themis, with other libraries or on another processor.",
            journal.path,
            state.near,
            TOLERANCE,
        )
    return state.number


def _quarantinable(record: Event, state: State) -> Owner | None:
    """The owner of a record, if it is a known app or machine."""
    owner = owner_of(record, state)
    if owner is None or owner.kind not in ("app", "machine"):
        return None
    return owner if owner.number < (state.apps.size if owner.kind == "app" else len(state.machines)) else None
