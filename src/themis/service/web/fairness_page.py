"""The fairness page: the worst-off and best-off users and since when, use beyond the equal share, loans."""

from __future__ import annotations

from starlette.responses import Response

from themis.report.promise import PROMISE
from themis.schema import messages as schema
from themis.service.web.charts import Line, over_time
from themis.service.web.console import Route, Visit

MOST_LINES = 12
"""Users with a line: those furthest from their equal share."""
MOST_APPS = 8
"""Apps that are worst off, and as many that are best off."""
OTHERS = "all others"
GREY = 7
"""Colour of users and apps that have none of their own."""


def page(visit: Visit) -> Response:
    """The page as of now."""
    found = visit.api.Fairness(schema.UsersRequest())
    shown = sorted(found.users, key=lambda row: -abs(row.balance))[:MOST_LINES]
    names = [row.user or OTHERS for row in shown]
    colours = visit.colours()
    lines = [
        Line(number=i, name=name, colour=GREY if name == OTHERS else colours(name), values=_balance(row))
        for i, (name, row) in enumerate(zip(names, shown))
    ]
    users = visit.api.Share(schema.UsersRequest()).users
    shares = [(row.sooner_worst_s, row) for row in users if row.sooner_worst_s is not None]
    shares.sort(key=lambda pair: -pair[0])
    rated = [
        (row.sooner_s, row) for row in visit.api.Apps(schema.AppsRequest(limit=1000)).apps if row.sooner_s is not None
    ]
    rows = [row for _, row in sorted(rated, key=lambda pair: pair[0])]
    half = min(-(-len(rows) // 2), MOST_APPS)
    return visit.page(
        "fairness.html.j2",
        "Fairness",
        found=found,
        chart=over_time(
            lines,
            found.start,
            found.width,
            found.until,
            label="GPU hours that each user had beyond the equal share so far; below 0: lent to others",
            of="GPU hours beyond the equal share",
        ),
        begins=found.start,
        worst_user=shares[-1][1] if shares else None,
        promise=PROMISE,
        kept=sum(row.promise_kept for row in users),
        judged=sum(row.promise_known for row in users),
        best_user=shares[0][1] if shares else None,
        course={row.user: row for row in found.users if row.since is not None},
        worst=rows[:half],
        best=list(reversed(rows[half:]))[:MOST_APPS],
        policy=visit.api.Info(schema.Nothing()).policy,
        others=OTHERS,
        colour_of=colours,
    )


def _balance(row: schema.UserCourse) -> list[float]:
    out, so_far = [], 0.0
    for entitled, leased in zip(row.entitled, row.leased):
        so_far += leased - entitled
        out.append(so_far)
    return out


ROUTES = (Route(path="/fairness", answer=page, title="Fairness"),)
