"""The page Now: the cluster, the queue, shares, the last day. Its parts come from ``live``, the same for all consoles."""

from __future__ import annotations

from collections.abc import AsyncIterator

from starlette.responses import Response

from themis.schema import messages as schema
from themis.service.web.console import Route, Visit


def page(visit: Visit) -> Response:
    """The page with its texts; a script draws the map and the last day, and keeps them up to date."""
    return visit.page("now.html.j2", "Now", parts=visit.console.live.at_hand().parts)


def machines(visit: Visit) -> Response:
    """The map as a table, for keyboards and screen readers."""
    return visit.fragment("now_machines.html.j2", nodes=visit.api.Nodes(schema.UsersRequest()).nodes)


async def stream(visit: Visit) -> AsyncIterator[bytes]:
    """The parts as they change, as server-sent events."""
    alive = visit.console.sessions.alive
    async for piece in visit.console.live.follow(visit.caller, lambda: alive(visit.session)):
        yield piece


ROUTES = (
    Route(path="/now", answer=page, title="Now"),
    Route(path="/now/machines", answer=machines),
    Route(path="/now/stream", stream=stream),
)
