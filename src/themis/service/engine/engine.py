"""The core with a journal: every event and the commands that follow from it are written before anything is done.

Time is given by the caller. The engine answers ``Wake`` at the instants that the core asked for. Each is delivered at the
very instant that was asked for, however late the caller comes, except after a restart: what became due while no caller was
there is settled at the time of the restart, once, not for every lease that passed meanwhile.

A decision runs concurrently with incoming events: apps' agents say their rho, the policy runs, agents bid, the policy
runs again; only its answer is written down, and the bids of others that went into it. Without a ``solver`` and agents
all of that happens at the same instant, as in the simulator; so one sequence of events gives the same commands in both.
"""

from __future__ import annotations

import heapq
import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import cast

from themis.core.changes import policy_of
from themis.core.driver import Decision, Driver, PendingInput
from themis.core.scheduler import Scheduler
from themis.model.answers import Ask, Proof, Solved
from themis.model.bids import Bids
from themis.model.events import (
    Allocated,
    BidsCollected,
    Command,
    Event,
    Grant,
    JobReached,
    JobsOrdered,
    JobStarted,
    JobStopped,
    Renew,
    Revoke,
    SettingsChanged,
    Wake,
)
from themis.model.log import decode
from themis.model.units import Seconds
from themis.policies.api import Policy, Workbench
from themis.policies.tuning.outside import merge
from themis.service.engine.agents import AgentRegistry
from themis.service.engine.books import Books
from themis.service.engine.journal import Journal
from themis.service.engine.quarantine import SERVICE, Owner, Quarantine, blame, owner_of
from themis.service.engine.solving import PolicySolver, Reply, Task, decide, fall_back
from themis.service.engine.tallies import Tallies

log = logging.getLogger("themis.service")


@dataclass(slots=True)
class Engine(Driver):
    """Scheduler, policy and journal; ``announce`` sees every command as it is written down, within the transaction."""

    journal: Journal
    core: Scheduler
    policy: Policy
    announce: Callable[[Seconds, Command], None] = lambda time, command: None
    bench: Workbench = field(default_factory=Workbench)
    solver: PolicySolver | None = None
    desk: AgentRegistry | None = None
    reply: Reply | None = None
    """The policy's last answer."""
    decided: list[Proof] = field(default_factory=list)
    """Decisions of this transaction, for the callers that are notified of them."""
    tallies: Tallies = field(default_factory=Tallies)
    wakes: list[Seconds] = field(default_factory=list)
    not_before: Seconds = 0.0
    """Deliver overdue wake-ups now: they were due while no arbiter ran."""
    problem: str = ""
    """Why the policy made no decision when it was asked last."""
    grants: dict[int, Grant] = field(default_factory=dict)
    """Each job's last grant, as renewed."""
    revokes: dict[int, Revoke] = field(default_factory=dict)
    """Each job's last revocation."""
    started: set[int] = field(default_factory=set)
    """Jobs whose last grant is known to have started."""
    saved: dict[int, float] = field(default_factory=dict)
    """Steps with which each job's next attempt begins, as last reported."""
    out: list[Command] = field(default_factory=list)
    quarantine: Quarantine = field(default_factory=Quarantine)
    late: list[tuple[Owner, Command]] = field(default_factory=list)
    """Commands that follow from quarantines which apply from a skipped record on, until these are recorded
    themselves."""
    late_owners: set[Owner] = field(default_factory=set)
    """Owners in these quarantines."""
    instead: str = ""
    """Why the fallback makes the next decision, instead of the policy; empty where the policy makes it."""
    books: Books = field(init=False)

    def __post_init__(self) -> None:
        self.books = Books(self.journal)

    # ---- live -----------------------------------------------------------------------------------------------------

    def feed(self, event: Event, now: Seconds) -> None:
        """Same as ``Driver.feed``; records the cause of an error."""
        try:
            # Advance the clock first and separately: an error there is not the event's.
            if type(event) is not BidsCollected and not (
                type(event) is Allocated and isinstance(event.solved.answer, Ask)
            ):
                self.core.state.advance(now)
        except Exception as error:
            blame(error, SERVICE)
            raise
        try:
            Driver.feed(self, event, now)
        except Exception as error:
            blame(error, owner_of(event, self.core.state))
            raise

    def adopt(self, fresh: Engine) -> None:
        """Continue from another engine of the same journal, which was folded: what this one has beyond that is given up."""
        for name in ("core", "wakes", "grants", "revokes", "started", "saved", "late", "late_owners", "books"):
            setattr(self, name, getattr(fresh, name))
        self.decision = self.reply = None
        self.out, self.decided = [], []
        self.follow(fresh.policy)
        if self.desk is not None:
            self.desk.give_up()

    def take_late(self, owner: Owner) -> list[Command]:
        """The commands that follow from an owner's quarantine, which is recorded now."""
        mine = [command for whose, command in self.late if whose == owner]
        self.late = [(whose, command) for whose, command in self.late if whose != owner]
        self.late_owners.discard(owner)
        return mine

    def record(self, event: Event, now: Seconds) -> Event:
        """Write an event down; returns it as the journal has it, so that live and folded steps are of the same bytes."""
        line = self.journal.append(now, event)
        event = cast(Event, decode(line)[1]) if line else event
        self.note(event)
        self.books.add(now, event)
        return event

    def advance(self, now: Seconds) -> None:
        """Settle every instant up to now that the core asked for."""
        while self.wakes and self.wakes[0] <= now:
            time = max(heapq.heappop(self.wakes), self.not_before)
            self.feed(Wake(), time)

    def commands(self) -> list[Command]:
        """Return and clear the commands since the last call; call it after the journal's transaction."""
        out, self.out = self.out, []
        return out

    @property
    def next_wake(self) -> Seconds | None:
        """Time at which ``advance`` or ``check_decision`` has something to do."""
        due = [*self.wakes[:1], *([self.desk.due] if self.desk is not None and self.desk.due is not None else [])]
        return min(due, default=None)

    # ---- the decision under way ------------------------------------------------------------------------------------

    def check_decision(self, now: Seconds) -> None:
        """Check the pending decision: an expired window of the agents, or a solver that does not answer."""
        decision = self.decision
        if decision is None:
            self.resume(now)  # the arbiter before this one did not live to see its answer
        elif decision.waits is PendingInput.POLICY:
            problem = self.solver.overdue() if self.solver is not None else ""
            if problem:
                self.answered(fall_back(decision.snapshot, decision.version, problem), now)
        elif self.desk is not None and self.desk.complete(now):
            self._close(self.desk, decision, now)

    def forced(self) -> None:
        """Count a decision without the policy."""
        self.tallies.decisions["forced"] += 1

    def answered(self, reply: Reply, now: Seconds) -> None:
        """The policy's answer is there."""
        if self.awaits(reply.version):
            self.solved(reply.version, self._taken(reply), now)

    def _taken(self, reply: Reply) -> Solved:
        self.reply, self.problem, proof = reply, reply.problem, reply.solved.proof
        self.tallies.replied(reply.solved.answer, proof, reply.seconds, reply.problem)
        if reply.problem:
            log.warning("%s decides instead of the policy: %s", "fifo", reply.problem)
        if not isinstance(reply.solved.answer, Ask):
            self.decided.append(proof)
            if proof.method == "time":
                gap = proof.bound - proof.objective
                log.info("decision %d stopped after %.1f s, within %.2g nats", reply.version, reply.seconds, gap)
        return reply.solved

    @property
    def _form(self) -> str:
        """The form of rho that the policy sorts by."""
        return str(getattr(self.policy, "rho", "paper"))

    def _close(self, desk: AgentRegistry, decision: Decision, now: Seconds) -> None:
        """A window of the agents is over."""
        if decision.waits is PendingInput.RHO:
            decision.snapshot = replace(decision.snapshot, rho_said=desk.close_probe(decision.snapshot))
            for record in desk.rho_records(decision.version):
                self.feed(record, now)
            self.ask_policy(decision, now)
            return
        assert decision.ask is not None
        assert self.reply is not None
        assert self.reply.bids is not None
        outside_bids = desk.close_offer(decision.snapshot, decision.ask)
        for record in desk.bid_records(decision.version, decision.snapshot, decision.ask, outside_bids):
            self.feed(record, now)
        for app, jobs in sorted(desk.orders().items()):
            if self.core.state.apps.active[app]:
                self.feed(JobsOrdered(app=app, jobs=jobs), now)
        self.collected(merge(self.reply.bids, outside_bids), now)

    # ---- the driver's shell ----------------------------------------------------------------------------------------

    def wake_at(self, time: Seconds, now: Seconds) -> None:
        """Remember when ``advance`` has something to do."""
        heapq.heappush(self.wakes, max(time, now))

    def consult(self, decision: Decision, now: Seconds) -> bool:
        """Ask the agents that are programs of others for their rho, where the policy looks at it."""
        if self.desk is None or "rho_said" not in self.policy.needs:
            return False
        return self.desk.probe(decision.snapshot, self._form, now)

    def solve(self, decision: Decision, now: Seconds) -> Solved | None:
        """Give the snapshot to the worker, or only the bids where it has the snapshot; without one, run the policy here."""
        if self.instead:
            problem, self.instead = self.instead, ""
            return self._taken(fall_back(decision.snapshot, decision.version, problem))
        if self.solver is None:
            return self._taken(decide(self.policy, decision.snapshot, decision.version, self.bench))
        bids = None if decision.ask is None else decision.snapshot.bids
        snapshot = decision.snapshot if decision.ask is None else None
        self.solver.start(Task(version=decision.version, snapshot=snapshot, bids=bids))
        return None

    def collect(self, decision: Decision, ask: Ask, now: Seconds) -> Bids | None:
        """Offer the GPUs to connected agents; the agents of the service itself have bid already."""
        assert self.reply is not None
        assert self.reply.bids is not None
        if self.desk is not None and self.desk.offer(decision.snapshot, ask, self.reply.bids, now):
            return None
        return self.reply.bids

    def given_up(self) -> None:
        """The agents need not answer any more; what the solver answers is passed over by its version."""
        self.reply = None
        if self.desk is not None:
            self.desk.give_up()

    def carry_out(self, command: Command, now: Seconds) -> None:
        """Write a command down; it is done after the transaction."""
        self.write(command, now)
        self.out.append(command)

    def write(self, command: Command, now: Seconds) -> None:
        """Write a command down."""
        self.journal.append(now, command)
        self.remember(command)
        self.books.add(now, command)
        self.announce(now, command)

    # ---- what a restart needs -------------------------------------------------------------------------------------

    def note(self, event: Event) -> None:
        """Remember what an event says of gangs."""
        match event:
            case JobStarted():
                self.started.add(event.job)
            case JobStopped() | JobReached():
                self.saved[event.job] = event.steps
            case SettingsChanged():
                self.follow(policy_of(event))
            case _:
                pass

    def follow(self, policy: Policy | None) -> None:
        """Have another policy decide from now on."""
        if policy is None:
            return
        self.policy, self.problem = policy, ""
        self.bench.clear()
        if self.solver is not None:
            self.solver.follow(policy)

    def remember(self, command: Command) -> None:
        """Remember what a command says of gangs."""
        match command:
            case Grant():
                self.grants[command.job] = command
                self.started.discard(command.job)
            case Renew():
                for job in command.jobs:
                    self.grants[job] = replace(self.grants[job], until=command.until)
            case Revoke():
                self.revokes[command.job] = command
            case _:
                pass

    def held(self) -> Sequence[tuple[Grant, float, bool]]:
        """Gangs that may be on GPUs: grant, steps with which they began, whether they are known to train."""
        return [(self.grants[j], self.saved.get(j, 0.0), j in self.started) for j in sorted(self.core.state.occupied)]
