"""The table of calls on the server: a request's route, its message, the answer, and the description of all in OpenAPI."""

from __future__ import annotations

import re
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import closing
from functools import cache
from typing import Any
from urllib.parse import parse_qsl, unquote

from themis.errors import InputError, ThemisError, UnknownName, closest
from themis.machines.bundles.store import Incoming, check_name
from themis.schema import messages as schema
from themis.schema.described import described
from themis.schema.messages import Message
from themis.schema.routes import ADMINS, ANYONE, BYTES, EVENTS, JSON, ROUTES, Route
from themis.schema.wire import Schema, as_json, given_schema, kind, read, read_object, reference, reply_schema
from themis.service.api import copied
from themis.service.api.methods import Api
from themis.service.api.prometheus import metrics
from themis.service.engine.pending_calls import Closed

REFUSALS: Mapping[int, str] = {
    400: "A parameter or the body is wrong; the sentence names it.",
    401: "The request has no valid token.",
    403: "The app is another user's, or administrators alone may do this.",
    404: "The app, node or user does not exist.",
    408: "The body did not arrive in time.",
    411: "The body has no Content-Length.",
    413: "The body is larger than the setting max_message or max_bundle.",
    415: "The body is not of the content type that the page takes.",
    421: "The Host header names another machine.",
    429: "This user, or all users together, have too many concurrent requests, apps or submissions.",
    500: "A bug in Themis; the service's log says more.",
    503: "The service is stopping, its disk is full, or it serves the most requests that it can; try again.",
    507: "The store of bundles has no room, or the service's disk is full.",
}
OF_ALL, WITH_TOKEN, WITH_BODY = (400, 421, 500, 503), (401, 429), (408, 413, 415)
"""Statuses of every route, of those that need a token, and of those with a body."""
_NUMBER = re.compile(r"-?[0-9]{1,300}(\.[0-9]{1,300})?([eE][+-]?[0-9]{1,3})?")


class NotAllowed(ThemisError):
    """A page does not take this method; ``allowed`` are those that it takes."""

    def __init__(self, method: str, path: str, allowed: list[str]) -> None:
        super().__init__(f"{method} is not allowed for {path}, which takes {' and '.join(allowed)}.")
        self.allowed = allowed


def find(method: str, path: str) -> tuple[Route, dict[str, str]]:
    """The route of a method and a path, and the fields in the path.

    Raises
    ------
    UnknownName : no route has the path. ``NotAllowed`` : those that have it do not take the method.
    """
    parts = [unquote(part) for part in path.strip("/").split("/")]
    found = [(route, inside) for route in ROUTES if (inside := route.match(parts)) is not None]
    if not found:
        raise UnknownName("page", path[:100], {route.path for route in ROUTES})
    for route, inside in found:
        if route.method == method:
            return route, inside
    raise NotAllowed(method[:20], found[0][0].path, [route.method for route, _ in found])


# ---- requests --------------------------------------------------------------------------------------------------------


def takes_body(route: Route) -> bool:
    """True if fields of the request are in a body of JSON."""
    return route.method in ("POST", "PUT") and not route.upload


def request_of(route: Route, inside: Mapping[str, str], query: str, body: bytes = b"") -> Message:
    """The message of a request: from its path, and from its query or its body.

    Raises
    ------
    InputError : a value is unknown, given twice or out of its range; left out of account, it would change what is asked.
    """
    model = kind(route.request)
    of_query = {} if takes_body(route) else given_schema(model).get("properties", {})
    given: dict[str, Any] = {name: _value(of_query.get(name, {}), text) for name, text in inside.items()}
    known = [name for name in of_query if name not in inside]
    seen: set[str] = set()
    for name, text in parse_qsl(query, keep_blank_values=True):
        if name not in known:
            has = f"has {', '.join(known)}" if known else "has none"
            raise InputError(f"unknown parameter {name[:100]!r}.{closest(name[:100], known)} This page {has}.")
        if of_query[name].get("type") == "array":
            given.setdefault(name, []).append(_value(of_query[name]["items"], text))
        elif name in seen:
            raise InputError(f"{name} is given twice.")
        else:
            given[name] = _value(of_query[name], text)
        seen.add(name)
    if takes_body(route):
        fields = read_object(body)
        if twice := {name: value for name, value in fields.items() if name in inside}:
            read(model, twice, without=inside)
        given = {**fields, **given}
    return read(model, given)


def _value(of: Schema, text: str) -> Any:
    """A text of a path or a query as a value of its type; what is none stays text, and the message refuses it."""
    types = {one.get("type") for one in (of, *of.get("anyOf", ()))}
    if "integer" in types and text.isascii() and text.isdecimal() and len(text) < 20:
        return int(text)
    if "number" in types and _NUMBER.fullmatch(text):
        return float(text)
    if "boolean" in types and text in ("true", "false"):
        return text == "true"
    return text


# ---- answers ---------------------------------------------------------------------------------------------------------


def _status(why_not: str) -> schema.Status:
    if why_not:
        raise Closed(why_not)
    return schema.Status()


def _bundle(api: Api, request: schema.BundleRef) -> schema.BundleReply:
    name = check_name(request.sha256)
    size = api.arbiter.bundles.size(name)
    if size is None:
        raise UnknownName("bundle", name, (), hint="Send it with PUT.")
    return schema.BundleReply(sha256=name, bytes=size)


def receive(api: Api, request: schema.BundleRef, size: int) -> Incoming:
    """A place for files of that many bytes."""
    check_name(request.sha256)
    api.arbiter.disk.admit(api.caller.user, size)
    return api.arbiter.bundles.receive(size)


def _records(api: Api, request: schema.RecordsRequest) -> schema.RecordsReply:
    asked = schema.EventsRequest(user=request.user, after=request.after, limit=request.limit, follow=False)
    return schema.RecordsReply(records=list(api.Events(asked)))


HANDLERS: Mapping[str, Callable[..., Any]] = {
    "Health": lambda api, request: _status(api.arbiter.unwell()),
    "Ready": lambda api, request: _status(api.arbiter.unready()),
    "OpenApi": lambda api, request: description(),
    "Metrics": lambda api, request: metrics(api),
    "Bundle": _bundle,
    "Records": _records,
    "Copies": copied.copies,
    "Copy": copied.archive,
}
"""Calls that are no method of ``Api``."""


def answer(api: Api, route: Route, request: Message) -> bytes:
    """The reply to a request."""
    found = HANDLERS[route.name](api, request) if route.name in HANDLERS else getattr(api, route.name)(request)
    if isinstance(found, bytes):
        return found
    return as_json(getattr(found, route.part) if route.part else found) + b"\n"


def stream(api: Api, route: Route, request: Message, gone: threading.Event) -> Iterator[bytes]:
    """The reply in pieces; ends when ``gone`` is set."""
    own = HANDLERS.get(route.name)
    with closing(own(api, request, gone) if own else getattr(api, route.name)(request, gone)) as pieces:
        for piece in pieces:
            yield _event(piece) if route.media == EVENTS else piece


def _event(message: Message) -> bytes:
    """A server-sent event: a record with its number, or a message to an agent with its kind."""
    if isinstance(message, schema.Record):
        head = f"id: {message.number}"
    else:
        head = f"event: {schema.what(message)}"
    return b"%s\ndata: %s\n\n" % (head.encode(), as_json(message))


# ---- description -----------------------------------------------------------------------------------------------------


def description() -> bytes:
    """The description of the API as JSON."""
    return as_json(document()) + b"\n"


@cache
def document() -> Schema:
    """All routes, as an OpenAPI document."""
    paths: dict[str, Schema] = {}
    parts: dict[str, Schema] = {}
    for route in ROUTES:
        paths.setdefault(route.path, {})[route.method.lower()] = _described(route, parts)
    for name, part in parts.items():
        parts[name] = {**part, "properties": described(kind(name), part.get("properties", {}))}
    return {
        "openapi": "3.1.0",
        "info": {
            "title": "Themis",
            "version": "1",
            "description": "The API of a Themis arbiter. Fields and pages are only ever added. Times are seconds since 1970 (UTC).",
        },
        "paths": paths,
        "components": {
            "schemas": dict(sorted(parts.items())),
            "responses": {
                str(code): {"description": text, "content": {"application/json": {"schema": _ERROR}}}
                for code, text in REFUSALS.items()
            },
            "securitySchemes": {
                "token": {
                    "type": "http",
                    "scheme": "bearer",
                    "description": "The file `token` in the data directory, or a user's own.",
                }
            },
        },
    }


_ERROR: Schema = {"type": "object", "properties": {"error": {"type": "string"}}, "required": ["error"]}


def _described(route: Route, parts: dict[str, Schema]) -> Schema:
    """One route; the messages that it refers to are added to ``parts``."""
    model = kind(route.request)
    given = given_schema(model)
    parts |= given.get("$defs", {})
    fields = described(model, given.get("properties", {}))
    body, missing = takes_body(route), (403, 404) if route.missing else (403,) if route.rights == ADMINS else ()
    codes = {*OF_ALL, *(() if route.rights == ANYONE else WITH_TOKEN), *missing, *route.refusals}
    codes |= set(WITH_BODY if body or route.upload else ())
    out: Schema = {
        "operationId": route.name,
        "summary": route.text,
        "parameters": [
            _parameter(name, one, inside=name in route.inside)
            for name, one in fields.items()
            if name in route.inside or not body
        ],
        "responses": {
            str(route.status): {"description": "OK", "content": {route.media: {"schema": _reply(route, parts)}}},
            **{str(code): {"$ref": f"#/components/responses/{code}"} for code in sorted(codes)},
        },
        "security": [] if route.rights == ANYONE else [{"token": []}],
    }
    if route.upload:
        content = {BYTES: {"schema": {"type": "string", "format": "binary"}}}
        out["requestBody"] = {"required": True, "content": content}
    if body:
        own = {key: value for key, value in given.items() if key != "$defs"}
        own["properties"] = {name: one for name, one in fields.items() if name not in route.inside}
        out["requestBody"] = {"required": route.status == 201, "content": {JSON: {"schema": own}}}
    return out


def _parameter(name: str, one: Schema, *, inside: bool) -> Schema:
    if not inside:
        return {"name": name, "in": "query", "schema": one}
    more = {} if one.get("type") == "integer" else {"minLength": 1}
    example = "0" * 64 if "pattern" in one else 0 if one.get("type") == "integer" else "0"
    return {"name": name, "in": "path", "required": True, "schema": {**one, **more}, "example": example}


def _reply(route: Route, parts: dict[str, Schema]) -> Schema:
    if not route.reply:
        return (
            {"type": "object", "required": ["openapi", "info", "paths"]} if route.media == JSON else {"type": "string"}
        )
    model = kind(route.reply)
    made = reply_schema(model)
    parts |= {**made.get("$defs", {}), model.__name__: {key: value for key, value in made.items() if key != "$defs"}}
    if route.stream:
        return {"type": "string"}
    return made["properties"][route.part] if route.part else reference(model)
