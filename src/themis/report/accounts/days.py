"""Days of a time zone: which part of a charge falls on which day."""

from __future__ import annotations

import os
from collections.abc import Iterator
from datetime import UTC, date, datetime, time, timedelta, tzinfo
from pathlib import Path
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

from themis.errors import InputError
from themis.model.units import Seconds
from themis.report.accounts.charges import Amounts, Charge

LOCALTIME = Path("/etc/localtime")


def zone_of(name: str) -> tzinfo:
    """A time zone by its name in the IANA database, ``UTC`` included.

    Raises
    ------
    InputError : this machine knows none of that name.
    """
    if name == "UTC":
        return UTC
    try:
        return ZoneInfo(name)
    except (ZoneInfoNotFoundError, ValueError, OSError):
        raise InputError(
            f"time_zone is {name!r}, expected a name of the IANA database, such as Europe/Berlin or UTC."
        ) from None


def local_zone() -> str:
    """The name of this machine's time zone: ``TZ``, else what ``/etc/localtime`` links to, else UTC."""
    found = os.environ.get("TZ", "").removeprefix(":") or str(LOCALTIME.resolve()).partition("zoneinfo/")[2]
    try:
        zone_of(found)
    except InputError:
        return "UTC"
    return "UTC" if found in ("", "Etc/UTC", "UTC0", "Etc/UCT", "Universal", "Zulu") else found


def midnight(day: date, zone: tzinfo) -> Seconds:
    """The beginning of a day, seconds since 1970."""
    return datetime.combine(day, time(), zone).timestamp()


def day_of(moment: Seconds, zone: tzinfo) -> date:
    """The day of a moment in seconds since 1970."""
    return datetime.fromtimestamp(moment, zone).date()


def by_day(charge: Charge, epoch: Seconds, zone: tzinfo) -> Iterator[tuple[str, Amounts]]:
    """(day, its part) of a charge; the parts add up to the charge.

    Parameters
    ----------
    epoch : when the log began, seconds since 1970.
    """
    begin, end = epoch + charge.since, epoch + charge.until
    day = day_of(begin, zone)
    if end <= begin or day_of(end, zone) == day:
        yield day.isoformat(), charge.amounts
        return
    at, passed = begin, end - begin
    while at < end:
        until = min(midnight(day + timedelta(days=1), zone), end)
        if until > at:
            yield day.isoformat(), charge.amounts.times((until - at) / passed)
        at, day = max(until, at), day + timedelta(days=1)
