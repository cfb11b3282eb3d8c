"""Parameters of the HTTP API's pages: parts of paths, and what selects in queries."""

from __future__ import annotations

from themis.service.api.accounts import BY
from themis.service.api.audit import MOST_ENTRIES
from themis.service.api.keeping import MOST_CHANGES
from themis.service.api.page import Parameter

MOST_EVENTS, MOST_APPS = 1000, 1000
TIMES = -62_135_510_400.0, 253_402_128_000.0
"""Seconds since 1970 of days that calendars have in every time zone: 0001-01-02 to 9999-12-30."""
ACTIVE, OVER = ("waiting", "running", "stopping", "held"), ("completed", "cancelled", "failed")


def _path(name: str, text: str) -> tuple[Parameter, ...]:
    return (Parameter(name=name, text=text),)


def _number(name: str, text: str, numbers: range, default: int = 0) -> Parameter:
    return Parameter(name=name, text=text, default=default, numbers=numbers)


def _moment(name: str, text: str) -> Parameter:
    return Parameter(name=name, text=f"{text} Seconds since 1970.", optional=True, real=TIMES)


APP, NODE, USER = _path("app", "An app's number or name."), _path("node", "A node's name."), _path("user", "A user.")
BUNDLE = (
    Parameter(
        name="sha256",
        text="The SHA-256 of an archive, as 64 hexadecimal digits.",
        pattern="[0-9a-f]{64}",
        example="0" * 64,
    ),
)
OF_USER = (Parameter(name="user", text="Only this user's; empty: all users'.", default=""),)
STATE = Parameter(
    name="state",
    text="Only apps in this state; empty: those that are waiting, running, stopping or held.",
    default="",
    choices=("", *ACTIVE, *OVER),
)
NEWEST = _number("limit", "Maximum number of apps, the newest.", range(1, MOST_APPS + 1), MOST_APPS)
MOST_AUDIT = _number("limit", "Maximum number of entries.", range(1, MOST_ENTRIES + 1), MOST_ENTRIES)
MOST_SETTINGS = _number("limit", "Maximum number of changes.", range(1, MOST_CHANGES + 1), MOST_CHANGES)
# Whole numbers that every reader of JSON keeps.
AFTER = _number("after", "Only records after this number.", range(2**53))
LIMIT = _number("limit", "Maximum number of records.", range(1, MOST_EVENTS + 1), MOST_EVENTS)
OF_LOG = (
    _number("job", "Position of the job in the app, from 0.", range(2**31)),
    _number("rank", "Rank of the job's process.", range(2**31)),
    _number("attempt", "Attempt, from 1; 0: all.", range(2**31)),
    Parameter(name="follow", text="Whether to wait for more until the app ends.", default=False, flag=True),
)
ENDED = (
    _moment("since", "Only apps that ended at this time or later."),
    _moment("until", "Only apps that ended at this time or earlier."),
    Parameter(name="state", text="Only apps in these states.", optional=True, several=True, choices=OVER),
    Parameter(
        name="reason", text="Only apps with this text in their reason, or in the end of an attempt.", optional=True
    ),
)
OF_USAGE = (
    _moment("since", "From the day of this time on."),
    _moment("until", "Up to the day of this time."),
    Parameter(name="by", text="What to add up by; none: user.", optional=True, several=True, choices=BY),
    Parameter(
        name="utc", text="Whether days are those of UTC, not of the service's time zone.", default=False, flag=True
    ),
)
