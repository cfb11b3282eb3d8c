"""The single fold over leases: job, app, GPUs, type, start and end of each.

A lease counts from its ``Grant`` to its ``Revoke``; its gang trains from ``JobStarted`` on. Reports (``report.metrics``, and by it
``delivery`` and ``lending``) and accounts (``fold``) count GPU time by these leases, so they agree.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Generic, TypeVar

from themis.model.events import (
    Grant,
    JobStarted,
    MachineFailed,
    MachineJoined,
    MachineResized,
    MachineReturned,
    Quarantined,
    Revoke,
)
from themis.model.units import Seconds

UNKNOWN = "unknown"
"""GPU type of time of which the records are gone: dropped before there were accounts, or cut off a log."""


@dataclass(slots=True, kw_only=True)
class HeldLease:
    """One attempt of a job on its GPUs; held while ``ended`` is not a number.

    Attributes
    ----------
    gpus : how many. ``gpu_ids``, ``seat`` : which, in the order of their ids; no ids of a lease that a store restored.
    gpu_type : of all its GPUs. ``score`` : of its placement, in (0, 1]. ``locality`` : a ``Locality``.
    since : when it was granted. ``started`` : when its gang began to train. ``ended``, ``cause`` : when and why it was revoked.
    failed : it ended by a failure. ``lost_s`` : seconds of training since the last checkpoint, where it failed.
    """

    app: int
    job: int
    attempt: int
    gpus: int
    since: Seconds
    gpu_ids: tuple[int, ...] = ()
    seat: int = 0
    gpu_type: str = ""
    score: float = 1.0
    locality: int = 0
    started: Seconds = math.nan
    ended: Seconds = math.nan
    cause: str = ""
    failed: bool = False
    lost_s: Seconds = 0.0

    def end(self, now: Seconds) -> Seconds:
        """Time of its end; now while it is held."""
        return now if math.isnan(self.ended) else self.ended

    def held_s(self, now: Seconds) -> Seconds:
        """Seconds from its grant to its end."""
        return self.end(now) - self.since

    def restart_s(self, now: Seconds) -> Seconds:
        """Seconds of these until its gang trained."""
        return self.held_s(now) if math.isnan(self.started) else self.started - self.since


AnyLease = TypeVar("AnyLease", bound=HeldLease)


MachineEvent = MachineJoined | MachineFailed | MachineReturned | MachineResized | Quarantined


@dataclass(slots=True)
class MachineGpus:
    """Machines, their GPUs and which of them are in service.

    Attributes
    ----------
    gpu_types, gpus, most : of each machine, its type, its GPUs now, and the most that it ever had.
    away : machines that are not in service. ``machine_of`` : of each GPU ever.
    """

    gpu_types: list[str] = field(default_factory=list)
    gpus: list[int] = field(default_factory=list)
    most: list[int] = field(default_factory=list)
    away: set[int] = field(default_factory=set)
    machine_of: list[int] = field(default_factory=list)

    def add(self, event: MachineEvent) -> int:
        """Take a record in; returns how many GPUs more are in service."""
        match event:
            case MachineJoined(machine=machine):
                self.gpu_types.append(machine.gpu_type)
                self.gpus.append(0)
                self.most.append(0)
                self._resize(len(self.gpus) - 1, machine.gpus)
                return machine.gpus
            case MachineFailed(machine=n):
                self.away.add(n)
                return -self.gpus[n]
            case MachineReturned(machine=n):
                self.away.discard(n)
                return self.gpus[n]
            case Quarantined(machine=int(n)) if n not in self.away:
                self.away.add(n)
                return -self.gpus[n]
            case MachineResized(machine=n, gpus=gpus):
                before = 0 if n in self.away else self.gpus[n]
                if not gpus or not self.gpus[n]:
                    (self.away.discard if gpus else self.away.add)(n)
                self._resize(n, gpus)
                return (0 if n in self.away else gpus) - before
            case _:
                return 0

    def _resize(self, n: int, gpus: int) -> None:
        """A machine that has more GPUs than ever gets the next ids; GPUs that come back have their earlier ones."""
        self.machine_of += [n] * (gpus - self.most[n])
        self.gpus[n], self.most[n] = gpus, max(gpus, self.most[n])

    def gpu_type(self, gpu: int) -> str:
        """The type of a GPU.

        Raises
        ------
        IndexError : no record of its machine was taken in.
        """
        return self.gpu_types[self.machine_of[gpu]]


@dataclass(slots=True)
class LeaseFold(Generic[AnyLease]):
    """Fold of grants, renewals and ends of leases. ``held`` : the leases that are held, by job; ``make`` : the kind of lease."""

    make: Callable[..., AnyLease]
    held: dict[int, AnyLease] = field(default_factory=dict)
    machines: MachineGpus = field(default_factory=MachineGpus)
    checkpoint_every_s: Seconds = math.inf
    drained: bool = False
    """The revocations that follow say ``failed`` because a machine is drained: their jobs save, and nothing is lost."""

    def settings(self, given: Mapping[str, Any]) -> None:
        """Settings hold from now on: those of the log's header, or changed ones."""
        self.checkpoint_every_s = float(given.get("checkpoint_every_s", self.checkpoint_every_s))

    def machine(self, event: MachineEvent) -> int:
        """Process a machine event; returns the change of GPUs in service."""
        if isinstance(event, MachineFailed):
            self.drained = event.drained
        return self.machines.add(event)

    def grant(self, time: Seconds, grant: Grant) -> AnyLease:
        """A lease begins; its type is ``UNKNOWN`` where the log is cut and lacks the machine."""
        known = grant.gpus[0] < len(self.machines.machine_of)
        self.held[grant.job] = lease = self.make(
            app=grant.app,
            job=grant.job,
            attempt=grant.attempt,
            gpus=len(grant.gpus),
            since=time,
            gpu_ids=grant.gpus,
            seat=grant.seat,
            gpu_type=self.machines.gpu_type(grant.gpus[0]) if known else UNKNOWN,
            score=grant.score,
            locality=grant.locality,
        )
        return lease

    def start(self, time: Seconds, event: JobStarted) -> AnyLease | None:
        """A gang trains; None where the report is of an earlier attempt, or not the first."""
        lease = self.held.get(event.job)
        if lease is None or lease.attempt != event.attempt or not math.isnan(lease.started):
            return None
        lease.started = time
        return lease

    def revoke(self, time: Seconds, revoke: Revoke) -> AnyLease | None:
        """End a lease; None if there is none. ``lost_s`` of a failed one follows from the checkpoints' interval."""
        lease = self.held.pop(revoke.job, None)
        if lease is None:
            return None
        lease.failed = revoke.cause == "failed" and not self.drained
        if lease.failed and not math.isnan(lease.started):
            lease.lost_s = math.fmod(time - lease.started, self.checkpoint_every_s)
        lease.ended, lease.cause = time, revoke.cause
        return lease
