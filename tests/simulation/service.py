"""The real service, its thread and its executor's driven step by step: start, transactions, crash, end, and the next start."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from simulation.disk import Crash
from themis.errors import ThemisError
from themis.machines.engines.hosts import Host, NodeSettings
from themis.machines.engines.local import LocalExecutor
from themis.model.cluster import Cluster, Machine
from themis.model.snapshot import Snapshot
from themis.policies.api import Policy, Workbench
from themis.service.engine.arbiter import Arbiter
from themis.service.engine.arbiter_queue import estimated_pace
from themis.service.engine.config import Config
from themis.service.engine.journal import Journal
from themis.service.engine.solving import Reply, Task, decide

if TYPE_CHECKING:
    from simulation.world import World

NODE = NodeSettings(lease_s=3.0, renew_s=1.0, margin_s=2.0, prepare_s=15.0, progress_s=5.0)
IDLE_S = 0.5
BEGIN_S = 11575 * 86400.0 - 15.0
"""Seconds since 1970 at the beginning: a day ends in the middle of what happens."""
RESTART_S = 1.0
"""Seconds until somebody, or systemd, starts the service again."""


@dataclass
class LateSolver:
    """The policy's worker: its answer comes after a while."""

    policy: Policy
    now: Callable[[], float]
    delay: Callable[[], float]
    view: Snapshot | None = None
    waiting: list[tuple[float, Task]] = field(default_factory=list)

    def start(self, task: Task) -> None:
        self.waiting = [(self.now() + self.delay(), task)]

    def follow(self, policy: Policy) -> None:
        self.policy, self.waiting = policy, []

    def limit(self, seconds: float) -> None:
        pass

    def overdue(self) -> str:
        return ""

    def ready(self) -> None:
        pass

    def close(self) -> None:
        pass

    def reply(self) -> Reply | None:
        """The answer that is there by now, or None."""
        if not self.waiting or self.waiting[0][0] > self.now():
            return None
        _, task = self.waiting.pop()
        self.view = task.snapshot if task.snapshot is not None else self.view
        assert self.view is not None
        if task.bids is not None:
            self.view = replace(self.view, bids=task.bids)
        # A wall time would differ from run to run.
        return replace(decide(self.policy, self.view, task.version, Workbench()), seconds=0.0)


class Executor(LocalExecutor):
    """The real executor without its thread; agents live on simulated machines, messages travel over simulated wires."""

    def __init__(self, world: World, *given: Any, **more: Any) -> None:
        self.world = world
        super().__init__(
            world.root / "run", *given, settings=NODE, allow_root=True, clock=lambda: world.now + 5.0, **more
        )

    def start(self) -> Executor:
        for wire in self.world.wires:
            wire.listening = True
        self._start_agents()
        return self

    def _wait(self) -> list[Any]:
        for wire in self.world.wires:
            self._unidentified += wire.accept()  # type: ignore[arg-type]
        return [c for c in (*self._unidentified, *self._channels.values()) if c.due()]  # type: ignore[attr-defined]

    def _spawn(self, n: int) -> None:
        world, m = self.world, self.world.index[self.gangs.hosts[n].machine.name]
        if world.now >= world.off_until[m] and world.agent_of(m) is None:
            self.agents[n] = Spawned(world.spawn_agent(m))  # type: ignore[assignment]

    def _end_agents(self, timeout_s: float, *, leave_busy: bool = False) -> None:
        for host in self.gangs.hosts:
            if (agent := self.world.agent_of(self.world.index[host.machine.name])) is not None:
                agent.body.signal(15)

    def submit(self, command: Any) -> None:
        if self.world.disk.reach("before a command"):
            self.world.disk.crash()
            raise Crash
        super().submit(command)

    def discard(self) -> None:
        """Close what the process had open."""
        self._server.close()
        for file in (self._woken, self._wake):
            os.close(file)


@dataclass
class Spawned:
    """An agent as its arbiter sees it."""

    process: Any

    def poll(self) -> int | None:
        return self.process.code  # type: ignore[no-any-return]

    def terminate(self) -> None:
        """SIGTERM."""
        if self.process.code is None:
            self.process.body.signal(15)


class Service:
    """All lives of the service of one data directory."""

    def __init__(self, world: World) -> None:
        self.world = world
        self.arbiter: Arbiter | None = None
        self.executor: Executor
        self.start_at = 0.0
        self.paused_until = 0.0
        self.wall_offset = 0.0
        self.looked_at = 0.0
        self.within = False
        """The arbiter's thread is in the middle of a transaction."""
        self.faulty = False
        """Errors are injected."""
        self.config = self.configured()
        """As the settings file says."""

    def configured(self) -> Config:
        """The settings file at the beginning."""
        return Config(
            cluster=Cluster(name="small", machines=tuple(h.machine for h in self.hosts)),
            policy=self.world.plan.policy,
            lease_s=8.0,
            tick_s=1.0,
            container_s=0.0,
            gather_s=0.0,
            backoff_s=0.5,
            backoff_most_s=2.0,
            retries=50,
            node_lease_s=NODE.lease_s,
            node_renew_s=NODE.renew_s,
            validate=True,
            single_trust=True,
            time_zone="UTC",
        )

    @property
    def hosts(self) -> list[Host]:
        """The machines."""
        return [Host(machine=Machine(name=f"m{n}", gpus=g)) for n, g in enumerate(self.world.plan.machines)]

    def start(self) -> None:
        """Start, or start again: the journal is verified and folded, gangs that run are taken over."""
        world = self.world
        world.settings.before_start()
        try:
            journal = Journal(world.disk.path, world.disk.connect)
            journal.pause, journal.disk, made = self._pause, world.disk.space, list[Executor]()

            def executor(programs: Any, emit: Any, book: Any) -> Executor:
                made.append(Executor(world, (), programs, emit, emit, pace=estimated_pace(book)))
                self.executor = made[0]
                return made[0]

            arbiter = Arbiter(
                self.config,
                self.hosts,
                journal,
                executor,
                wall=lambda: BEGIN_S + world.now + self.wall_offset,
                steady=lambda: world.now,
            )
            if world.plan.solve_s:
                arbiter.engine.solver = LateSolver(
                    arbiter.engine.policy,
                    lambda: world.now,
                    lambda: float(world.rng.exponential(world.plan.solve_s)),
                )
            self.arbiter = arbiter
            journal.patient = lambda: not arbiter._closing
            self.executor.start()
        except Crash:
            self.died()
            return
        except ThemisError as error:
            if world.disk.whole is not None:
                world.tell("service refuses the journal; the operator restores it")
                self.discard()
                world.disk.db = None
                world.disk.put_back()
                return
            if world.disk.failing or "cannot be written" in str(error):
                self.discard()
                self.start_at = world.now + RESTART_S
                return
            raise
        if world.disk.whole is not None:
            world.tell("service accepts a journal that lost its end")
            world.disk.whole = None
        world.tell(f"service starts, {arbiter.recovered} records")
        world.users.reconnect()
        world.checks.after_start()

    def step(self) -> None:
        """Let both threads of the service run a while."""
        world = self.world
        if self.arbiter is None:
            if world.now >= self.start_at:
                self.start()
            return
        if world.now < self.paused_until:
            return
        try:
            for _ in range(3):
                self.executor._turn()
                if self.within or not self._arbiter_turn():
                    break
        except Crash:
            if self.within:
                raise
            self.died()
        except ThemisError as error:
            if not world.disk.failing and "cannot be written" not in str(error):
                raise
            self._broken(error)
        except Exception as error:
            if type(error).__name__ != "OperationalError" or not world.disk.failing:
                raise
            self._broken(error)

    def _broken(self, error: Exception) -> None:
        self.world.tell(f"service breaks: {type(error).__name__}")
        self.kill()

    def _arbiter_turn(self) -> bool:
        arbiter, now = self.arbiter, self.world.now
        assert arbiter is not None
        solver = arbiter.engine.solver
        if isinstance(solver, LateSolver) and (reply := solver.reply()) is not None:
            arbiter.queue.put(reply)
        due = [at for at in (arbiter.engine.next_wake, arbiter.housekeeping.due) if at is not None]
        if arbiter.queue.empty() and min(due, default=1e18) > arbiter.now() and now < self.looked_at + IDLE_S:
            return False
        self.looked_at, self.within = now, True
        try:
            arbiter._transaction(0.0)
        finally:
            self.within = False
        self.world.checks.require(
            self.faulty or not arbiter.quarantine.faults, lambda: "the arbiter contained an error that nobody injected"
        )
        return True

    def _pause(self, seconds: float) -> None:
        """The arbiter's thread waits for room on the disk; everything else goes on."""
        until = self.world.now + seconds
        while self.world.now < until:
            self.world.turn()

    def kill(self) -> None:
        """kill -9."""
        if self.within:
            self.world.disk.crash()
            raise Crash
        self.world.disk.crash()
        self.died()

    def died(self) -> None:
        """The process is gone; what it left on the disk is there for the next."""
        self.world.tell("service is dead")
        self.discard()
        self.start_at = self.world.now + RESTART_S * float(self.world.rng.uniform(0.0, 3.0))

    def discard(self) -> None:
        """Let go of what the process had open."""
        for wire in self.world.wires:
            wire.unplug()
        if hasattr(self, "executor"):
            self.executor.discard()
            del self.executor
        if self.arbiter is not None:
            self.arbiter.journal.db.close()
        self.arbiter = None

    def stop(self) -> None:
        """End in good order, jobs preempted."""
        arbiter, world = self.arbiter, self.world
        if arbiter is None:
            return
        arbiter._closing = True
        executor = self.executor
        executor._do(lambda: executor._carry_out(executor.gangs.stop_all("shutdown")))
        until = world.now + 30.0
        world.turn()
        while self.arbiter is arbiter and executor.gangs.running and world.now < until:
            world.turn()
        if self.arbiter is not arbiter:
            return  # it died meanwhile
        try:
            arbiter.close(stop_jobs=False)
        except Crash:
            self.died()
            return
        world.tell("service ended in good order")
        for wire in world.wires:
            wire.unplug()
        for file in (executor._woken, executor._wake):
            os.close(file)
        del self.executor
        self.arbiter = None
        self.start_at = world.now + RESTART_S
