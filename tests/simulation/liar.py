"""A machine of the simulated service that sends what no machine should, over the bytes of a real connection.

It answers ``Prepare`` and ``Stop`` as an agent does, so that gangs are placed on it and its lies are of tasks that it has.
"""

from __future__ import annotations

import json
import random
import shutil
import socket
import tempfile
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from extremes import drawn
from simulation.bodies import Behaviour
from simulation.kernel import Process
from simulation.plan import Action, Plan, Submission
from simulation.world import World
from themis.machines.agent.channel import ServedChannel, readable
from themis.machines.agent.messages import (
    PROTOCOL,
    Fetch,
    FindCopy,
    GpusOccupied,
    Hello,
    Lease,
    Message,
    Occupied,
    Prepare,
    Rejected,
    Renew,
    Stop,
    TaskIdle,
    TaskReport,
    TaskRuns,
    TaskState,
    Upload,
    decode,
    packed,
)

PLAN = Plan(seed=0, machines=(2, 2, 2), policy="fifo", solve_s=0.0, events=())
LIAR = 2
JOB = Submission(at=0.0, key="", jobs=4, gpus=(1, 2), weight=1.0, grace_s=1.0, behaviour=Behaviour(work_s=6.0))
Draw = Callable[[int], tuple[str, bytes]]
"""What is wrong with a message of this number (empty: nothing), and its bytes."""


class Served(ServedChannel):
    """The arbiter's end, as the simulated executor asks it."""

    def due(self) -> bool:
        """Whether ``receive`` would return or raise something."""
        self.flush()
        return bool(readable([self.socket], 0.0))


class _Idle:
    """The body of a process that stands for the agent."""

    def step(self) -> int | None:
        return None

    def signal(self, number: int) -> None:
        pass

    def close(self) -> None:
        pass


class LyingWorld(World):
    """Two machines with agents and one that lies; ``draw`` : what it sends, ``most`` messages in all.

    ``pardons`` : an administrator puts it back into service each time.
    """

    def __init__(self, root: Path, draw: Draw | None, most: int, *, pardons: bool) -> None:
        super().__init__(PLAN, root)
        self.random = random.Random(1)
        self.draw, self.left, self.pardons = draw or self.near_to_right, most, pardons
        self.behaves = False
        """It lies no more, and stays connected."""
        self.socket: socket.socket | None = None
        self.served: Served | None = None
        self.inbox = self.outbox = b""
        self.quiet = 0
        """Turns until it lies: it behaves for a while on each connection, so that it is given gangs."""
        self.asked, self.answered = 1000, True
        """Sequence of the last ``Renew`` that it awaits the answer of, and whether it came."""
        self.tasks: dict[str, str] = {}
        """Phase of each task that it has."""
        self.sent: list[tuple[str, bytes]] = []
        """What it sent on this connection, with what is wrong with it."""
        self.refused: Counter[str] = Counter()
        """How often each sentence was the answer."""
        self.refused_right: list[str] = []
        """Answers to connections on which nothing wrong was sent."""
        self.submitted = self.given = 0
        """Apps that users submitted, and tasks that the machine was given."""

    def spawn_agent(self, n: int) -> Process:
        """As of ``World``, but for the machine that lies."""
        return self.kernels[n].spawn(_Idle(), "agent") if n == LIAR else super().spawn_agent(n)

    def turn(self) -> None:
        """As of ``World``; users submit as long as the machine lies."""
        if self.left and self.users.all_ended():
            self.users.does(Submission(**{**fields(JOB), "key": f"a{self.submitted}", "at": self.now}))
            self.submitted += 1
        super().turn()
        if self.service.arbiter is not None:
            self._lie()

    def close(self) -> None:
        """As of ``World``."""
        self._end()
        if self.served is not None:
            self.served.close()
        super().close()

    def until(self, holds: Callable[[], bool], what: str) -> None:
        """Let time pass until it holds."""
        most = self.now + 120.0
        while not holds():
            self.checks.require(self.now < most, lambda: f"it does not come to it that {what}")
            self.turn()

    def wait(self, seconds: float) -> None:
        """Let time pass."""
        until = self.now + seconds
        while self.now < until:
            self.turn()

    def end(self) -> None:
        """The machine is gone."""
        self.behaves = False
        self._end()

    # ---- the machine ------------------------------------------------------------------------------------------------

    def _lie(self) -> None:
        if self.socket is None:
            if (self.left or self.behaves) and self.now >= self.service.executor.gangs.nodes[LIAR].barred_until:
                self._dial()
            return
        self._hear()
        if self.socket is None:
            return
        for task, phase in [*self.tasks.items()]:
            after = {"preparing": "prepared", "go": "running", "stop": "ended"}.get(phase)
            if after:
                self.tasks[task] = after
                self._say(TaskState(task=task, phase=after, port=20000, codes=(0,) if after == "ended" else ()))
        self.tasks = {task: phase for task, phase in self.tasks.items() if phase != "ended"}
        self.quiet -= 1
        if self.behaves:
            self.asked += not self.outbox
            self._say(Renew(sequence=self.asked, heard=self.asked - 1))
        elif self.quiet > 0:
            pass
        elif self.answered and not any(wrong for wrong, _ in self.sent) and self.left:
            self.answered = False
            # The answer to one lie is awaited before the next.
            for _ in range(3):
                self.left -= 1
                wrong, line = self.draw(self.left)
                self.sent.append((wrong, line))
                self.outbox += line + b"\n"
                if wrong or not self.left:
                    break
            # Its answer shows that all of it was read.
            self.asked += 1
            self._say(Renew(sequence=self.asked, heard=self.asked))
        elif self.answered:
            self._end()  # what was wrong with it is within what may be said
        self._push()

    def _dial(self) -> None:
        executor = self.service.executor
        self.socket, theirs = socket.socketpair()
        for end in (self.socket, theirs):
            end.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 4 << 20)
        self.socket.setblocking(False)
        if self.served is not None:
            self.served.close()
        self.served = Served(theirs, executor.clock)
        executor._unidentified.append(self.served)
        self.inbox = self.outbox = b""
        self.quiet = self.random.randint(1, 8)
        self.sent.clear()
        self.tasks.clear()
        self._say(Hello(node=f"m{LIAR}", trust="root", protocol=PROTOCOL))
        self.answered = True
        self._say(Renew(sequence=1, heard=0))
        self._push()

    def _say(self, message: Message) -> None:
        self.outbox += packed(message)

    def _push(self) -> None:
        try:
            while self.socket is not None and self.outbox:
                self.outbox = self.outbox[self.socket.send(self.outbox) :]
        except BlockingIOError:
            pass
        except OSError:
            self._hear()
            self._end()

    def _hear(self) -> None:
        assert self.socket is not None
        over = False
        try:
            while data := self.socket.recv(1 << 20):
                self.inbox += data
            over = True
        except BlockingIOError:
            pass
        except OSError:
            over = True
        *lines, self.inbox = self.inbox.split(b"\n")
        for line in lines:
            match decode({**json.loads(line), "data": b""}):
                case Prepare(spec=spec):
                    self.tasks[spec.task] = "preparing"
                    self.given += 1
                case Stop(task=task):
                    self.tasks[task] = "stop"
                case Lease(sequence=sequence):
                    self.answered |= sequence == self.asked
                case Rejected(reason=reason):
                    self.refused[reason] += 1
                    if not any(wrong for wrong, _ in self.sent):
                        self.refused_right.append(f"{self.sent}: {reason}")
                    if self.pardons:
                        self.pardon()
                case message if hasattr(message, "env"):
                    self.tasks[message.task] = "go"
                case _:
                    pass
        if over:
            self._end()

    def _end(self) -> None:
        if self.socket is not None:
            self.socket.close()
        self.socket = None

    def pardon(self) -> None:
        """An administrator puts it back into service."""
        self.users.does(Action(at=self.now, what="undrain", target=str(LIAR)))

    # ---- its messages -----------------------------------------------------------------------------------------------

    def near_to_right(self, number: int) -> tuple[str, bytes]:
        """A message with one extreme value, one with a field missing or doubled, or one as it should be."""
        return drawn(self.random, head(self.random.choice(self.right())), number)

    def right(self) -> list[Message]:
        """Messages as a machine sends them, about tasks that it has and one that is nobody's."""
        task = self.random.choice([*self.tasks, "job7-attempt90"])
        state = TaskState(task=task, phase="running", port=20000, seconds=1.5, message="a note", first=None)
        ended = TaskState(task=task, phase="ended", codes=(0, 0), first=None, saved=True, seconds=9.0)
        report = TaskReport(task=task, steps=5.0, saved=4.0, loss=0.5, step_s=0.1, batch=32)
        occupied = (Occupied(gpus=(0,), pids=(77, 78), reason="not of this service"),)
        return [
            state,
            ended,
            report,
            TaskRuns(task=task, runs=("mlflow:0123", "wandb:a/b")),
            TaskIdle(task=task, gpu_seconds=3.0, each_s=(2.0,)),
            GpusOccupied(items=occupied),
            GpusOccupied(),
            Renew(sequence=3, heard=2),
            Hello(
                node=f"m{LIAR}", trust="root", tasks=(state,), reports=(report,), occupied=occupied, protocol=PROTOCOL
            ),
            Fetch(bundle="0" * 64, offset=0),
            FindCopy(task=task, waited_s=1.0),
            Upload(task=task, number=1, offset=0, size=4, final=False),
        ]


def head(message: Message) -> dict[str, Any]:
    """The line of a message."""
    found: dict[str, Any] = json.loads(packed(message))
    return found


def fields(submission: Submission) -> dict[str, Any]:
    """Its fields by name."""
    return {name: getattr(submission, name) for name in submission.__dataclass_fields__}


@contextmanager
def lying(draw: Draw | None, most: int, *, pardons: bool = True) -> Iterator[LyingWorld]:
    """A world in which the machine sent so many messages, users' apps ended, and the journal was audited."""
    shm = Path("/dev/shm")
    root = Path(tempfile.mkdtemp(prefix="themis-sim-", dir=shm if shm.is_dir() else None))
    world = LyingWorld(root, draw, most, pardons=pardons)
    try:
        world.service.start()
        while world.left or world.socket is not None:
            world.turn()
        world.until(world.users.all_ended, "every app ended")
        yield world
    finally:
        world.close()
        shutil.rmtree(root, ignore_errors=True)
