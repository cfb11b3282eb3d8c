"""Interface that the arbiter requires of an executor, and items that executors, solvers and agents send to the
arbiter's queue."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Protocol

from themis.machines.engines.program import Note, Programs
from themis.model.cluster import Machine
from themis.model.events import Command, Event, Grant
from themis.model.speed import ProfileBook
from themis.model.units import Locality
from themis.model.workload import App, Job
from themis.service.engine.solving import Reply


@dataclass(frozen=True, slots=True)
class WakeUp:
    """An event may be due earlier than the arbiter's thread expects."""


Message = Event | Note | Reply | WakeUp
"""An item of the arbiter's queue that no caller waits for."""


class LiveExecutor(Protocol):
    """``core.executor``, and what recovery, views and submissions ask."""

    def admit(self, first_job: int, app: App) -> None: ...
    def submit(self, command: Command) -> None: ...
    def restore(self, grant: Grant, steps: float, *, started: bool = True) -> None: ...
    def recorded(self, job: int, attempt: int) -> None: ...
    def dismiss(self, jobs: Sequence[int]) -> None: ...
    def restore_lost(self, machine: int) -> None: ...
    def restore_withheld(self, machine: int) -> None: ...
    def equip(self, devices: Mapping[str, tuple[str, ...]]) -> None: ...
    def join(self, machine: Machine) -> None: ...
    def resize(self, machine: int, gpus: int) -> None: ...
    def leave(self, name: str) -> None: ...
    def pardon(self, machine: int) -> None: ...
    def rejected(self, machine: int) -> str: ...
    def check_user(self, user: str) -> None: ...
    def niceness(self, machine: int) -> int: ...
    def trust(self, machine: int) -> str: ...
    def containment_of(self, machine: int) -> tuple[str, tuple[str, ...]]: ...
    def start(self) -> object: ...
    def close(self, *, stop_jobs: bool = True) -> None: ...


class Outbox:
    """The executor as a transaction sees it: what changes it happens after the commit, or not at all.

    Also holds what else waits for the commit.
    """

    def __init__(self, executor: LiveExecutor) -> None:
        self._executor = executor
        self.waiting: list[Callable[[], object]] = []

    def admit(self, first_job: int, app: App) -> None:
        self.waiting.append(partial(self._executor.admit, first_job, app))

    def dismiss(self, jobs: Sequence[int]) -> None:
        self.waiting.append(partial(self._executor.dismiss, jobs))

    def join(self, machine: Machine) -> None:
        self.waiting.append(partial(self._executor.join, machine))

    def resize(self, machine: int, gpus: int) -> None:
        self.waiting.append(partial(self._executor.resize, machine, gpus))

    def take(self) -> list[Callable[[], object]]:
        """Remove and return the waiting functions."""
        out, self.waiting = self.waiting, []
        return out


MakeExecutor = Callable[[Programs, Callable[[Message], None], Callable[[], ProfileBook]], LiveExecutor]


def estimated_pace(book: Callable[[], ProfileBook]) -> Callable[[Job, Grant, str], float]:
    """Steps per second by the speed model, for jobs that report nothing; ``book`` is asked each time, for it grows."""

    def pace(job: Job, grant: Grant, gpu_type: str) -> float:
        batch = job.regimes[0].batch
        return book().rate(job.model, batch, gpu_type, len(grant.gpus), Locality(grant.locality)) / job.scale(batch)

    return pace
