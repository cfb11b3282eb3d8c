"""Random histories of gangs on machines that fail, forget and reconnect: no GPU is given back while a process may live on it.

The machines here follow the contract of agents and supervisors: a task's processes end by themselves, on ``Stop``, or at the latest
when the lease that their machine was granted last, and the grace after it, are over.
"""

from __future__ import annotations

import os
from dataclasses import dataclass, field

import numpy as np
import pytest
from live import grant, revoke

from themis.machines.agent.messages import (
    Forget,
    Go,
    Hello,
    Lease,
    Message,
    Prepare,
    Renew,
    Stop,
    TaskReport,
    TaskState,
)
from themis.machines.engines.gangs import Gangs, Out, Send
from themis.machines.engines.hosts import Host, NodeSettings
from themis.machines.engines.program import AttemptEnded, Program
from themis.model.cluster import Machine
from themis.model.events import JobReached, JobStarted, JobStopped, MachineFailed, MachineReturned
from themis.testing.builders import app, job

SETTINGS = NodeSettings(lease_s=30.0, renew_s=10.0, margin_s=5.0, progress_s=10.0, prepare_s=120.0)
GRACE_S = 20.0
PROGRAM = Program(argv=("train",), grace_s=GRACE_S)
JOBS, MACHINES = 6, 3
HISTORIES = int(os.environ.get("THEMIS_GANG_HISTORIES", "60"))
LIVE = ("preparing", "prepared", "running", "stopping")


@dataclass
class Node:
    """The truth of one machine: its tasks, whether it is reached, and until when it may run them."""

    tasks: dict[str, TaskState] = field(default_factory=dict)
    causes: dict[str, str] = field(default_factory=dict)
    kill_at: dict[str, float] = field(default_factory=dict)
    lease_until: float = 30.0
    connected: bool = False
    cut: bool = False
    """Out of reach: nothing comes through."""


class World:
    """Arbiter and machines; messages that are sent while a machine is out of reach are lost."""

    def __init__(self, seed: int) -> None:
        self.rng, self.now = np.random.default_rng(seed), 0.0
        self.nodes = [Node() for _ in range(MACHINES)]
        self.hosts = [
            Host(machine=Machine(name=f"m{n}", gpus=2), address=f"10.0.0.{n}", devices=("0", "1"))
            for n in range(MACHINES)
        ]
        self.attempts = dict.fromkeys(range(JOBS), 0)
        self.held: dict[int, tuple[int, ...]] = {}
        """GPUs of each job, until they are given back."""
        self.asked: set[int] = set()
        self.started: set[tuple[int, int]] = set()
        self.saved: dict[int, float] = {}
        self.reached: set[int] = set()
        self.failed: set[int] = set()
        self.book = self.arbiter()
        self.given_back = 0

    def arbiter(self) -> Gangs:
        book = Gangs(self.hosts, lambda app, index: PROGRAM, SETTINGS, now=self.now, checkpoints="/ckpt")
        book.admit(0, app("a", [job(100.0, (1, 4))] * JOBS))
        return book

    # ---- what the arbiter says ----------------------------------------------------------------------------------------

    def take(self, out: list[Out]) -> None:
        for o in out:
            match o:
                case Send():
                    self.deliver(o.machine, o.message)
                case JobStarted():
                    assert (o.job, o.attempt) not in self.started, "once"
                    self.started.add((o.job, o.attempt))
                case JobStopped():
                    self.free(o)
                case AttemptEnded():
                    self.saved[o.job] = o.steps
                case JobReached():
                    self.no_process(o.job, o.attempt)
                    self.reached.add(o.job)
                case MachineFailed():
                    self.failed.add(o.machine)
                case MachineReturned():
                    self.failed.discard(o.machine)
                    assert not [
                        t for t, s in self.nodes[o.machine].tasks.items() if s.phase in LIVE and t not in self.wanted()
                    ]
                case _:
                    pass

    def wanted(self) -> set[str]:
        return {f"job{j}-attempt{self.attempts[j]}" for j in self.held}

    def no_process(self, job_: int, attempt: int) -> None:
        for node in self.nodes:
            state = node.tasks.get(f"job{job_}-attempt{attempt}")
            assert state is None or state.phase == "ended", (job_, state)

    def free(self, stopped: JobStopped) -> None:
        self.no_process(stopped.job, stopped.attempt)
        assert self.attempts[stopped.job] == stopped.attempt
        assert stopped.job in self.held, "given back once"
        del self.held[stopped.job]
        self.asked.discard(stopped.job)
        self.reached.discard(stopped.job)
        self.given_back += 1
        self.take(self.book.recorded(stopped.job, stopped.attempt, self.now))

    def deliver(self, n: int, message: Message) -> None:
        node = self.nodes[n]
        if not node.connected or node.cut:
            return
        match message:
            case Prepare():
                node.tasks.setdefault(message.spec.task, TaskState(task=message.spec.task, phase="preparing"))
            case Go() if (task := node.tasks.get(message.task)) and task.phase == "prepared":
                node.tasks[message.task] = TaskState(task=message.task, phase="running")
            case Stop() if (task := node.tasks.get(message.task)) and task.phase in LIVE:
                node.causes.setdefault(message.task, message.cause)
                node.kill_at.setdefault(message.task, self.now + message.grace_s)
                node.tasks[message.task] = TaskState(task=message.task, phase="stopping")
            case Forget():
                state = node.tasks.pop(message.task, None)
                assert state is None or state.phase == "ended", "a living task must not be forgotten"
            case Lease():
                node.lease_until = max(node.lease_until, self.now + message.lease_s)
            case _:
                pass

    # ---- what happens -------------------------------------------------------------------------------------------------

    def say(self, n: int, message: Message) -> None:
        node = self.nodes[n]
        if node.connected and not node.cut:
            self.take(self.book.handle_message(n, message, self.now))

    def end(self, n: int, task: str, cause: str, first: int | None) -> None:
        node = self.nodes[n]
        node.kill_at.pop(task, None)
        node.tasks[task] = TaskState(task=task, phase="ended", cause=cause, first=first, seconds=1.0, saved=True)
        self.say(n, node.tasks[task])

    def connect(self, n: int) -> None:
        node = self.nodes[n]
        if node.connected:
            self.book.disconnected(n)
        node.connected, node.cut = True, False
        self.say(n, Hello(node=f"m{n}", trust="single", tasks=tuple(node.tasks.values())))
        self.say(n, Renew(sequence=1))

    def pass_time(self, seconds: float) -> None:
        self.now += seconds
        for n, node in enumerate(self.nodes):
            if node.connected and not node.cut:
                self.say(n, Renew(sequence=2))
            for task in [t for t, s in node.tasks.items() if s.phase in LIVE]:
                over = self.now >= node.lease_until + GRACE_S
                if over or self.now >= node.kill_at.get(task, np.inf):
                    self.end(n, task, node.causes.get(task, "lease"), -9)
        self.take(self.book.tick(self.now))

    def progress(self, n: int) -> None:
        """One task of the machine goes on by itself."""
        node = self.nodes[n]
        live = sorted(t for t, s in node.tasks.items() if s.phase in LIVE)
        if not live:
            return
        task = live[int(self.rng.integers(len(live)))]
        match node.tasks[task].phase, int(self.rng.integers(6)):
            case "preparing", 0:
                self.end(n, task, "not_started", None)
            case "preparing", _:
                node.tasks[task] = TaskState(task=task, phase="prepared", port=20000 + n)
                self.say(n, node.tasks[task])
            case "running", 0:
                self.end(n, task, "", 1)
            case "running", 1 | 2:
                self.end(n, task, "", None)
            case "running", 3:
                self.say(n, TaskReport(task=task, steps=50.0, saved=40.0, step_s=0.1))
            case "running", _:
                self.say(n, node.tasks[task])
            case "stopping", _:
                self.end(n, task, node.causes.get(task, "preempted"), -15)
            case _:
                pass

    def grant(self, job_: int) -> None:
        busy = {gpu for gpus in self.held.values() for gpu in gpus}
        free = [g for g in range(2 * MACHINES) if g not in busy and g // 2 not in self.failed]
        if job_ in self.held or not free:
            return
        count = int(self.rng.integers(1, min(4, len(free)) + 1))
        gpus = tuple(sorted(int(g) for g in self.rng.choice(free, count, replace=False)))
        self.attempts[job_] += 1
        self.held[job_] = gpus
        self.take(self.book.command(grant(self.attempts[job_], gpus, job=job_, target=100.0), self.now))

    def revoke(self, job_: int) -> None:
        if job_ in self.held:
            self.asked.add(job_)
            self.take(self.book.command(revoke(self.attempts[job_], "preempted", job=job_), self.now))

    def restart(self) -> None:
        """The arbiter dies and another adopts the gangs of the journal; an answer that was revoked is revoked again."""
        self.book = self.arbiter()
        for node in self.nodes:
            node.connected = False
        for n in sorted(self.failed):
            self.book.restore_lost(n)
        for j, gpus in sorted(self.held.items()):
            known = (j, self.attempts[j]) in self.started
            one = grant(self.attempts[j], gpus, job=j, target=100.0)
            self.take(self.book.restore(one, self.saved.get(j, 0.0), self.now, started=known))
            if j in self.asked:
                self.take(self.book.command(revoke(self.attempts[j], "preempted", job=j), self.now))

    def something(self) -> None:
        n, j = int(self.rng.integers(MACHINES)), int(self.rng.integers(JOBS))
        match int(self.rng.integers(20)):
            case 0 | 1 | 2:
                self.grant(j)
            case 3:
                self.revoke(j)
            case 4:
                self.nodes[n].cut = True
            case 5:
                self.connect(n)
            case 6:
                self.pass_time(float(self.rng.exponential(15.0)))
            case 7:
                self.restart() if self.rng.random() < 0.2 else self.pass_time(1.0)
            case 8 | 9:
                self.pass_time(float(self.rng.exponential(3.0)))
            case _:
                self.progress(n)


@pytest.mark.parametrize("seed", range(HISTORIES))
def test_no_gpu_is_given_back_while_a_process_may_live_and_every_gang_ends(seed: int) -> None:
    w = World(seed)
    for n in range(MACHINES):
        w.connect(n)
    for _ in range(250):
        w.something()
    # In the end the network heals, and the scheduler wants all GPUs back.
    for n in range(MACHINES):
        w.connect(n)
    for j in sorted(w.held):
        w.revoke(j)
    for _ in range(200):
        if not w.held:
            break
        w.pass_time(5.0)
        for n, node in enumerate(w.nodes):
            if not node.connected:
                w.connect(n)
            w.progress(n)
    assert w.held == {}
    assert w.book.running == 0
    assert w.book.gangs == {}
    assert w.given_back == sum(w.attempts.values())
