"""The page of users and groups: shares now, GPU hours by day, apps, budgets. Users see their own accounts, administrators all."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from datetime import UTC, datetime, timedelta, tzinfo
from typing import Any
from zoneinfo import ZoneInfo

from starlette.responses import Response

from themis.schema import messages as schema
from themis.service.web.charts import Line, by_day
from themis.service.web.console import Route, Visit

DAYS = (14, 30, 90)
MOST_BARS = 12
"""Users with a colour of their own in the chart; the others are one."""
DAY_S = 86400.0
OTHERS = "all others"
GREY = 7
"""Colour of users and apps that have none of their own."""


def page(visit: Visit) -> Response:
    """The page for the chosen number of last days."""
    colours = visit.colours()
    days = _chosen(visit.query.get("days", ""))
    now = visit.api.arbiter.epoch + visit.api.arbiter.now()
    since = now - (days - 1) * DAY_S
    usage = _usage(visit, ["user", "day"], since)
    shares = {row.user: row for row in visit.api.Share(schema.UsersRequest()).users}
    totals = {row.user: row for row in _usage(visit, ["user"], since).users}
    groups = [row for row in _usage(visit, ["group"], since).users if row.group]
    members = {row.user: row.group for row in _usage(visit, ["user", "group"], since).users if row.group}
    names = sorted({*shares, *totals}, key=lambda name: (-totals[name].gpu_hours if name in totals else 0.0, name))
    return visit.page(
        "people.html.j2",
        "Users",
        users=[_row(name, shares.get(name), totals.get(name), members.get(name, "")) for name in names[:300]],
        hidden=max(len(names) - 300, 0),
        chart=by_day(
            _lines(usage.users, _days(now, days, usage.zone), colours),
            _days(now, days, usage.zone),
            label=f"GPU hours by day and user, the last {days} days",
            of="GPU hours",
        ),
        days=days,
        choices=DAYS,
        zone=usage.zone,
        groups=sorted(groups, key=lambda row: -row.gpu_hours),
        budgets=visit.api.Budgets(schema.UsersRequest()).budgets,
        colour_of=colours,
        between=next((row.between for row in shares.values()), ""),
    )


def _chosen(text: str) -> int:
    return int(text) if text in {str(days) for days in DAYS} else DAYS[0]


def _usage(visit: Visit, by: list[schema.By], since: float) -> schema.UsageReply:
    return visit.api.Usage(schema.UsageRequest(by=by, since=since))


def _row(name: str, share: schema.UserShare | None, total: schema.UserUsage | None, group: str) -> dict[str, Any]:
    return {"name": name, "share": share, "total": total, "group": group}


def _days(now: float, days: int, zone: str) -> list[str]:
    last = datetime.fromtimestamp(now, _zone(zone)).date()
    return [(last - timedelta(days=i)).isoformat() for i in range(days - 1, -1, -1)]


def _zone(name: str) -> tzinfo:
    try:
        return UTC if name == "UTC" else ZoneInfo(name)
    except (OSError, ValueError):
        return datetime.now().astimezone().tzinfo or UTC


def _lines(rows: Iterable[schema.UserUsage], days: list[str], colour_of: Callable[[str], int]) -> list[Line]:
    """Users by their GPU hours, the most first; beyond ``MOST_BARS`` they are one."""
    at = {day: i for i, day in enumerate(days)}
    hours: dict[str, list[float]] = {}
    for row in rows:
        if row.day in at:
            hours.setdefault(row.user, [0.0] * len(days))[at[row.day]] += row.gpu_hours
    order = sorted(hours, key=lambda user: (-sum(hours[user]), user))
    if len(order) > MOST_BARS:
        rest = [sum(hours[user][i] for user in order[MOST_BARS:]) for i in range(len(days))]
        order = order[:MOST_BARS]
        hours[OTHERS] = rest
        order.append(OTHERS)
    return [
        Line(number=i, name=user, colour=GREY if user == OTHERS else colour_of(user), values=hours[user])
        for i, user in enumerate(order)
    ]


ROUTES = (Route(path="/users", answer=page, title="Users"),)
