"""An arbiter over an executor without processes, and time that only the test moves."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from themis.machines.engines.hosts import Host
from themis.machines.engines.program import Programs
from themis.model.cluster import Machine
from themis.model.events import Command, Event, Grant, JobReached, JobStarted, JobStopped, MachineReturned, Revoke
from themis.model.speed import ProfileBook
from themis.model.workload import App
from themis.schema import messages as schema
from themis.schema.wire import read
from themis.service.engine.arbiter import IDLE_S, Arbiter
from themis.service.engine.config import Config
from themis.service.engine.journal import Journal
from themis.service.engine.machine_changes import find_hosts
from themis.traces.profiles.models import DEFAULT_BOOK

SHORT: Mapping[str, Any] = {
    "least_steps": 0,
    "lease_s": 2.0,
    "tick_s": 1.0,
    "container_s": 0.0,
    "gather_s": 0.0,
    "validate": True,
    "grace_s": 1.0,
}


@dataclass
class FakeExecutor:
    """Starts and stops at once what it is told, unless ``silent``; the test says when jobs are done."""

    heard: Callable[[Any], None]
    silent: bool = False
    admitted: list[tuple[int, str]] = field(default_factory=list)
    commands: list[Command] = field(default_factory=list)
    restored: list[tuple[Grant, float, bool]] = field(default_factory=list)
    settled: list[tuple[int, int]] = field(default_factory=list)
    lost: list[int] = field(default_factory=list)
    withheld: list[int] = field(default_factory=list)
    left: list[str] = field(default_factory=list)
    joined: list[Machine] = field(default_factory=list)
    sizes: dict[int, int] = field(default_factory=dict)
    devices: dict[str, tuple[str, ...]] = field(default_factory=dict)
    nice: dict[int, int] = field(default_factory=dict)
    dismissed: list[int] = field(default_factory=list)

    def admit(self, first_job: int, app: App) -> None:
        self.admitted.append((first_job, app.name))

    def dismiss(self, jobs: Sequence[int]) -> None:
        self.dismissed.extend(jobs)

    def submit(self, command: Command) -> None:
        self.commands.append(command)
        if self.silent:
            return
        if isinstance(command, Grant):
            self.heard(JobStarted(job=command.job, attempt=command.attempt))
        elif isinstance(command, Revoke):
            self.heard(JobStopped(job=command.job, attempt=command.attempt, steps=0.0))

    def restore(self, grant: Grant, steps: float, *, started: bool = True) -> None:
        self.restored.append((grant, steps, started))

    def recorded(self, job: int, attempt: int) -> None:
        self.settled.append((job, attempt))

    def restore_lost(self, machine: int) -> None:
        self.lost.append(machine)

    def restore_withheld(self, machine: int) -> None:
        self.withheld.append(machine)

    def join(self, machine: Machine) -> None:
        self.joined.append(machine)

    def equip(self, devices: Mapping[str, tuple[str, ...]]) -> None:
        self.devices = dict(devices)

    def resize(self, machine: int, gpus: int) -> None:
        if gpus and self.sizes.get(machine) == 0:
            self.heard(MachineReturned(machine=machine))
        self.sizes[machine] = gpus

    def leave(self, name: str) -> None:
        self.left.append(name)

    def check_user(self, user: str) -> None:
        pass

    def niceness(self, machine: int) -> int:
        return self.nice.get(machine, 0)

    def trust(self, machine: int) -> str:
        return "single"

    def pardon(self, machine: int) -> None:
        pass

    def rejected(self, machine: int) -> str:
        return ""

    def containment_of(self, machine: int) -> tuple[str, tuple[str, ...]]:
        return "none", ()

    def start(self) -> None:
        pass

    def close(self, *, stop_jobs: bool = True) -> None:
        pass


@dataclass
class World:
    """An arbiter whose turns are taken by the test."""

    arbiter: Arbiter
    executor: FakeExecutor
    clock: list[float]
    faulty: bool = False
    """Errors that the arbiter contains are what is tested."""

    def turn(self, passed: float = 0.0) -> None:
        """Let time pass, then take turns until nothing is left to do."""
        self.clock[0] += passed
        while True:
            self.arbiter._transaction(0.0 if self.faulty else IDLE_S)
            assert self.faulty or not self.arbiter.quarantine.faults, "the arbiter contained an error; see the log"
            if self.arbiter.queue.empty():
                return

    def say(self, *events: Event | Any) -> None:
        """What the executor reports, taken in at once."""
        for event in events:
            self.executor.heard(event)
        self.turn()

    def ask(self, do: Callable[[Arbiter], Any]) -> Any:
        """As a caller would, without another thread."""
        from concurrent.futures import Future

        from themis.service.engine.pending_calls import Call

        reply: Future[Any] = Future()
        self.arbiter.queue.put(Call(lambda: do(self.arbiter), reply))
        self.turn()
        return reply.result(0)

    def finish(self, job: int, steps: float = 100.0) -> None:
        """The job's gang did its work."""
        attempt = int(self.arbiter.state.jobs.attempt[job])
        self.say(JobReached(job=job, attempt=attempt, steps=steps, loss=0.0))

    def held(self) -> dict[int, tuple[int, ...]]:
        """GPUs of each job."""
        return dict(self.arbiter.state.job_gpus)


@contextmanager
def world(
    home: Path,
    *gpus: int,
    clock: list[float] | None = None,
    silent: bool = False,
    hosts: Sequence[Host] = (),
    book: ProfileBook = DEFAULT_BOOK,
    faulty: bool = False,
    start: Mapping[str, Any] | None = None,
    **more: Any,
) -> Iterator[World]:
    """An arbiter on machines m0, m1, ... over the journal in ``home``."""
    at = clock if clock is not None else [1000.0]
    made: list[FakeExecutor] = []

    def executor(programs: Programs, heard: Callable[[Any], None], speeds: object) -> FakeExecutor:
        made.append(FakeExecutor(heard, silent))
        return made[0]

    there = () if more.get("engine") == "ray" else (4,)
    config = Config(**{**SHORT, **more})
    own = [Host(machine=Machine(name=f"m{n}", gpus=g)) for n, g in enumerate(gpus or there)]
    hosts = hosts or (find_hosts(config) if config.gpus or config.cluster else own)
    journal = Journal(home / "journal.db")
    try:
        arbiter = Arbiter(
            config, hosts, journal, executor, book=book, wall=lambda: at[0], steady=lambda: at[0], **(start or {})
        )
        yield World(arbiter, made[0], at, faulty)
    finally:
        journal.close()


def request(
    name: str = "a",
    *,
    gpus: tuple[int, int] = (1, 1),
    steps: float = 100.0,
    jobs: int = 1,
    launch: str = "gpu",
    **more: Any,
) -> Any:
    """A submission of jobs that would sleep."""
    program = {"argv": ["sleep", "1"], "cwd": "/tmp", "launch": launch}
    job = {"regimes": [{"steps": steps}], "gpus_min": gpus[0], "gpus_max": gpus[1], "program": program}
    written = {"name": name, "user": "u", **more, "jobs": [{"name": f"j{i}", **job} for i in range(jobs)]}
    return read(schema.SubmitRequest, written)
