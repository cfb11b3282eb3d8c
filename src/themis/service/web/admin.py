"""The pages of administrators: machines and drain, users and tokens, settings with their history, journal and backups."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from starlette.responses import Response

from themis.errors import InputError, ThemisError
from themis.schema import messages as schema
from themis.service.api.http_app import status_of
from themis.service.engine.config import Config
from themis.service.web.console import Route, Visit
from themis.setting import Kind, kind_of
from themis.sizes import Unreadable, duration

MOST_NODES = 500
DONE = {
    "drained": "The machine is taken out of service.",
    "undrained": "The machine is back in service.",
    "leaving": "The machine is being removed: its jobs continue elsewhere, then its token is no longer valid.",
    "removed": "The token is revoked. The user's apps go on.",
    "backup": "A backup is made.",
    "reloaded": "The settings file is read again.",
}
"""Confirmation by the key in the address; text from an address is never shown."""


def machines(visit: Visit) -> Response:
    """Machines and their health."""
    return _machines(visit)


def _machines(visit: Visit, problem: str = "") -> Response:
    nodes = sorted(visit.api.Nodes(schema.UsersRequest()).nodes, key=lambda node: (node.state == "up", node.name))
    states = {state: sum(node.state == state for node in nodes) for state in sorted({node.state for node in nodes})}
    return _page(
        visit,
        "machines",
        problem,
        nodes=nodes[:MOST_NODES],
        hidden=max(len(nodes) - MOST_NODES, 0),
        states=states,
        gpus=sum(node.gpus for node in nodes),
        leased=sum(node.leased for node in nodes),
        withheld=sum(node.withheld for node in nodes),
        service=visit.api.Info(schema.Nothing()),
    )


def drain(visit: Visit) -> Response:
    """Take a machine out of service, put it back, or remove it for good."""
    change, node = visit.form.get("change", ""), visit.form.get("node", "")

    def do() -> Response:
        if change == "undrain":
            visit.api.Undrain(schema.NodeRef(node=node))
            return visit.go("/admin", done="undrained")
        if change == "remove":
            visit.api.RemoveNode(schema.NodeRef(node=node))
            return visit.go("/admin", done="leaving")
        visit.api.Drain(schema.NodeRef(node=node, deadline_s=_seconds(visit.form.get("within", ""))))
        return visit.go("/admin", done="drained")

    return _try(do, lambda problem: _machines(visit, problem))


def _seconds(text: str) -> float:
    """Parse a duration such as ``90s`` into seconds; empty text gives 0."""
    if not text.strip():
        return 0.0
    try:
        return duration(text.strip(), zero=True)
    except Unreadable as error:
        raise InputError(f"the time is {text.strip()[:40]!r}, expected {error}.") from None


def users(visit: Visit) -> Response:
    """Users with a token."""
    return _users(visit)


def _users(visit: Visit, problem: str = "", made: schema.UserToken | None = None) -> Response:
    return _page(visit, "users", problem, users=visit.api.Users(schema.UsersRequest()).users, made=made)


def add_user(visit: Visit) -> Response:
    """Create a token; only this answer shows it."""
    user = visit.form.get("user", "").strip()

    def do() -> Response:
        return _users(visit, made=visit.api.AddUser(schema.UserRef(user=user, admin="admin" in visit.form)))

    return _try(do, lambda problem: _users(visit, problem))


def remove_user(visit: Visit) -> Response:
    """Revoke a token."""

    def do() -> Response:
        visit.api.RemoveUser(schema.UsersRequest(user=visit.form.get("user", "")))
        return visit.go("/admin/users", done="removed")

    return _try(do, lambda problem: _users(visit, problem))


def settings(visit: Visit) -> Response:
    """All settings, and their history."""
    return _settings(visit)


def _settings(visit: Visit, problem: str = "", changes: tuple[str, ...] | None = None) -> Response:
    return _page(
        visit,
        "settings",
        problem,
        settings=visit.api.Settings(schema.Nothing()).settings,
        history=visit.api.SettingsHistory(schema.SettingsHistoryRequest(limit=200)).changes,
        changes=changes,
        kind_of=_kind_of,
        name=visit.form.get("name", "") if problem else "",
        value=visit.form.get("value", "") if problem else "",
    )


def _kind_of(name: str) -> Kind | None:
    """The kind of a setting that has a control of its own."""
    kind = kind_of(Config, name)
    return kind if kind and (kind.choices or kind.number or kind.pattern) else None


def set_setting(visit: Visit) -> Response:
    """Change one setting, or read the settings file again."""
    name, value = visit.form.get("name", "").strip(), visit.form.get("value", "").strip()
    request = schema.SetRequest(reload=True) if "reload" in visit.form else schema.SetRequest(values={name: value})

    def do() -> Response:
        return _settings(visit, changes=tuple(visit.api.Set(request).changes))

    return _try(do, lambda problem: _settings(visit, problem))


def journal(visit: Visit) -> Response:
    """The journal and its backups."""
    return _journal(visit)


def _journal(visit: Visit, problem: str = "") -> Response:
    return _page(visit, "journal", problem, journal=visit.api.Journal(schema.Nothing()))


def back_up(visit: Visit) -> Response:
    """Make a backup."""

    def do() -> Response:
        visit.api.BackUp(schema.Nothing())
        return visit.go("/admin/journal", done="backup")

    return _try(do, lambda problem: _journal(visit, problem))


TABS = (
    ("machines", "", "Machines"),
    ("users", "/users", "Users and tokens"),
    ("settings", "/settings", "Settings"),
    ("journal", "/journal", "Journal and backups"),
)


def _page(visit: Visit, tab: str, problem: str, **values: Any) -> Response:
    done = DONE.get(visit.query.get("done", ""), "")
    return visit.page(f"admin_{tab}.html.j2", "Admin", tab=tab, tabs=TABS, problem=problem, done=done, **values)


def _try(do: Callable[[], Response], again: Callable[[str], Response]) -> Response:
    """Do it; where the methods refuse it, the page again with their sentence."""
    try:
        return do()
    except ThemisError as error:
        response = again(str(error))
        response.status_code = status_of(error)
        return response


ROUTES = (
    Route(path="/admin", answer=machines, title="Admin", admin=True),
    Route(path="/admin/drain", answer=drain, method="POST", admin=True),
    Route(path="/admin/users", answer=users, admin=True),
    Route(path="/admin/users", answer=add_user, method="POST", admin=True),
    Route(path="/admin/users/remove", answer=remove_user, method="POST", admin=True),
    Route(path="/admin/settings", answer=settings, admin=True),
    Route(path="/admin/settings", answer=set_setting, method="POST", admin=True),
    Route(path="/admin/journal", answer=journal, admin=True),
    Route(path="/admin/backups", answer=back_up, method="POST", admin=True),
)
