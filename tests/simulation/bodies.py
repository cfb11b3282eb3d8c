"""What simulated processes do: the real node agent, the real supervisor, and the ranks of jobs, which are simulated."""

from __future__ import annotations

import contextlib
import json
import os
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from simulation.kernel import Kernel, Process
from themis.machines.agent.keeper import Supervisor, as_cell
from themis.machines.agent.node_agent import NodeAgent

SAVE_EVERY_S = 1.0
"""Between two checkpoints, so that every job ends although its leases are short."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Behaviour:
    """What a job's program does.

    Attributes
    ----------
    work_s : seconds of training. ``save_s`` : that it needs to save after SIGTERM; infinite: it ignores the signal.
    escape_s : seconds after its start at which rank 0 starts a process with an empty environment in a session of its own, which
        uses the GPU, ignores SIGTERM and does not end by itself; 0 for never. ``stuck_s`` : how long that hangs in the kernel.
    fails : attempts that exit with code 1 half-way.
    """

    work_s: float
    save_s: float = 0.2
    escape_s: float = 0.0
    stuck_s: float = 0.0
    fails: int = 0

    def argv(self) -> list[str]:
        """As the command of a job; a program that every machine has stands for it."""
        return ["/bin/true", json.dumps(asdict(self))]


class Agent:
    """The real node agent."""

    def __init__(self, agent: NodeAgent) -> None:
        self.agent, self.begun = agent, False

    def step(self) -> int | None:
        if not self.begun:
            self.agent.adopt()
            self.begun = True
        self.agent.turn()
        agent = self.agent
        return 0 if agent.ending or (agent.settings.leave and agent._idle()) or agent._left() else None

    def signal(self, number: int) -> None:
        self.agent.ending = True

    def leave(self, at: float) -> None:
        """The machine is taken away then."""
        self.agent.leaves_at = at

    def close(self) -> None:
        if self.agent.channel is not None:
            self.agent.channel.close()


class Keeper:
    """The real supervisor of a gang's ranks on one machine."""

    def __init__(self, kernel: Kernel, folder: Path) -> None:
        self.kernel, self.folder = kernel, folder
        self.supervisor: Supervisor | None = None

    def step(self) -> int | None:
        if self.supervisor is None:
            (self.folder / "lock").write_text(str(self.kernel.getpid()))
            task = json.loads((self.folder / "task.json").read_text())
            control = os.open(self.folder / "control", os.O_RDWR | os.O_NONBLOCK | os.O_CLOEXEC)
            self.supervisor = Supervisor(
                folder=self.folder,
                task=task,
                deadline=task["deadline"],
                control=control,
                cell=as_cell(task),
                system=self.kernel,
            )
            self.supervisor.begin()
            return None
        return None if self.supervisor.turn(-1) else 0

    def signal(self, number: int) -> None:
        if self.supervisor is not None:
            self.supervisor.told_to_end = True

    def close(self) -> None:
        if (kept := self.supervisor) is None:
            return
        ends = [end for r in kept.ranks for end in (r.barrier, r.ready, r.output, r.log.file)]
        for file in (kept.control, *ends):
            if file >= 0:
                os.close(file)


class Rank:
    """One simulated rank: waits at the barrier as ``run_rank`` does, then trains."""

    def __init__(self, kernel: Kernel, process: Process, files: Sequence[int], given: Any) -> None:
        task, env = given
        self.kernel, self.process = kernel, process
        self.files = [os.dup(file) for file in files]
        self.behaviour = Behaviour(**json.loads(task["argv"][1]))
        self.first, self.attempt = env["RANK"] == "0", int(env["THEMIS_ATTEMPT"])
        self.job = int(env["THEMIS_JOB_ID"])
        local = int(env["LOCAL_RANK"])
        self.slots = tuple(task["spec"]["slots"])[local : local + 1]
        self.grace_s = float(task["grace_s"])
        self.checkpoint = Path(env["THEMIS_CHECKPOINT_DIR"]) / "saved"
        self.reports = Path(env["THEMIS_RUN_DIR"]) / "reports" / "reports.jsonl"
        self.ready = False
        self.began = self.base = self.saved_at = 0.0
        self.running = False
        self.asked_at: float | None = None
        self.escaped = False
        os.set_blocking(self.files[0], False)

    def step(self) -> int | None:
        if not self.ready:
            os.makedirs(self.checkpoint.parent, exist_ok=True)
            os.write(self.files[1], b"ok")
            self.ready = True
            return None
        if not self.running:
            with contextlib.suppress(BlockingIOError):
                if not os.read(self.files[0], 65536):
                    return 1
                self._begin()
            return None
        return self._train()

    def _begin(self) -> None:
        self.running, self.began = True, self.kernel.clock()
        self.saved_at = self.began
        self.process.slots = self.slots
        with contextlib.suppress(OSError, ValueError):
            self.base = float(self.checkpoint.read_text())

    @property
    def done_s(self) -> float:
        return self.base + self.kernel.clock() - self.began

    def _train(self) -> int | None:
        b = self.behaviour
        if self.asked_at is not None and self.kernel.clock() >= self.asked_at + b.save_s:
            self._save()
            return 143
        if b.escape_s and self.first and not self.escaped and self.kernel.clock() >= self.began + b.escape_s:
            self._escape()
        if self.attempt <= b.fails and self.done_s >= self.base + 0.5 * b.work_s:
            return 1
        if self.done_s >= b.work_s:
            self._save()
            return 0
        if self.kernel.clock() >= self.saved_at + SAVE_EVERY_S:
            self._save()
        return None

    def _save(self) -> None:
        self.saved_at = self.kernel.clock()
        if self.first:
            self.checkpoint.write_text(repr(self.done_s))

    def _escape(self) -> None:
        self.escaped = True
        stuck = self.kernel.now() + self.behaviour.stuck_s if self.behaviour.stuck_s else 0.0
        self.kernel.spawn(
            Stray(), "stray", parent=self.process.pid, task=self.process.task, slots=self.slots, stuck_until=stuck
        )

    def signal(self, number: int) -> None:
        if not self.running:
            self.kernel.end(self.process, -number)
        elif self.asked_at is None:
            self.asked_at = self.kernel.clock()

    def close(self) -> None:
        for file in self.files:
            os.close(file)
        self.files = []


class Stray:
    """A process that left its job: it ignores what can be ignored."""

    def step(self) -> int | None:
        return None

    def signal(self, number: int) -> None:
        pass

    def close(self) -> None:
        pass
