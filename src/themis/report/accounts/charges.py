"""What a fold of the log charges: leases, and the time that is added to the totals of days.

Amounts are GPU-seconds, of which ``leased`` is the sum of the useful, restart, lost and idle ones; ``cost`` is in the currency
of the tariff.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import NamedTuple

from themis.model.units import GpuSeconds, Seconds

UNKNOWN = "unknown"
"""GPU type of time of which the records were dropped before there were accounts."""


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
        """What is left of the leased time."""
        return self.leased - self.restart - self.lost - self.idle

    def plus(self, other: Amounts) -> Amounts:
        """The sum."""
        return Amounts(*(a + b for a, b in zip(self, other)))

    def times(self, part: float) -> Amounts:
        """A part of it."""
        return Amounts(*(a * part for a in self))


class Payer(NamedTuple):
    """Who pays, for what, in which currency ("" where none is set)."""

    user: str
    group: str
    gpu_type: str
    currency: str


class Charge(NamedTuple):
    """Amounts of an account that are spread evenly over the time from ``since`` to ``until``, seconds since the log began."""

    since: Seconds
    until: Seconds
    account: Payer
    amounts: Amounts


@dataclass(slots=True, kw_only=True)
class ChargedLease:
    """One attempt of a job on its GPUs; open while ``ended`` is not a number.

    Attributes
    ----------
    account : as of now; a change of group or currency counts from then on. ``price`` : of a GPU hour, as of now.
    started : when its gang began to train. ``booked`` : up to here its time is charged.
    cause : why it ended, as ``Revoke`` has it. ``idle_by`` : who measured idle time, ``nvml`` or ``reports``; "" if nothing did.
    """

    app: int
    job: int
    attempt: int
    account: Payer
    gpus: int
    since: Seconds
    booked: Seconds
    started: Seconds = math.nan
    ended: Seconds = math.nan
    cause: str = ""
    price: float = 0.0
    lost: GpuSeconds = 0.0
    idle: GpuSeconds = 0.0
    idle_by: str = ""
    cost: float = 0.0

    def amounts(self, now: Seconds) -> Amounts:
        """All that it comes to; of one that is open, by ``now``."""
        end = now if math.isnan(self.ended) else self.ended
        start = end if math.isnan(self.started) else self.started
        cost = self.cost + max(end - self.booked, 0.0) * self.gpus * self.price / 3600
        return Amounts(self.gpus * (end - self.since), self.gpus * (start - self.since), self.lost, self.idle, cost)

    def charge(self, now: Seconds) -> Charge:
        """The time since it was last charged."""
        seconds = now - self.booked
        started = now if math.isnan(self.started) else self.started
        restart = max(min(started, now) - self.booked, 0.0)
        cost = seconds * self.gpus * self.price / 3600
        return Charge(self.booked, now, self.account, Amounts(self.gpus * seconds, self.gpus * restart, 0.0, 0.0, cost))
