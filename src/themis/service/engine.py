"""The core under a journal: every event is written down, with what the core makes of it, before anything is done.

Time is given by the caller. The engine answers ``Wake`` at the instants that the core asked for, and ``Solve`` and
``CollectBids`` at once, as the simulator does; so one sequence of events gives the same commands in both. Each ``Wake``
is delivered at the very instant that was asked for, however late the caller comes, except after a restart: what became
due while nobody was there is settled at the time of the restart, once, not for every lease that passed meanwhile.
"""

from __future__ import annotations

import heapq
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace

from themis.core.scheduler import Scheduler
from themis.errors import InputError, ThemisError
from themis.model.answers import Solved
from themis.model.events import (
    Allocated,
    BidsCollected,
    CollectBids,
    Command,
    Event,
    Grant,
    Header,
    JobReached,
    JobStarted,
    JobStopped,
    Renew,
    Revoke,
    Solve,
    Wake,
    WakeAt,
)  # fmt: skip
from themis.model.snapshot import Snapshot
from themis.model.units import Seconds
from themis.policies.api import Policy, Workbench, make_policy
from themis.service.journal import Journal
from themis.tuning.agent import answer_ask

FALLBACK = "fifo"
"""Decides where the policy itself could not: GPUs should not stand idle because of it."""


@dataclass(slots=True)
class Engine:
    """Scheduler, policy and journal; ``announce`` sees every command as it is written down, within the transaction."""

    journal: Journal
    core: Scheduler
    policy: Policy
    announce: Callable[[Seconds, Command], None] = lambda time, command: None
    bench: Workbench = field(default_factory=Workbench)
    wakes: list[Seconds] = field(default_factory=list)
    not_before: Seconds = 0.0
    """Wakes that were due earlier are delivered now: they fell into the time when no arbiter ran."""
    problem: str = ""
    """Why the policy made no decision when it was asked last."""
    grants: dict[int, Grant] = field(default_factory=dict)
    """Each job's last grant, as renewed."""
    revokes: dict[int, Revoke] = field(default_factory=dict)
    """Each job's last revocation."""
    started: set[int] = field(default_factory=set)
    """Jobs whose last grant is known to train."""
    saved: dict[int, float] = field(default_factory=dict)
    """Steps with which each job's next attempt begins, as last reported."""
    out: list[Command] = field(default_factory=list)

    # ---- live -----------------------------------------------------------------------------------------------------

    def feed(self, event: Event, now: Seconds) -> None:
        """Take an event in; to be followed by ``advance`` to the same instant when all its events are in."""
        self.journal.append(now, event)
        self._step(event, now)

    def advance(self, now: Seconds) -> None:
        """Settle every instant up to now that the core asked for."""
        while self.wakes and self.wakes[0] <= now:
            time = max(heapq.heappop(self.wakes), self.not_before)
            self.journal.append(time, Wake())
            self._step(Wake(), time)

    def commands(self) -> list[Command]:
        """What is to be done since the last call; ask after the journal's transaction."""
        out, self.out = self.out, []
        return out

    @property
    def next_wake(self) -> Seconds | None:
        """When ``advance`` has something to do."""
        return self.wakes[0] if self.wakes else None

    def _step(self, event: Event, now: Seconds) -> None:
        self._note(event)
        for command in self.core.step(event, now):
            self._follow(command, now)

    def _follow(self, command: Command, now: Seconds) -> None:
        match command:
            case WakeAt():
                heapq.heappush(self.wakes, max(command.time, now))
            case Solve():
                answer = Allocated(version=command.version, solved=self._solve(command.snapshot))
                self.journal.append(now, answer)
                self._step(answer, now)
            case CollectBids():
                bids = answer_ask(command.snapshot, command.ask)
                self._step(BidsCollected(version=command.version, bids=bids), now)
            case _:
                self.journal.append(now, command)
                self._remember(command)
                self.announce(now, command)
                self.out.append(command)

    def _solve(self, snapshot: Snapshot) -> Solved:
        try:
            solved = self.policy(snapshot, self.bench)
        except ThemisError as error:
            self.problem = f"at {snapshot.now:.0f} s: {error}"
            self.bench.clear()
            return make_policy(FALLBACK)(snapshot, Workbench())
        self.problem = ""
        return solved

    # ---- what a restart needs -------------------------------------------------------------------------------------

    def _note(self, event: Event) -> None:
        match event:
            case JobStarted():
                self.started.add(event.job)
            case JobStopped() | JobReached():
                self.saved[event.job] = event.steps
            case _:
                pass

    def _remember(self, command: Command) -> None:
        match command:
            case Grant():
                self.grants[command.job] = command
                self.started.discard(command.job)
            case Renew():
                old = self.grants[command.job]
                self.grants[command.job] = replace(old, until=command.until, target=command.target)
            case Revoke():
                self.revokes[command.job] = command
            case _:
                pass

    def fold(self) -> int:
        """Rebuild the core from the journal: its events again, its allocations as they were; returns the records.

        Raises
        ------
        InputError : the core now draws other conclusions than the journal has; another version wrote it.
        """
        pending: deque[Command] = deque()
        count = 0
        for time, record in self.journal.records():
            count += 1
            if isinstance(record, Header):
                continue
            if isinstance(record, Command):
                if not pending or pending.popleft() != record:
                    raise self._differs(count, record)
                self._remember(record)
                continue
            if pending:
                raise self._differs(count, pending[0])
            if isinstance(record, Wake):
                heapq.heappop(self.wakes)
            self._note(record)
            for command in self.core.step(record, time):
                if isinstance(command, WakeAt):
                    heapq.heappush(self.wakes, max(command.time, time))
                elif not isinstance(command, Solve | CollectBids):
                    pending.append(command)
        return count

    def _differs(self, number: int, command: Command) -> InputError:
        return InputError(
            f"{self.journal.path}, record {number}: a {type(command).__name__} does not follow from the records before it; "
            "the journal was written by another version of Themis, or with other profiles. Use that version, or begin "
            "with a new home."
        )

    def held(self) -> Sequence[tuple[Grant, float, bool]]:
        """Gangs that may be on GPUs: grant, steps with which they began, whether they are known to train."""
        return [
            (self.grants[j], self.saved.get(j, 0.0), j in self.started) for j in sorted(self.core.state.occupied)
        ]  # fmt: skip
