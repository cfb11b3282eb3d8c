"""The policy in a process of its own: it delays nobody, and what goes wrong there ends nothing here."""

from __future__ import annotations

import os
import time
from pathlib import Path
from queue import SimpleQueue

import pytest
from fake import World, request, world
from slow_policy import Slow

from processes import PATIENCE_S
from themis.model.answers import Ask
from themis.model.events import Allocated, Grant
from themis.model.snapshot import Snapshot
from themis.policies.api import make_policy
from themis.service.api.submission import submit
from themis.service.engine.solving import PolicySolver, Reply, Task, WorkerSolver, decide, fall_back
from themis.testing.builders import app, job, machines, snapshot_of

pytestmark = pytest.mark.slow  # a process starts in a second


def snapshot(*apps: int) -> Snapshot:
    return snapshot_of(machines(4, 4), [app(f"a{n}", [job(100.0 * n, 2)]) for n in apps or (1, 2, 3)])


@pytest.fixture(autouse=True)
def _importable(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(Path(__file__).parent), os.environ.get("PYTHONPATH", "")]))


def solver(policy: object, seconds: float = 10.0) -> tuple[WorkerSolver, SimpleQueue[Reply]]:
    replies: SimpleQueue[Reply] = SimpleQueue()
    return WorkerSolver(policy, seconds, replies.put), replies  # type: ignore[arg-type]


def test_a_worker_answers_both_phases_as_the_thread_itself_would() -> None:
    policy, view = make_policy("themis"), snapshot()
    worker, replies = solver(policy)
    try:
        from dataclasses import replace

        from themis.policies.api import Workbench

        worker.start(Task(version=7, snapshot=view))
        first = replies.get(timeout=PATIENCE_S)
        mine = decide(policy, view, 7, Workbench())
        assert isinstance(first.solved.answer, Ask)
        assert first.bids is not None
        assert mine.bids is not None
        assert first.bids.row_value.tolist() == mine.bids.row_value.tolist()
        worker.start(Task(version=7, snapshot=None, bids=first.bids))
        second = replies.get(timeout=PATIENCE_S)
        expected = decide(policy, replace(view, bids=mine.bids), 7, Workbench())
        assert second.solved.answer.gpus.tolist() == expected.solved.answer.gpus.tolist()  # type: ignore[union-attr]
        assert second.solved.proof.objective == expected.solved.proof.objective
    finally:
        worker.close()


def test_what_a_policy_prints_or_raises_does_no_harm() -> None:
    for how, problem in (("print", ""), ("raise", "ZeroDivisionError: a bug")):
        worker, replies = solver(Slow(how=how))
        try:
            worker.start(Task(version=1, snapshot=snapshot()))
            reply = replies.get(timeout=PATIENCE_S)
            assert problem in reply.problem
            assert bool(problem) == bool(reply.problem)
            assert len(reply.solved.answer.gpus)  # type: ignore[union-attr]
        finally:
            worker.close()


def wait_overdue(worker: PolicySolver) -> str:
    end = time.monotonic() + PATIENCE_S
    while not (problem := worker.overdue()):
        assert time.monotonic() < end
        time.sleep(0.02)
    return problem


def test_a_worker_that_dies_is_noticed_and_replaced() -> None:
    worker, replies = solver(Slow(how="die"))
    try:
        worker.start(Task(version=1, snapshot=snapshot()))
        assert "ended with code 3" in wait_overdue(worker)
        worker.policy = Slow()
        worker.start(Task(version=2, snapshot=snapshot()))
        assert replies.get(timeout=PATIENCE_S).version == 2
    finally:
        worker.close()


def test_a_policy_that_takes_much_too_long_is_stopped(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("themis.service.engine.solving.START_S", 0.0)
    worker, replies = solver(Slow(seconds=60.0), seconds=0.2)
    try:
        worker.start(Task(version=1, snapshot=snapshot()))
        assert "took more than 3 times its 0.2 s" in wait_overdue(worker)
        assert replies.empty()
    finally:
        worker.close()


def test_the_worker_ends_with_its_parent() -> None:
    worker, _ = solver(Slow())
    worker.ready()
    assert worker._worker is not None
    process = worker._worker.process
    assert process.stdin is not None
    worker._worker.inbox.put(None)  # the pipe closes, as it does when the parent is killed
    assert process.wait(30) in (0, -9)
    worker.close()


# ---- in the service: a solver that the test answers for ----------------------------------------------------------------


class Hand:
    """A solver whose replies the test gives."""

    def __init__(self) -> None:
        self.tasks: list[Task] = []
        self.problem = ""

    def ready(self) -> None:
        pass

    def start(self, task: Task) -> None:
        self.tasks.append(task)

    def overdue(self) -> str:
        problem, self.problem = self.problem, ""
        return problem

    def close(self) -> None:
        pass


def by_hand(w: World) -> Hand:
    hand = Hand()
    w.arbiter.engine.solver = hand
    return hand


def answer(w: World, hand: Hand) -> None:
    """The policy's answer to the last task, now."""
    from themis.policies.api import Workbench

    decision = w.arbiter.engine.decision
    assert decision is not None
    w.arbiter.queue.put(decide(w.arbiter.engine.policy, decision.snapshot, hand.tasks[-1].version, Workbench()))
    w.turn()


def enter(w: World, name: str, **more: object) -> int:
    return int(w.ask(lambda a: submit(a, request(name, **more))).app)


def test_submissions_and_reports_are_answered_while_the_policy_thinks(tmp_path: Path) -> None:
    with world(tmp_path, 2, policy="gandiva") as w:
        hand = by_hand(w)
        first = enter(w, "first")
        assert len(hand.tasks) == 1
        second = enter(w, "second")
        w.turn(100.0)
        assert (first, second, len(hand.tasks)) == (0, 1, 1)
        answer(w, hand)
        assert w.held() == {0: (0,)}
        # What came meanwhile is decided at once, and only that.
        assert len(hand.tasks) == 2
        answer(w, hand)
        assert w.held() == {0: (0,), 1: (1,)}
        w.turn(0.1)
        assert len(hand.tasks) == 2


def test_an_answer_for_an_app_that_is_gone_harms_nobody(tmp_path: Path) -> None:
    with world(tmp_path, 1, policy="gandiva") as w:
        hand = by_hand(w)
        first = enter(w, "first")
        enter(w, "second")
        w.ask(lambda a: a.cancel(first))
        answer(w, hand)
        assert w.held() == {}
        answer(w, hand)
        assert w.held() == {1: (0,)}


def test_where_no_answer_will_come_the_fallback_decides_and_the_service_says_why(tmp_path: Path) -> None:
    with world(tmp_path, 1, policy="themis") as w:
        hand = by_hand(w)
        enter(w, "first")
        hand.problem = "the process that ran the policy ended with code 3."
        w.turn(0.1)
        assert w.held() == {0: (0,)}
        assert "ended with code 3" in w.arbiter.engine.problem


def test_replies_to_questions_of_before_are_passed_over(tmp_path: Path) -> None:
    with world(tmp_path, 1, policy="gandiva") as w:
        hand = by_hand(w)
        enter(w, "first")
        decision = w.arbiter.engine.decision
        assert decision is not None
        w.arbiter.queue.put(fall_back(decision.snapshot, decision.version + 5, "nothing"))
        w.turn()
        assert w.held() == {}
        answer(w, hand)
        assert w.held() == {0: (0,)}


def test_a_decision_that_a_crash_interrupted_is_taken_up_again(tmp_path: Path) -> None:
    clock = [1000.0]
    with world(tmp_path, 1, clock=clock, policy="gandiva") as w:
        by_hand(w)
        enter(w, "first")
        assert w.held() == {}
    with world(tmp_path, 1, clock=clock, policy="gandiva") as w:
        w.turn(0.1)
        assert w.held() == {0: (0,)}
        kinds = [type(r) for _, r in w.arbiter.journal.records() if isinstance(r, Allocated | Grant)]
        assert kinds == [Allocated, Grant]


def test_where_no_process_can_be_started_the_fallback_decides_until_one_can(monkeypatch: pytest.MonkeyPatch) -> None:
    worker, replies = solver(make_policy("fifo"))

    def refuse(*_: object, **__: object) -> None:
        raise OSError("too many open files")

    try:
        with monkeypatch.context() as patched:
            patched.setattr("themis.service.engine.solving.subprocess.Popen", refuse)
            worker.start(Task(version=1, snapshot=snapshot()))
            assert "too many open files" in worker.overdue()
            assert worker.overdue() == ""
        worker.start(Task(version=2, snapshot=snapshot()))
        assert replies.get(timeout=PATIENCE_S).version == 2
    finally:
        worker.close()
