"""Settings of accounts as people write them: prices, budgets, notifications."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from themis.errors import InputError
from themis.jobs import readers, resources
from themis.jobs.file_errors import Written, reads
from themis.jobs.written import Duration, Name
from themis.report.accounts.days import zone_of
from themis.service.engine.config import NOTICES, Budget, Notify

Price = Annotated[float, Field(ge=0, le=1e9)]


def zone(value: object) -> str:
    """A time zone."""
    try:
        zone_of(readers.text(value))
    except InputError:
        raise resources.Unreadable("a time zone of the IANA database, such as Europe/Berlin or UTC") from None
    return str(value)


def currency(value: object) -> str:
    """A currency."""
    if not isinstance(value, str) or not value.isalpha() or len(value) > 10:
        raise resources.Unreadable("a currency of at most 10 letters, such as EUR")
    return value


Limit = Annotated[float, Field(ge=0, le=1e15)] | None


class BudgetText(Written):
    """``budget`` of a user or group."""

    hard: Limit = Field(
        default=None, description="limit from which on no lease is granted or renewed until the period ends"
    )
    soft: Limit = Field(default=None, description="limit from which on `queue`, `show` and `why` warn")
    of: Literal["gpu_hours", "cost"] = Field(default="gpu_hours", description="what is limited (gpu_hours)")
    per: Literal["day", "week", "month", "total"] = Field(default="month", description="period of the limits (month)")

    def read(self) -> Budget:
        """Convert to the value that the service takes."""
        return Budget(hard=self.hard, soft=self.soft, of=self.of, per=self.per)


def notice(value: object) -> str:
    """The event to notify of."""
    if value not in NOTICES:
        raise resources.Unreadable(f"one of {', '.join(NOTICES)}")
    return str(value)


class NotifyText(Written):
    """``notify``."""

    admins: list[Annotated[str, reads(readers.text)]] = Field(
        default=[], description="addresses of administrators, as apprise takes them (none)"
    )
    users: dict[Name, list[Annotated[str, reads(readers.text)]]] = Field(
        default={}, description="addresses of users, by name (none)"
    )
    events: list[Annotated[str, reads(notice)]] = Field(default=list(NOTICES), description="what to notify of (all)")
    preempted_after: Duration = Field(
        default=1800.0, description="notify of an app that waits for this time after it lost its GPUs (30m)"
    )
    per_hour: Annotated[int, Field(ge=1, le=100_000)] = Field(
        default=20, description="maximum number of messages to one recipient in an hour (20)"
    )
    disk_free: Annotated[int, reads(resources.memory)] = Field(
        default=5 << 30, description="notify when less of the data directory's disk is free (5 GiB)"
    )

    def read(self) -> Notify:
        """Convert to the value that the service takes."""
        return Notify(
            admins=tuple(self.admins),
            users={name: tuple(urls) for name, urls in self.users.items()},
            events=tuple(self.events),
            preempted_after_s=self.preempted_after,
            per_hour=self.per_hour,
            disk_free=self.disk_free,
        )
