"""The one driver of decisions: it carries events into the core, and answers what the core asks for.

A step of the core returns commands. Four of them are questions, and each has its answer as an event:

    WakeAt(time)       ->  Wake at that time, after all other events of that instant
    Solve(snapshot)    ->  Allocated: the policy's answer, or its request for bids
    Forced(answer)     ->  Allocated with this answer: there is nothing to decide, so the policy is not asked
    CollectBids(ask)   ->  BidsCollected, after which the core asks the policy again

The simulator, the forecasts of ``themis why`` and the live service are shells: subclasses of ``Driver`` that say how the policy
is run (here, or in a worker process that answers later), where bids come from, what a clock is, and what is done with the
commands that are left. A log is followed without asking anything (``logged_commands``): it holds the answers.
"""

from __future__ import annotations

import heapq
from abc import ABC, abstractmethod
from dataclasses import dataclass
from enum import StrEnum

from themis.core.scheduler import Scheduler
from themis.errors import ThemisError
from themis.model.answers import Ask, Solved
from themis.model.bids import Bids
from themis.model.events import Allocated, BidsCollected, CollectBids, Command, Event, Forced, Solve, WakeAt
from themis.model.snapshot import Snapshot
from themis.model.units import Seconds


class PendingInput(StrEnum):
    """Input that a decision waits for."""

    RHO = "rho"
    POLICY = "policy"
    BIDS = "bids"


@dataclass(slots=True)
class Decision:
    """The decision under way.

    Attributes
    ----------
    version : of the core's snapshot, which names the decision. ``snapshot`` : as the policy sees it, bids included.
    ask : what the policy's first answer asked for; None while there is no such answer.
    """

    version: int
    snapshot: Snapshot
    waits: PendingInput = PendingInput.RHO
    ask: Ask | None = None


class Driver(ABC):
    """The core, and the decision under way if there is one; a shell subclasses it."""

    core: Scheduler
    decision: Decision | None = None

    # ---- what a shell supplies --------------------------------------------------------------------------------------

    @abstractmethod
    def wake_at(self, time: Seconds, now: Seconds) -> None:
        """Feed ``Wake`` at ``time``, or now if that is past, after all other events of that instant."""

    @abstractmethod
    def solve(self, decision: Decision, now: Seconds) -> Solved | None:
        """Run the policy on ``decision.snapshot``; None if the answer comes later, through ``solved``."""

    @abstractmethod
    def collect(self, decision: Decision, ask: Ask, now: Seconds) -> Bids | None:
        """The bids that the policy asks for; None if they come later, through ``collected``."""

    @abstractmethod
    def carry_out(self, command: Command, now: Seconds) -> None:
        """Do what the core commands; questions do not come here."""

    def record(self, event: Event, now: Seconds) -> Event:
        """Write an event down before the core takes it in; returns it as it reads from there."""
        return event

    def consult(self, decision: Decision, now: Seconds) -> bool:
        """Ask others before the policy sees a new snapshot; True if ``ask_policy`` is called once they answered."""
        return False

    def given_up(self) -> None:
        """The pending decision is abandoned."""
        return

    def forced(self) -> None:
        """A decision left nothing to decide, so the policy is not asked."""
        return

    def annotate(self, error: ThemisError, doing: str, now: Seconds) -> None:
        """Add to an error when and where it happened."""
        return

    # ---- what a shell calls -----------------------------------------------------------------------------------------

    def feed(self, event: Event, now: Seconds) -> None:
        """Take an event in, with everything that follows from it at this instant."""
        event = self.record(event, now)
        try:
            commands = self.core.step(event, now)
        except ThemisError as error:
            self.annotate(error, type(event).__name__, now)
            raise
        if self.decision is not None and self.core.solving is None:
            self.decision = None  # the core gave the question up
            self.given_up()
        for command in commands:
            match command:
                case WakeAt():
                    self.wake_at(command.time, now)
                case Solve():
                    self.begin(command.snapshot, now)
                case Forced():
                    self._forced(command, now)
                case CollectBids():
                    self._collect(command.ask, now)
                case _:
                    self.carry_out(command, now)

    def resume(self, now: Seconds) -> None:
        """Ask again for a decision that the core waits for and that is not under way, because the previous solver is gone."""
        solving = self.core.solving
        if self.decision is not None or solving is None:
            return
        if isinstance(solving, Forced):
            self._forced(solving, now)
        else:
            self.begin(solving, now)

    def begin(self, snapshot: Snapshot, now: Seconds) -> None:
        """The core wants a decision on this snapshot: a new one, or the one under way with the bids that it asked for."""
        decision = self.decision
        if decision is not None and snapshot.bids is not None:
            # Only the decision's snapshot has the rho values that agents reported.
            decision.snapshot = decision.snapshot.with_bids(snapshot.bids)
            self.ask_policy(decision, now)
            return
        self.decision = decision = Decision(snapshot.version, snapshot)
        if not self.consult(decision, now):
            self.ask_policy(decision, now)

    def ask_policy(self, decision: Decision, now: Seconds) -> None:
        """The decision's snapshot holds all inputs of the policy."""
        decision.waits = PendingInput.POLICY
        try:
            solved = self.solve(decision, now)
        except ThemisError as error:
            self.annotate(error, "the policy's decision", now)
            raise
        if solved is not None:
            self.solved(decision.version, solved, now)

    def awaits(self, version: int) -> bool:
        """True if the decision in progress waits for an answer to this version; other answers belong to abandoned decisions."""
        decision = self.decision
        return decision is not None and decision.waits is PendingInput.POLICY and decision.version == version

    def solved(self, version: int, solved: Solved, now: Seconds) -> None:
        """The policy's answer, or its request for bids, is there."""
        decision = self.decision
        if decision is None or not self.awaits(version):
            return
        if isinstance(solved.answer, Ask):
            decision.ask, decision.waits = solved.answer, PendingInput.BIDS
        else:
            self.decision = None
        self.feed(Allocated(version=version, solved=solved), now)

    def collected(self, bids: Bids, now: Seconds) -> None:
        """The bids that the decision under way waits for are there."""
        if self.decision is not None and self.decision.waits is PendingInput.BIDS:
            self.feed(BidsCollected(version=self.decision.version, bids=bids), now)

    def _forced(self, question: Forced, now: Seconds) -> None:
        self.forced()
        self.feed(Allocated(version=question.version, solved=question.solved), now)

    def _collect(self, ask: Ask, now: Seconds) -> None:
        decision = self.decision
        assert decision is not None
        try:
            bids = self.collect(decision, ask, now)
        except ThemisError as error:
            self.annotate(error, "the agents' bids", now)
            raise
        if bids is not None:
            self.collected(bids, now)


def logged_commands(core: Scheduler, event: Event, now: Seconds, wakes: list[Seconds]) -> list[Command]:
    """A step of the core where a log holds the answers: the commands that the log must hold too.

    Parameters
    ----------
    wakes : heap of the instants at which a ``Wake`` is due; grows by those that the core asks for.
    """
    out: list[Command] = []
    for command in core.step(event, now):
        if type(command) is WakeAt:
            heapq.heappush(wakes, max(command.time, now))
        elif not isinstance(command, Solve | Forced | CollectBids):
            out.append(command)
    return out
