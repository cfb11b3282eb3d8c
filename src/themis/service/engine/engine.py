"""The core under a journal: every event is written down, with what the core makes of it, before anything is done.

Time is given by the caller. The engine answers ``Wake`` at the instants that the core asked for. Each is delivered at the
very instant that was asked for, however late the caller comes, except after a restart: what became due while nobody was
there is settled at the time of the restart, once, not for every lease that passed meanwhile.

A decision goes its own way, while events come in: apps' agents say their rho, the policy runs, agents bid, the policy runs
again; only its answer is written down, and the bids of others that went into it. Without a ``solver`` and agents all of
that happens at once, as in the simulator; so one sequence of events gives the same commands in both.
"""

from __future__ import annotations

import heapq
import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import cast

from themis.core.scheduler import Scheduler
from themis.model.answers import Ask, Proof
from themis.model.events import (
    Allocated,
    BidsCollected,
    CollectBids,
    Command,
    Event,
    Grant,
    JobReached,
    JobsOrdered,
    JobStarted,
    JobStopped,
    Renew,
    Revoke,
    Solve,
    Wake,
    WakeAt,
)  # fmt: skip
from themis.model.log import decode
from themis.model.snapshot import Snapshot
from themis.model.units import Seconds
from themis.policies.api import Policy, Workbench
from themis.service.engine.agents import AgentRegistry
from themis.service.engine.journal import Journal
from themis.service.engine.solving import Reply, Solver, Task, decide, fall_back
from themis.tuning.outside import merge

log = logging.getLogger("themis.service")


@dataclass(slots=True)
class Flight:
    """The decision under way: its snapshot as the policy sees it, and what is waited for: rho, policy or bids."""

    version: int
    snapshot: Snapshot
    waits: str = "rho"
    reply: Reply | None = None
    """The policy's first answer, where that asks for bids."""


@dataclass(slots=True)
class Engine:
    """Scheduler, policy and journal; ``announce`` sees every command as it is written down, within the transaction."""

    journal: Journal
    core: Scheduler
    policy: Policy
    announce: Callable[[Seconds, Command], None] = lambda time, command: None
    bench: Workbench = field(default_factory=Workbench)
    solver: Solver | None = None
    desk: AgentRegistry | None = None
    flight: Flight | None = None
    decided: list[Proof] = field(default_factory=list)
    """Of the decisions of this turn, for those who are told of them."""
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
        self._step(self._written(now, event), now)

    def _written(self, now: Seconds, event: Event) -> Event:
        """Write an event down; returns it as the journal has it, so that live and folded steps are of the same bytes."""
        line = self.journal.append(now, event)
        return cast(Event, decode(line)[1]) if line else event

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
        """When ``advance`` or ``attend`` has something to do."""
        due = [*self.wakes[:1], *([self.desk.due] if self.desk is not None and self.desk.due is not None else [])]
        return min(due, default=None)

    # ---- the decision under way ------------------------------------------------------------------------------------

    def attend(self, now: Seconds) -> None:
        """See to the decision under way: a window of the agents that is over, a solver that will not answer."""
        if self.flight is None:
            if self.core.solving is not None:
                self._solve(self.core.solving, now)  # the arbiter before this one did not live to see its answer
        elif self.flight.waits == "policy":
            problem = self.solver.overdue() if self.solver is not None else ""
            if problem:
                self.answered(fall_back(self.flight.snapshot, self.flight.version, problem), now)
        elif self.desk is not None and self.desk.complete(now):
            self._close(self.desk, self.flight, now)

    def answered(self, reply: Reply, now: Seconds) -> None:
        """The policy's answer is there."""
        flight = self.flight
        if flight is None or flight.waits != "policy" or reply.version != flight.version:
            return
        self.problem = reply.problem
        if reply.problem:
            log.warning("%s decides instead of the policy: %s", "fifo", reply.problem)
        answer = Allocated(version=reply.version, solved=reply.solved)
        if isinstance(reply.solved.answer, Ask):
            flight.reply = reply
        else:
            self.flight = None
            answer = cast(Allocated, self._written(now, answer))
            proof = reply.solved.proof
            self.decided.append(proof)
            if proof.method == "time":
                gap = proof.bound - proof.objective
                log.info("decision %d stopped after %.1f s, within %.2g nats", reply.version, reply.seconds, gap)
        self._step(answer, now)

    def _solve(self, snapshot: Snapshot, now: Seconds) -> None:
        flight = self.flight
        if flight is not None and snapshot.bids is not None:
            # The picture that the policy saw first has what agents said; the core's has not.
            flight.snapshot = replace(flight.snapshot, bids=snapshot.bids)
            self._ask_policy(flight, Task(version=flight.version, snapshot=None, bids=snapshot.bids), now)
            return
        self.flight = flight = Flight(snapshot.version, snapshot)
        if self.desk is not None and "rho_said" in self.policy.needs and self.desk.probe(snapshot, self._form, now):
            return
        self._ask_policy(flight, Task(version=flight.version, snapshot=snapshot), now)

    @property
    def _form(self) -> str:
        """The form of rho that the policy sorts by."""
        return str(getattr(self.policy, "rho", "paper"))

    def _ask_policy(self, flight: Flight, task: Task, now: Seconds) -> None:
        flight.waits = "policy"
        if self.solver is not None:
            self.solver.start(task)
        else:
            self.answered(decide(self.policy, flight.snapshot, flight.version, self.bench), now)

    def _collect(self, ask: Ask, now: Seconds) -> None:
        """Offer the GPUs to those agents that are programs of others; the service's own have bid already."""
        flight = self.flight
        assert flight is not None
        assert flight.reply is not None
        assert flight.reply.bids is not None
        flight.waits = "bids"
        if self.desk is None or not self.desk.offer(flight.snapshot, ask, flight.reply.bids, now):
            self._step(BidsCollected(version=flight.version, bids=flight.reply.bids), now)

    def _close(self, desk: AgentRegistry, flight: Flight, now: Seconds) -> None:
        """A window of the agents is over."""
        if flight.waits == "rho":
            flight.snapshot = replace(flight.snapshot, rho_said=desk.close_probe(flight.snapshot))
            for record in desk.rho_records(flight.version):
                self.feed(record, now)
            self._ask_policy(flight, Task(version=flight.version, snapshot=flight.snapshot), now)
            return
        assert flight.reply is not None
        assert flight.reply.bids is not None
        assert isinstance(flight.reply.solved.answer, Ask)
        ask = flight.reply.solved.answer
        said = desk.close_offer(flight.snapshot, ask)
        for record in desk.bid_records(flight.version, flight.snapshot, ask, said):
            self.feed(record, now)
        for app, jobs in sorted(desk.orders().items()):
            if self.core.state.apps.active[app]:
                self.feed(JobsOrdered(app=app, jobs=jobs), now)
        self._step(BidsCollected(version=flight.version, bids=merge(flight.reply.bids, said)), now)

    def _step(self, event: Event, now: Seconds) -> None:
        self.note(event)
        for command in self.core.step(event, now):
            self._follow(command, now)

    def _follow(self, command: Command, now: Seconds) -> None:
        match command:
            case WakeAt():
                heapq.heappush(self.wakes, max(command.time, now))
            case Solve():
                self._solve(command.snapshot, now)
            case CollectBids():
                self._collect(command.ask, now)
            case _:
                self.journal.append(now, command)
                self.remember(command)
                self.announce(now, command)
                self.out.append(command)

    # ---- what a restart needs -------------------------------------------------------------------------------------

    def note(self, event: Event) -> None:
        """Remember what an event says of gangs."""
        match event:
            case JobStarted():
                self.started.add(event.job)
            case JobStopped() | JobReached():
                self.saved[event.job] = event.steps
            case _:
                pass

    def remember(self, command: Command) -> None:
        """Remember what a command says of gangs."""
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

    def held(self) -> Sequence[tuple[Grant, float, bool]]:
        """Gangs that may be on GPUs: grant, steps with which they began, whether they are known to train."""
        return [
            (self.grants[j], self.saved.get(j, 0.0), j in self.started) for j in sorted(self.core.state.occupied)
        ]  # fmt: skip
