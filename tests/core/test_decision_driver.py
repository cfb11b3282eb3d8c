"""The one driver of decisions: the same answers now or later give the same commands, and only awaited answers count."""

from __future__ import annotations

import ast
from dataclasses import replace
from pathlib import Path

import pytest

import themis
from themis.core.driver import Decision, Driver, PendingInput, logged_commands
from themis.core.scheduler import Scheduler
from themis.errors import ThemisError
from themis.model.answers import Ask, Solved
from themis.model.bids import Bids
from themis.model.events import AppSubmitted, Command, Event, Grant, MachineJoined, Wake
from themis.policies.api import Workbench, make_policy
from themis.policies.tuning.app_agent import answer_ask
from themis.testing.builders import BOOK, NO_OVERHEAD, app, job, machines


class Shell(Driver):
    """Keeps what the core asks for; ``late`` shells answer when the test says so."""

    def __init__(self, policy: str, *, late: bool = False, asks_rho: bool = False) -> None:
        self.policy, self.late, self.asks_rho = make_policy(policy), late, asks_rho
        self.core = Scheduler(BOOK, NO_OVERHEAD, self.policy.pace, self.policy.needs)
        self.wakes: list[float] = []
        self.events: list[str] = []
        self.commands: list[Command] = []
        self.broken: ThemisError | None = None
        self.solves = 0

    def record(self, event: Event, now: float) -> Event:
        self.events.append(type(event).__name__)
        return event

    def wake_at(self, time: float, now: float) -> None:
        self.wakes.append(max(time, now))

    def consult(self, decision: Decision, now: float) -> bool:
        return self.asks_rho

    def solve(self, decision: Decision, now: float) -> Solved | None:
        self.solves += 1
        if self.broken is not None:
            raise self.broken
        return None if self.late else self.decided(decision)

    def decided(self, decision: Decision) -> Solved:
        return self.policy(decision.snapshot, Workbench())

    def collect(self, decision: Decision, ask: Ask, now: float) -> Bids | None:
        return None if self.late else answer_ask(decision.snapshot, ask)

    def carry_out(self, command: Command, now: float) -> None:
        self.commands.append(command)

    def annotate(self, error: ThemisError, doing: str, now: float) -> None:
        error.add_note(f"at {now}: {doing}")

    def begin_work(self) -> None:
        """Two GPUs, two apps that each want one, and the instant ends."""
        for machine in machines(1, 1).machines:
            self.feed(MachineJoined(machine=machine), 0.0)
        for name in ("a", "b"):
            self.feed(AppSubmitted(app=app(name, [job(3600, 1)]), weight=1.0), 0.0)
        self.feed(Wake(), 0.0)

    def answer(self, now: float = 0.0) -> None:
        """What is waited for comes."""
        decision = self.decision
        assert decision is not None
        if decision.waits is PendingInput.POLICY:
            self.solved(decision.version, self.decided(decision), now)
        else:
            assert decision.ask is not None
            self.collected(answer_ask(decision.snapshot, decision.ask), now)


@pytest.mark.parametrize("policy", ["themis", "fifo", "max_min_fairness"])
def test_answers_that_come_later_give_the_commands_of_answers_that_come_now(policy: str) -> None:
    now, later = Shell(policy), Shell(policy, late=True)
    now.begin_work()
    later.begin_work()
    assert later.decision is not None
    assert not later.commands
    while later.decision is not None:
        later.answer()
    assert now.decision is None
    assert later.commands == now.commands
    assert sum(isinstance(command, Grant) for command in now.commands) == 2
    assert later.events == now.events
    assert sorted(later.wakes) == sorted(now.wakes)


def test_a_policy_that_asks_for_bids_sees_its_own_snapshot_with_the_bids() -> None:
    shell = Shell("themis", late=True)
    shell.begin_work()
    assert shell.decision is not None
    before = shell.decision.snapshot
    shell.answer()
    assert shell.decision.waits is PendingInput.BIDS
    assert shell.decision.ask is not None
    shell.answer()
    assert shell.decision.waits is PendingInput.POLICY
    assert shell.decision.snapshot.bids is not None
    assert replace(shell.decision.snapshot, bids=None).now == before.now
    assert shell.solves == 2


def test_only_the_answer_that_is_awaited_counts() -> None:
    shell = Shell("fifo", late=True)
    shell.begin_work()
    decision = shell.decision
    assert decision is not None
    solved = shell.decided(decision)
    shell.solved(decision.version + 1, solved, 0.0)
    shell.collected(Bids.__new__(Bids), 0.0)  # no bids are awaited
    assert shell.decision is decision
    assert "Allocated" not in shell.events
    shell.solved(decision.version, solved, 0.0)
    granted = list(shell.commands)
    assert granted
    shell.solved(decision.version, solved, 0.0)  # it comes twice
    assert shell.commands == granted
    assert shell.events.count("Allocated") == 1


def test_others_are_consulted_before_the_policy_sees_a_snapshot() -> None:
    shell = Shell("fifo", asks_rho=True)
    shell.begin_work()
    assert shell.decision is not None
    assert (shell.decision.waits, shell.solves) == (PendingInput.RHO, 0)
    assert not shell.awaits(shell.decision.version)
    shell.ask_policy(shell.decision, 0.0)
    assert (shell.decision, shell.solves) == (None, 1)


def test_a_decision_that_was_lost_is_asked_for_again_once() -> None:
    shell = Shell("fifo", late=True)
    shell.begin_work()
    shell.decision = None  # the process that waited for it is gone
    shell.resume(5.0)
    shell.resume(5.0)
    assert shell.solves == 2
    shell.answer(5.0)
    shell.resume(5.0)
    assert shell.solves == 2


def test_errors_say_once_what_was_being_done() -> None:
    shell = Shell("fifo")
    shell.broken = ThemisError("no answer")
    with pytest.raises(ThemisError) as caught:
        shell.begin_work()
    assert caught.value.__notes__ == ["at 0.0: the policy's decision"]


def test_a_log_is_followed_with_the_same_commands_and_asks_nothing() -> None:
    shell, wakes = Shell("fifo", late=True), [3.0]
    for machine in machines(1).machines:
        assert logged_commands(shell.core, MachineJoined(machine=machine), 1.0, wakes) == []
    assert logged_commands(shell.core, AppSubmitted(app=app("a", [job(60, 1)]), weight=1.0), 2.0, wakes) == []
    assert wakes[0] == 1.0
    assert logged_commands(shell.core, Wake(), 2.0, wakes) == []  # the policy is asked here
    assert shell.core.solving is not None


def test_one_module_answers_the_questions_of_the_core() -> None:
    """``Solve``, ``CollectBids`` and ``WakeAt`` are taken apart in one place, and made in another."""
    root = Path(themis.__file__).parent
    found = {
        str(path.relative_to(root))
        for path in root.rglob("*.py")
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.ImportFrom) and {"CollectBids", "WakeAt", "Solve"} & {name.name for name in node.names}
    }
    assert found == {"core/driver.py", "core/decision.py"}
