"""Charges of a fold of the log: leases, and the time that is added to the totals of days.

Amounts are GPU-seconds, of which ``leased`` is the sum of the useful, restart, lost and idle ones; ``cost`` is in the
currency of the tariff.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import NamedTuple

from themis.model.units import GpuSeconds, Seconds
from themis.report.accounts.held_leases import HeldLease


class Amounts(NamedTuple):
    """GPU time and its cost.

    Attributes
    ----------
    leased : from ``Grant`` to ``Revoke``. ``restart`` : of it until the gang trained. ``lost`` : training since the last
        checkpoint when the lease ended by a failure. ``idle`` : training in which the GPUs did nothing.
    """

    leased: GpuSeconds = 0.0
    restart: GpuSeconds = 0.0
    lost: GpuSeconds = 0.0
    idle: GpuSeconds = 0.0
    cost: float = 0.0

    @property
    def useful(self) -> GpuSeconds:
        """Useful part of the leased time: leased minus restart, lost and idle."""
        return self.leased - self.restart - self.lost - self.idle

    def plus(self, other: Amounts) -> Amounts:
        """The sum."""
        return Amounts(*(a + b for a, b in zip(self, other)))

    def times(self, part: float) -> Amounts:
        """A part of it."""
        return Amounts(*(a * part for a in self))


class Payer(NamedTuple):
    """Account that is charged: user, group, GPU type, and currency ("" where none is set)."""

    user: str
    group: str
    gpu_type: str
    currency: str


NOBODY = Payer("", "", "", "")


class Charge(NamedTuple):
    """Amounts of an account that are spread evenly over the time from ``since`` to ``until``, seconds since the log began."""

    since: Seconds
    until: Seconds
    account: Payer
    amounts: Amounts


@dataclass(slots=True, kw_only=True)
class ChargedLease(HeldLease):
    """A lease with its cost.

    Attributes
    ----------
    account : as of now; a change of group or currency counts from then on. ``price`` : of a GPU hour, as of now.
    booked : up to here its time is charged. ``lost``, ``idle`` : GPU-seconds.
    idle_by : who measured idle time, ``nvml`` or ``reports``; "" if nothing did.
    """

    account: Payer = NOBODY
    booked: Seconds = 0.0
    price: float = 0.0
    lost: GpuSeconds = 0.0
    idle: GpuSeconds = 0.0
    idle_by: str = ""
    cost: float = 0.0

    def amounts(self, now: Seconds) -> Amounts:
        """Total cost of the lease; of a lease that is still held, up to ``now``."""
        cost = self.cost + max(self.end(now) - self.booked, 0.0) * self.gpus * self.price / 3600
        return Amounts(self.gpus * self.held_s(now), self.gpus * self.restart_s(now), self.lost, self.idle, cost)

    def charge(self, now: Seconds) -> Charge:
        """The time since it was last charged."""
        seconds = now - self.booked
        started = now if math.isnan(self.started) else self.started
        restart = max(min(started, now) - self.booked, 0.0)
        cost = seconds * self.gpus * self.price / 3600
        return Charge(self.booked, now, self.account, Amounts(self.gpus * seconds, self.gpus * restart, 0.0, 0.0, cost))
