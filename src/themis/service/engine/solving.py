"""Execution of the policy: in the arbiter's own thread (tests), or in a worker process, so that a slow policy delays no
caller.

A decision takes one task, or two where the policy asks for bids; the answer to each names the snapshot's version. One
decision is pending at a time. The state may change until it arrives: the core places what still fits and has the rest
solved again.
"""

from __future__ import annotations

import logging
import pickle
import subprocess
import sys
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, replace
from queue import SimpleQueue
from threading import Thread
from time import monotonic
from typing import IO, Protocol

from themis.errors import ThemisError
from themis.model.answers import Ask, Solved
from themis.model.bids import Bids
from themis.model.snapshot import Snapshot
from themis.model.units import Seconds
from themis.policies.api import Policy, Workbench, make_policy
from themis.policies.tuning.app_agent import answer_ask

log = logging.getLogger("themis.service")

FALLBACK = "fifo"
"""Decides where the policy itself could not, so that GPUs do not stand idle."""
PATIENCE = 3.0
"""A worker is stopped after this many times the seconds that a decision may take."""
START_S = 30.0
"""Seconds for a worker's start, in addition to its first task."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Task:
    """A snapshot to decide on; without one, that of the last task, with the bids that its answer asked for."""

    version: int
    snapshot: Snapshot | None
    bids: Bids | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Reply:
    """Reply of the policy.

    Attributes
    ----------
    bids : bids of the service's own agents, if the answer requests bids.
    problem : reason why the policy made no decision; the answer is then ``FALLBACK``'s.
    seconds : wall time of policy and agents.
    """

    version: int
    solved: Solved
    bids: Bids | None = None
    problem: str = ""
    seconds: Seconds = 0.0


def decide(policy: Policy, snapshot: Snapshot, version: int, bench: Workbench) -> Reply:
    """Run the policy, and the agents if it asks for them; where it raises, the fallback decides."""
    began = monotonic()
    try:
        solved = policy(snapshot, bench)
        asked = isinstance(solved.answer, Ask)
        bids = answer_ask(snapshot, solved.answer) if isinstance(solved.answer, Ask) else None
        assert not asked or snapshot.bids is None, "the policy asked for bids that it had"
    except ThemisError as error:
        bench.clear()
        return _instead(snapshot, version, str(error), monotonic() - began)
    except Exception as error:  # a policy's bug must not end the service
        log.exception("the policy failed")
        bench.clear()
        return _instead(snapshot, version, f"{type(error).__name__}: {error}", monotonic() - began)
    return Reply(version=version, solved=solved, bids=bids, seconds=monotonic() - began)


def fall_back(snapshot: Snapshot, version: int, problem: str) -> Reply:
    """The fallback's decision, without a task for the worker."""
    return _instead(snapshot, version, problem, 0.0)


def _instead(snapshot: Snapshot, version: int, problem: str, seconds: Seconds) -> Reply:
    solved = make_policy(FALLBACK)(replace(snapshot, bids=None), Workbench())
    return Reply(version=version, solved=solved, problem=f"at {snapshot.now:.0f} s: {problem}", seconds=seconds)


class PolicySolver(Protocol):
    """Worker that takes one task at a time and replies later."""

    def start(self, task: Task) -> None:
        """Begin; what was in flight is given up."""
        ...

    def overdue(self) -> str:
        """Why no reply will come any more, empty while one may."""
        ...

    def ready(self) -> None:
        """Get ready for a first task."""
        ...

    def follow(self, policy: Policy) -> None:
        """Run another policy from now on; what is in flight is given up."""
        ...

    def limit(self, seconds: Seconds) -> None:
        """Set the approximate time limit of decisions from now on."""
        ...

    def close(self) -> None:
        """End."""
        ...


class WorkerSolver:
    """A separate process that runs the policy; it ends with this process in every case.

    Parameters
    ----------
    policy : sent to the process once. ``seconds`` : time after which the policy's searches should stop.
    send : gets every reply, in a thread of this object.
    """

    def __init__(self, policy: Policy, seconds: Seconds, send: Callable[[Reply], None]) -> None:
        self.policy, self.seconds, self.send = policy, seconds, send
        self._worker: _Worker | None = None
        self._version: int | None = None
        """Version of the snapshot in the pending decision."""
        self._until: Seconds = 0.0
        self._last: Snapshot | None = None
        self._problem = ""

    def follow(self, policy: Policy) -> None:
        """Run another policy from now on, in a process without state of the old one."""
        self.policy, self._version, self._last = policy, None, None
        self._end()

    def limit(self, seconds: Seconds) -> None:
        """Set the time limit of a decision in seconds. The worker process is stopped only if it is idle; the next one
        has the new limit."""
        if seconds != self.seconds:
            self.seconds = seconds
            if self._version is None:
                self._end()

    def ready(self) -> None:
        """Start the process before it is needed."""
        if self._worker is None or not self._worker.alive:
            self._end()
            self._worker = _Worker(self.policy, self.seconds, self._on_reply)

    def start(self, task: Task) -> None:
        """Send a task; a worker that is still busy with an older one, or gone, is replaced."""
        if self._version is not None:
            self._end()
        before = self._worker
        self._last = task.snapshot or self._last
        self._version = task.version
        try:
            self.ready()
        except OSError as error:  # no more processes, or files, or memory
            self._problem = f"no process to run the policy could be started: {error}."
            return
        assert self._worker is not None
        if task.snapshot is None and self._worker is not before:
            task = replace(task, snapshot=self._last)  # the worker with this decision is gone
        ready = monotonic() if self._worker.answered else max(monotonic(), self._worker.born + START_S)
        self._until = ready + PATIENCE * self.seconds
        self._worker.inbox.put(task)

    def overdue(self) -> str:
        """True if the worker died, or takes much longer than it may; it is then ended."""
        problem, self._problem = self._problem, ""
        if problem:
            self._version = None
            return problem
        if self._version is None or self._worker is None:
            return ""
        if not self._worker.alive:
            code = self._worker.process.returncode
            self._version = None
            return f"the process that ran the policy ended with code {code}."
        if monotonic() < self._until:
            return ""
        self._version = None
        self._end()
        return f"the policy took more than {PATIENCE:g} times its {self.seconds:g} s and was stopped."

    def close(self) -> None:
        """End the worker."""
        self._version = None
        self._end()

    def _on_reply(self, worker: _Worker, reply: Reply) -> None:
        if worker is self._worker and reply.version == self._version:
            self._version = None
            self.send(reply)

    def _end(self) -> None:
        worker, self._worker = self._worker, None
        if worker is not None:
            worker.end()


class _Worker:
    """One process, and the thread that talks to it: a task, its reply, the next task."""

    def __init__(self, policy: Policy, seconds: Seconds, on_reply: Callable[[_Worker, Reply], None]) -> None:
        # -P: nothing in the folder where the service was started can pass for a module.
        command = [sys.executable, "-P", "-m", "themis.service.engine.policy_worker"]
        self.process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
        self.born, self.answered, self.on_reply = monotonic(), False, on_reply
        self.inbox: SimpleQueue[Task | None] = SimpleQueue()
        self.thread = Thread(target=self._talk, args=((policy, seconds),), name="themis-solver", daemon=True)
        self.thread.start()

    @property
    def alive(self) -> bool:
        return self.process.poll() is None

    def _talk(self, first: object) -> None:
        stdin, stdout = self.process.stdin, self.process.stdout
        assert stdin is not None
        assert stdout is not None
        try:
            send(stdin, first)
            while (task := self.inbox.get()) is not None:
                send(stdin, task)
                reply: Reply = pickle.load(stdout)
                self.answered = True
                self.on_reply(self, reply)
        except (EOFError, OSError, pickle.UnpicklingError):
            pass  # it has ended; ``overdue`` reports it
        finally:
            self.process.kill()
            for pipe in (stdin, stdout):
                with suppress(OSError):
                    pipe.close()

    def end(self) -> None:
        self.process.kill()
        self.process.wait()
        self.inbox.put(None)
        self.thread.join()


def send(pipe: IO[bytes], message: object) -> None:
    """Write a message so that ``pickle.load`` reads it."""
    pickle.dump(message, pipe, protocol=pickle.HIGHEST_PROTOCOL)
    pipe.flush()
