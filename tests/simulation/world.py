"""One history: the service, its machines and its users, step by step under one clock and one seed."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from simulation import faults
from simulation.bodies import Agent, Keeper, Rank
from simulation.checks import Checks
from simulation.disk import Crash, Disk
from simulation.kernel import Kernel, Process
from simulation.network import Wire
from simulation.plan import ACTIVE_S, Action, Fault, Plan, Submission, draw
from simulation.service import Service
from simulation.settings import Settings, draw_changes, draw_edits
from simulation.users import Users
from themis.machines.agent.node_agent import AgentSettings, NodeAgent
from themis.service.engine import state_snapshots

PATIENCE_S = 240.0
"""Seconds after the last fault within which every app must have ended."""
RENEW_S = 1.0


@dataclass(frozen=True, slots=True)
class History:
    """How one history went: what was told of it, and what was wrong, empty if nothing was."""

    story: tuple[str, ...]
    wrong: str
    turns: int = 0


class World:
    """All that is simulated, under ``now``."""

    def __init__(self, plan: Plan, root: Path) -> None:
        self.plan, self.root, self.now = plan, root, 0.0
        self.story: list[str] = []
        self.rng = np.random.default_rng([plan.seed, 1])
        self.index = {name: n for n, name in enumerate(plan.names)}
        """Of every machine that is there at some time, by its name."""
        self.wires = [Wire(lambda: self.now, self.rng) for _ in plan.names]
        self.kernels = [Kernel(name, lambda: self.now, 1000.0 * (n + 1)) for n, name in enumerate(plan.names)]
        self.disk = Disk(root / "journal", self.rng)
        self.checks = Checks(self)
        for kernel in self.kernels:
            kernel.supervise, kernel.become_rank, kernel.killed = Keeper, Rank, self.checks.killed
        self.users = Users(self)
        self.settings = Settings(self)
        self.service = Service(self)
        self.off_until = [0.0] * len(plan.names)
        """When a machine has power again."""
        self.ends: list[tuple[float, Callable[[], None]]] = []
        """What ends a fault, and when."""
        self.todo = [*plan.events]
        self.turns = 0

    # ---- machines -------------------------------------------------------------------------------------------------

    def agent_of(self, n: int) -> Process | None:
        """The agent that lives on a machine."""
        return next(iter(self.kernels[n].living("agent")), None)

    def spawn_agent(self, n: int) -> Process:
        """Start a machine's agent."""
        kernel = self.kernels[n]
        root = self.root / "run" / "nodes" / f"m{n}"
        settings = AgentSettings(node=f"m{n}", root=root, renew_s=RENEW_S, allow_root=True, leave=True, reaper=True)
        agent = NodeAgent(settings=settings, dial=self.wires[n].dial, system=kernel)
        self.tell(f"agent of m{n} starts")
        return kernel.spawn(Agent(agent), "agent", reaper=True)

    def power_off(self, n: int, seconds: float) -> None:
        """A machine loses power for some time."""
        self.wires[n].cut()
        self.kernels[n].power_off(offset=10.0)
        self.checks.powered_off(self.kernels[n])
        self.off_until[n] = self.now + seconds

    # ---- time -----------------------------------------------------------------------------------------------------

    def turn(self) -> None:
        """A little time passes, and everything that is there runs a while."""
        self.turns += 1
        busy = self.now < ACTIVE_S + 10.0
        self.now += float(self.rng.uniform(0.02, 0.35) if busy else self.rng.uniform(0.1, 0.4))
        for end in [end for at, end in self.ends if at <= self.now]:
            end()
        self.ends = [(at, end) for at, end in self.ends if at > self.now]
        while self.todo and self.todo[0].at <= self.now:
            self._happens(self.todo.pop(0))
        self.users.step()
        self.service.step()
        for n, kernel in enumerate(self.kernels):
            if self.now >= self.off_until[n]:
                kernel.step(lambda process: bool(self.rng.random() < 0.85))
        self.checks.after_turn()

    def _happens(self, event: Submission | Action | Fault) -> None:
        if isinstance(event, Fault):
            faults.happens(self, event)
        else:
            self.tell(str(event))
            self.users.does(event)

    def tell(self, what: str) -> None:
        """A line of the story."""
        self.story.append(f"{self.now:8.3f}  {what}")

    def run(self) -> None:
        """The whole history."""
        self.service.start()
        while self.now < ACTIVE_S or self.todo or self.ends:
            self.turn()
        self.tell("faults are over")
        self.settings.put_back()
        until = self.now + PATIENCE_S
        while not self.users.all_ended():
            self.checks.require(self.now < until, lambda: f"not everything ended: {self.users.open()}")
            self.turn()
        self.disk.crash_at = None
        self.service.stop()
        self.tell(f"records and their digest: {self.checks.at_end()}")

    def close(self) -> None:
        """Let go of all files."""
        self.service.discard()
        for kernel in self.kernels:
            kernel.power_off(0.0)


@contextmanager
def _quick_snapshots() -> Iterator[None]:
    """Snapshots of the state after 60 records, so that short histories go on from some."""
    kwargs = state_snapshots.maybe_take.__kwdefaults__
    before, kwargs["every"] = kwargs["every"], 60
    try:
        yield
    finally:
        kwargs["every"] = before


def history(seed: int) -> Plan:
    """The plan of a seed, with changes of settings."""
    plan = draw(seed)
    more = [*draw_changes(seed, plan.machines), *draw_edits(seed, plan.machines)]
    events = sorted([*plan.events, *more], key=lambda event: event.at)
    return replace(plan, events=tuple(events))


def run(plan: Plan | int) -> History:
    """Run one history to its end, or to the first broken promise."""
    plan = history(plan) if isinstance(plan, int) else plan
    shm = Path("/dev/shm")
    root = Path(tempfile.mkdtemp(prefix="themis-sim-", dir=shm if shm.is_dir() else None))
    with _quick_snapshots():
        world = World(plan, root)
        wrong = ""
        try:
            world.run()
        except Crash:
            raise
        except Exception as error:
            wrong = f"{type(error).__name__}: {error}"
            world.tell(f"WRONG: {wrong}")
            if TRACE:
                raise
        finally:
            world.close()
            shutil.rmtree(root, ignore_errors=True)
    return History(
        tuple(line.replace(str(root), "ROOT") for line in world.story), wrong.replace(str(root), "ROOT"), world.turns
    )


TRACE = False
"""Raise what is wrong, with its traceback, instead of returning it."""
