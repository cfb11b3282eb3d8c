"""Event log -> charges: every lease, its cost, and what is added to the totals, in one pass.

Leases are those of reports (``held_leases``), so both have the same GPU time, restarts and losses. A lease is charged
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
from themis.report.accounts.charges import Amounts, Charge, ChargedLease, Payer
from themis.report.accounts.held_leases import UNKNOWN, LeaseFold


class Sink(Protocol):
    """Destination of charges."""

    def charge(self, charge: Charge) -> None:
        """Add to the totals."""

    def save(self, lease: ChargedLease) -> None:
        """A lease began, changed or ended."""


@dataclass(slots=True)
class Accounts:
    """The fold. ``users`` : of each app."""

    sink: Sink
    leases: LeaseFold[ChargedLease] = field(default_factory=lambda: LeaseFold(ChargedLease))
    users: dict[int, str] = field(default_factory=dict)
    tariff: AccountingSet = field(default_factory=AccountingSet)

    def add(self, time: Seconds, record: object) -> None:
        """Take one record in; times never fall."""
        handle = _HANDLERS.get(type(record))
        if handle is not None:
            handle(self, time, record)

    def account(self, app: int, gpu_type: str) -> Payer:
        """Account that is charged for an app's time on GPUs of this type."""
        user = self.users.get(app, UNKNOWN)
        return Payer(user, dict(self.tariff.groups).get(user, ""), gpu_type, self.tariff.currency)

    def price(self, gpu_type: str) -> float:
        """Price of a GPU hour now."""
        prices = dict(self.tariff.prices)
        return prices.get(gpu_type, prices.get("*", 0.0))

    def settle(self, app: int, first_job: int, time: Seconds, rest: GpuSeconds) -> None:
        """Charge time of an app with unknown leases, at one instant, without a price, as attempt 0 of its first job."""
        account, since = self.account(app, UNKNOWN), time - rest
        self.sink.charge(Charge(time, time, account, Amounts(leased=rest)))
        lease = ChargedLease(app=app, job=first_job, attempt=0, account=account, gpus=1, since=since, booked=time)
        lease.started, lease.ended, lease.cause = since, time, UNKNOWN
        self.sink.save(lease)

    # ---- records ----------------------------------------------------------------------------------------------------

    def _submitted(self, time: Seconds, event: AppSubmitted) -> None:
        self.users[len(self.users)] = event.app.user

    def _granted(self, time: Seconds, grant: Grant) -> None:
        kind, lease = self.leases.machines.gpu_type(grant.gpus[0]), self.leases.grant(time, grant)
        lease.account, lease.price = self.account(grant.app, kind), self.price(kind)
        lease.booked = time
        self.sink.save(lease)

    def _started(self, time: Seconds, event: JobStarted) -> None:
        lease = self.leases.start(time, event)
        if lease is not None:
            # What was charged before it trained was charged as restart up to then.
            self.sink.save(lease)

    def _idle(self, time: Seconds, event: GpusIdle) -> None:
        lease = self.leases.held.get(event.job)
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
        lease = self.leases.revoke(time, revoke)
        if lease is None:
            return
        self._book(lease, time)
        if lease.lost_s:
            lease.lost = min(lease.gpus * lease.lost_s, lease.gpus * (time - lease.started) - lease.idle)
            if lease.lost > 0:
                self.sink.charge(Charge(time - lease.lost_s, time, lease.account, Amounts(lost=lease.lost)))
        self.sink.save(lease)

    def _tariff(self, time: Seconds, tariff: AccountingSet) -> None:
        """New prices and groups count from now on: what was leased until now is charged by the old ones."""
        self.tariff = tariff
        for _, lease in sorted(self.leases.held.items()):
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


_HANDLERS: dict[type[Any], Callable[[Accounts, Seconds, Any], object]] = {
    Header: lambda accounts, _, e: accounts.leases.settings(e.settings),
    MachineJoined: lambda accounts, _, e: accounts.leases.machine(e),
    MachineResized: lambda accounts, _, e: accounts.leases.machine(e),
    SettingsChanged: lambda accounts, _, e: accounts.leases.settings(e.settings),
    AppSubmitted: Accounts._submitted,
    MachineFailed: lambda accounts, _, e: accounts.leases.machine(e),
    JobStopped: lambda accounts, *_: setattr(accounts.leases, "drained", False),
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
        """Sum over all accounts."""
        out = Amounts()
        for charge in self.charges:
            out = out.plus(charge.amounts)
        return out
