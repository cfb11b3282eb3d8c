"""Event log -> charges: every lease, its cost, and what is added to the totals, in one pass.

What counts as restart and as lost is what reports count (``report.ledger``), so both have the same GPU time. A lease is charged
when it ends, and where its price or account changes. Leaves out: where charges are kept (``service.engine.books``),
days (``days``).
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any, Protocol

from themis.model.events import (
    AccountingSet,
    AppSubmitted,
    GpusIdle,
    Grant,
    Header,
    JobStarted,
    JobStopped,
    MachineFailed,
    MachineJoined,
    MachineResized,
    Revoke,
    SettingsChanged,
)
from themis.model.units import GpuSeconds, Seconds
from themis.report.accounts.charges import UNKNOWN, Amounts, Charge, ChargedLease, Payer


class Sink(Protocol):
    """Where charges go."""

    def charge(self, charge: Charge) -> None:
        """Add to the totals."""

    def save(self, lease: ChargedLease) -> None:
        """A lease began, changed or ended."""


@dataclass(slots=True)
class Accounts:
    """The fold. ``open`` : leases that are held, by job; ``gpu_types`` : of each GPU; ``users`` : of each app.

    ``machines`` : of each machine its GPU type and the most GPUs that it has had.
    """

    sink: Sink
    open: dict[int, ChargedLease] = field(default_factory=dict)
    gpu_types: list[str] = field(default_factory=list)
    machines: list[tuple[str, int]] = field(default_factory=list)
    users: dict[int, str] = field(default_factory=dict)
    tariff: AccountingSet = field(default_factory=AccountingSet)
    checkpoint_every_s: Seconds = math.inf
    drained: bool = False
    """The revocations that follow say ``failed`` because a machine is drained: their jobs save, and nothing is lost."""

    def add(self, time: Seconds, record: object) -> None:
        """Take one record in; times never fall."""
        handle = _HANDLERS.get(type(record))
        if handle is not None:
            handle(self, time, record)

    def account(self, app: int, gpu_type: str) -> Payer:
        """Who pays for an app's time on GPUs of this type."""
        user = self.users.get(app, UNKNOWN)
        return Payer(user, dict(self.tariff.groups).get(user, ""), gpu_type, self.tariff.currency)

    def price(self, gpu_type: str) -> float:
        """Of a GPU hour now."""
        prices = dict(self.tariff.prices)
        return prices.get(gpu_type, prices.get("*", 0.0))

    def settle(self, app: int, first_job: int, time: Seconds, rest: GpuSeconds) -> None:
        """Charge time of an app whose leases are not known, at one instant and without a price, as attempt 0 of its first job."""
        account, since = self.account(app, UNKNOWN), time - rest
        self.sink.charge(Charge(time, time, account, Amounts(leased=rest)))
        lease = ChargedLease(app=app, job=first_job, attempt=0, account=account, gpus=1, since=since, booked=time)
        lease.started, lease.ended, lease.cause = since, time, UNKNOWN
        self.sink.save(lease)

    # ---- records ----------------------------------------------------------------------------------------------------

    def _header(self, time: Seconds, header: Header) -> None:
        self.checkpoint_every_s = float(header.settings.get("checkpoint_every_s", math.inf))

    def _joined(self, time: Seconds, event: MachineJoined) -> None:
        self.machines.append((event.machine.gpu_type, 0))
        self._extend(len(self.machines) - 1, event.machine.gpus)

    def _resized(self, time: Seconds, event: MachineResized) -> None:
        self._extend(event.machine, event.gpus)

    def _extend(self, machine: int, gpus: int) -> None:
        """A machine that has more GPUs than ever gets the next ids; GPUs that come back have their old ones."""
        kind, most = self.machines[machine]
        self.gpu_types += [kind] * (gpus - most)
        self.machines[machine] = kind, max(gpus, most)

    def _settings(self, time: Seconds, event: SettingsChanged) -> None:
        self.checkpoint_every_s = float(event.settings.get("checkpoint_every_s", self.checkpoint_every_s))

    def _submitted(self, time: Seconds, event: AppSubmitted) -> None:
        self.users[len(self.users)] = event.app.user

    def _granted(self, time: Seconds, grant: Grant) -> None:
        kind = self.gpu_types[grant.gpus[0]]
        self.open[grant.job] = lease = ChargedLease(
            app=grant.app,
            job=grant.job,
            attempt=grant.attempt,
            account=self.account(grant.app, kind),
            gpus=len(grant.gpus),
            since=time,
            booked=time,
            price=self.price(kind),
        )
        self.sink.save(lease)

    def _started(self, time: Seconds, event: JobStarted) -> None:
        lease = self.open.get(event.job)
        if lease is not None and lease.attempt == event.attempt and math.isnan(lease.started):
            # What was charged before it trained was charged as restart up to then.
            lease.started = time
            self.sink.save(lease)

    def _idle(self, time: Seconds, event: GpusIdle) -> None:
        lease = self.open.get(event.job)
        if lease is None or lease.attempt != event.attempt or math.isnan(lease.started):
            return
        idle = min(event.gpu_seconds, lease.gpus * (time - lease.started))
        if idle <= lease.idle:
            return
        new, lease.idle, lease.idle_by = idle - lease.idle, idle, event.by
        since = max(time - new / lease.gpus, lease.started)
        self.sink.charge(Charge(since, time, lease.account, Amounts(idle=new)))
        self.sink.save(lease)

    def _revoked(self, time: Seconds, revoke: Revoke) -> None:
        lease = self.open.pop(revoke.job, None)
        if lease is None:
            return
        self._book(lease, time)
        lease.ended, lease.cause = time, revoke.cause
        if revoke.cause == "failed" and not self.drained and not math.isnan(lease.started):
            training = time - lease.started
            crash = math.fmod(training, self.checkpoint_every_s)
            lease.lost = min(lease.gpus * crash, lease.gpus * training - lease.idle)
            if lease.lost > 0:
                self.sink.charge(Charge(time - crash, time, lease.account, Amounts(lost=lease.lost)))
        self.sink.save(lease)

    def _tariff(self, time: Seconds, tariff: AccountingSet) -> None:
        """New prices and groups count from now on: what was leased until now is charged by the old ones."""
        self.tariff = tariff
        for _, lease in sorted(self.open.items()):
            account = self.account(lease.app, lease.account.gpu_type)
            price = self.price(account.gpu_type)
            if (account, price) != (lease.account, lease.price):
                self._book(lease, time)
                lease.account, lease.price = account, price
                self.sink.save(lease)

    def _book(self, lease: ChargedLease, time: Seconds) -> None:
        charge = lease.charge(time)
        if charge.until > charge.since:
            self.sink.charge(charge)
        lease.cost += charge.amounts.cost
        lease.booked = time


_HANDLERS: dict[type[Any], Callable[[Accounts, Seconds, Any], None]] = {
    Header: Accounts._header,
    MachineJoined: Accounts._joined,
    MachineResized: Accounts._resized,
    SettingsChanged: Accounts._settings,
    AppSubmitted: Accounts._submitted,
    MachineFailed: lambda accounts, _, event: setattr(accounts, "drained", event.drained),
    JobStopped: lambda accounts, *_: setattr(accounts, "drained", False),
    Grant: Accounts._granted,
    JobStarted: Accounts._started,
    GpusIdle: Accounts._idle,
    Revoke: Accounts._revoked,
    AccountingSet: Accounts._tariff,
}
CHARGED = frozenset(kind.__name__ for kind in _HANDLERS)
"""Kinds of records that the fold reads."""


@dataclass(slots=True)
class Tally:
    """A sink in memory: all leases, and totals by account."""

    leases: dict[tuple[int, int], ChargedLease] = field(default_factory=dict)
    charges: list[Charge] = field(default_factory=list)

    def charge(self, charge: Charge) -> None:
        """Keep it."""
        self.charges.append(charge)

    def save(self, lease: ChargedLease) -> None:
        """Keep it as it is now."""
        self.leases[lease.job, lease.attempt] = replace(lease)

    def total(self) -> Amounts:
        """Of all accounts."""
        out = Amounts()
        for charge in self.charges:
            out = out.plus(charge.amounts)
        return out
