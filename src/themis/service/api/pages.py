"""The HTTP API: one table, from which a request is read, answered and, as OpenAPI, described.

Replies and bodies are messages of the API as JSON (``json_messages``). A method of ``themis.proto`` is a row of ``PAGES``.
"""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from functools import cache
from typing import Any
from urllib.parse import unquote

from google.protobuf.descriptor import Descriptor

from themis.client import themis_pb2 as pb
from themis.client.as_json import as_dict
from themis.errors import ThemisError, UnknownName
from themis.machines.bundles.store import Incoming, check_name
from themis.service.api import copied
from themis.service.api.json_messages import (
    Schema,
    body_schema,
    parts_of,
    read_message,
    reference,
    reply_schema,
    schema_of,
)
from themis.service.api.methods import Api
from themis.service.api.page import BYTES, EVENT_STREAM, GZIP, OF_APP, REFUSALS, TEXT, Page, Values
from themis.service.api.parameters import (
    AFTER,
    APP,
    BUNDLE,
    ENDED,
    LIMIT,
    MOST_AUDIT,
    MOST_EVENTS,
    MOST_SETTINGS,
    NEWEST,
    NODE,
    OF_LOG,
    OF_USAGE,
    OF_USER,
    OVER,
    STATE,
    USER,
)
from themis.service.api.prometheus import metrics
from themis.service.engine.pending_calls import Closed

_APP_ROW: Descriptor = pb.DESCRIPTOR.message_types_by_name["App"]
_SERVICE = pb.DESCRIPTOR.services_by_name["Arbiter"].methods_by_name


class NotAllowed(ThemisError):
    """A page does not take this method; ``allowed`` are those that it takes."""

    def __init__(self, method: str, path: str, allowed: list[str]) -> None:
        super().__init__(f"{method} is not allowed for {path}, which takes {' and '.join(allowed)}.")
        self.allowed = allowed


def find(method: str, path: str) -> tuple[Page, dict[str, str]]:
    """The page of a method and a path, and the parameters in the path.

    Raises
    ------
    UnknownName : no page has the path. ``NotAllowed`` : those that have it do not take the method.
    """
    parts = [unquote(part) for part in path.strip("/").split("/")]
    found = [(page, inside) for page in PAGES if (inside := page.match(parts)) is not None]
    if not found:
        raise UnknownName("page", path[:100], {page.path for page in PAGES})
    for page, inside in found:
        if page.method == method:
            return page, inside
    raise NotAllowed(method[:20], found[0][0].path, [page.method for page, _ in found])


@cache
def document() -> Schema:
    """All pages, as an OpenAPI document."""
    paths: dict[str, Schema] = {}
    for page in PAGES:
        paths.setdefault(page.path, {})[page.method.lower()] = page.described()
    given = parts_of(page.body for page in PAGES if page.body is not None)
    replies = parts_of(page.message for page in PAGES if page.message is not None)
    schemas = {
        **{kind.name: reply_schema(kind) for kind in replies},
        **{kind.name: body_schema(kind) for kind in given if kind not in [page.body for page in PAGES]},
    }
    return {
        "openapi": "3.1.0",
        "info": {
            "title": "Themis",
            "version": "1",
            "description": "The API of a Themis arbiter. Fields and pages are only ever added. Times are seconds since 1970 (UTC).",
        },
        "paths": paths,
        "components": {
            "schemas": dict(sorted(schemas.items())),
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


# ---- rows of the table -----------------------------------------------------------------------------------------------


def _call(method: str, path: str, text: str, name: str, part: str = "", **more: Any) -> Page:
    """A page that calls a method of the API, by its name, and replies with its answer or with a field of that.

    Values of parameters, and of the body where the method changes something, are the fields of the method's request.
    """
    asked, kind = _SERVICE[name].input_type, _SERVICE[name].output_type
    field = kind.fields_by_name[part] if part else None

    def answer(api: Api, values: Values) -> Any:
        found = as_dict(getattr(api, name)(read_message(asked, values)))
        return found[part] if part else found

    return Page(
        method=method,
        path=path,
        text=text,
        answer=answer,
        schema=schema_of(field) if field is not None else reference(kind),
        message=field.message_type if field is not None else kind,
        body=asked if method in ("POST", "PUT") else None,
        **more,
    )


def _change(path: str, text: str, name: str, **more: Any) -> Page:
    """A page that changes an app, a node or a user."""
    return _call("POST", path, text, name, **{"refusals": OF_APP, **more})


def _status(why_not: str) -> dict[str, str]:
    if why_not:
        raise Closed(why_not)
    return {"status": "ok"}


def _apps(api: Api, values: Values) -> list[dict[str, Any]]:
    state = values["state"]
    request = pb.AppsRequest(user=values["user"], limit=values["limit"], ended=state in OVER)
    rows: list[dict[str, Any]] = as_dict(api.Apps(request))["apps"]
    return [row for row in rows if state in ("", row["state"])]


def _row(record: pb.Record) -> dict[str, Any]:
    return {"number": record.number, "time": record.time, "kind": record.kind, "record": json.loads(record.json)}


def _events(api: Api, values: Values) -> list[dict[str, Any]]:
    return [_row(record) for record in api.Events(pb.EventsRequest(**values))]


def _stream(api: Api, values: Values, gone: threading.Event) -> Iterator[bytes]:
    """Server-sent events: the number of each record is its id."""
    for record in api.Events(pb.EventsRequest(**values, follow=True), gone):
        yield f"id: {record.number}\ndata: {json.dumps(_row(record))}\n\n".encode()


def _logs(api: Api, values: Values, gone: threading.Event) -> Iterator[bytes]:
    for chunk in api.Logs(pb.LogsRequest(**values), gone):
        yield chunk.data


def _dump(api: Api, values: Values, gone: threading.Event) -> Iterator[bytes]:
    for chunk in api.Dump(pb.DumpRequest(), gone):
        yield chunk.data


_RECORD: Schema = {
    "type": "object",
    "properties": {
        "number": {"type": "integer"},
        "time": {"type": "number"},
        "kind": {"type": "string"},
        "record": {"type": "object", "description": "As a line of an event log."},
    },
    "required": ["number", "time", "kind", "record"],
}


_BUNDLE: Schema = {
    "type": "object",
    "properties": {"sha256": {"type": "string"}, "bytes": {"type": "integer"}},
    "required": ["sha256", "bytes"],
}


def _bundle(api: Api, values: Values) -> dict[str, Any]:
    name = check_name(values["sha256"])
    size = api.arbiter.bundles.size(name)
    if size is None:
        raise UnknownName("bundle", name, (), hint="Send it with PUT.")
    return {"sha256": name, "bytes": size}


def _receive(api: Api, values: Values, size: int) -> Incoming:
    check_name(values["sha256"])
    api.arbiter.disk.admit(api.caller.user, size)
    return api.arbiter.bundles.receive(size)


_OK: Schema = {"type": "object", "properties": {"status": {"const": "ok"}}, "required": ["status"]}

PAGES: tuple[Page, ...] = (
    Page(
        path="/healthz",
        text="Whether the service works: its arbiter takes turns, and the journal can be written. 503 and why where it does not.",
        answer=lambda api, v: _status(api.arbiter.unwell()),
        public=True,
        schema=_OK,
    ),
    Page(
        path="/readyz",
        text="Whether the service accepts submissions and decides. 503 and why where it does not, as on a full disk.",
        answer=lambda api, v: _status(api.arbiter.unready()),
        public=True,
        schema=_OK,
    ),
    Page(
        path="/openapi.json",
        text="This description.",
        answer=lambda api, v: document(),
        public=True,
        schema={"type": "object", "required": ["openapi", "info", "paths"]},
    ),
    _call("GET", "/v1/info", "Version, policy and size of the service, and who the caller is.", "Info"),
    Page(
        path="/v1/apps",
        text="Apps that are queued or running, or those in a state, the oldest first.",
        answer=_apps,
        schema={"type": "array", "items": reference(_APP_ROW)},
        message=_APP_ROW,
        parameters=(*OF_USER, STATE, NEWEST),
    ),
    _change(
        "/v1/apps",
        "Submit an app. It is in the journal before the reply; a request with the same key changes nothing.",
        "Submit",
        status=201,
        refusals=(403,),
    ),
    _change(
        "/v1/jobfiles",
        "Submit the apps of a job file, each after its dependencies; a request with the same key changes nothing.",
        "SubmitFile",
        status=201,
        refusals=(403,),
    ),
    Page(
        path="/v1/bundles/{sha256}",
        text="Whether the service has these files, by the SHA-256 of their archive; they count as used.",
        answer=_bundle,
        schema=_BUNDLE,
        parameters=BUNDLE,
        refusals=(404,),
    ),
    Page(
        method="PUT",
        path="/v1/bundles/{sha256}",
        text="Store the files that jobs are sent with: a tar archive, named by its SHA-256; the same again changes nothing.",
        upload=_receive,
        status=201,
        schema=_BUNDLE,
        parameters=BUNDLE,
        refusals=(411, 507),
    ),
    _call(
        "GET",
        "/v1/apps/{app}/trials",
        "The jobs of a sweep: parameters, reported losses, and which ended early, when and why.",
        "Trials",
        parameters=APP,
        refusals=(404,),
    ),
    _call("GET", "/v1/apps/{app}", "An app with its jobs and their attempts.", "Show", parameters=APP, refusals=(404,)),
    _change("/v1/apps/{app}/cancel", "Cancel an app.", "Cancel", parameters=APP),
    _change("/v1/apps/{app}/hold", "Pause an app and release its GPUs.", "Hold", parameters=APP),
    _change("/v1/apps/{app}/resume", "Let a held app compete for GPUs again.", "Resume", parameters=APP),
    _call(
        "GET", "/v1/apps/{app}/why", "Why an app waits, and its history.", "Why", parameters=APP, refusals=(403, 404)
    ),
    Page(
        path="/v1/apps/{app}/copies",
        text="What the service keeps of an app's checkpoints and outputs: the newest copy of each job that has one.",
        answer=copied.copies,
        schema=copied.COPIES,
        parameters=APP,
        refusals=OF_APP,
    ),
    Page(
        path="/v1/apps/{app}/copies/{job}",
        text="The newest copy of a job's checkpoints and outputs: a tar archive.",
        stream=copied.archive,
        media=BYTES,
        schema={"type": "string", "format": "binary"},
        parameters=(*APP, copied.JOB),
        refusals=OF_APP,
    ),
    Page(
        path="/v1/apps/{app}/logs",
        text="The output of a rank, attempt after attempt.",
        stream=_logs,
        media=TEXT,
        schema={"type": "string"},
        parameters=(*APP, *OF_LOG),
        refusals=OF_APP,
    ),
    _call(
        "GET",
        "/v1/history",
        "Finished apps with their attempts, the oldest first; of the caller alone, unless an administrator.",
        "History",
        "apps",
        parameters=(*OF_USER, *ENDED, NEWEST),
        refusals=(403,),
    ),
    _call(
        "GET",
        "/v1/nodes",
        "Machines; of a user, those that run the user's apps.",
        "Nodes",
        "nodes",
        parameters=OF_USER,
    ),
    _change("/v1/nodes/{node}/drain", "Take a machine out of service.", "Drain", parameters=NODE),
    _change("/v1/nodes/{node}/undrain", "Return a machine to service.", "Undrain", parameters=NODE),
    _change(
        "/v1/nodes/{node}/remove",
        "Remove a machine that joined over the network: its jobs continue elsewhere, then its certificate is revoked.",
        "RemoveNode",
        parameters=NODE,
    ),
    _call(
        "GET",
        "/v1/share",
        "GPUs that each user holds now, and the fair share.",
        "Share",
        "users",
        parameters=OF_USER,
    ),
    _call(
        "GET",
        "/v1/fairness",
        "What users were entitled to and had over time, and who lent to whom; a user sees themselves and the sum of all others.",
        "Fairness",
        parameters=OF_USER,
        refusals=(403,),
    ),
    _call(
        "GET",
        "/v1/budgets",
        "How much of budgets is used; those of the caller alone, unless an administrator.",
        "Budgets",
        "budgets",
        parameters=OF_USER,
        refusals=(403,),
    ),
    _call(
        "GET",
        "/v1/usage",
        "GPU hours, cost and apps by user, group, day or GPU type; of the caller alone, unless an administrator.",
        "Usage",
        "users",
        parameters=(*OF_USER, *OF_USAGE),
        refusals=(403,),
    ),
    _call(
        "GET",
        "/v1/settings",
        "Every setting, since when it is in force and who changed it.",
        "Settings",
        "settings",
    ),
    _call(
        "PUT",
        "/v1/settings",
        "Change settings while the service runs, all or none; for administrators.",
        "Set",
        refusals=(403,),
    ),
    _call(
        "GET",
        "/v1/settings/history",
        "Changes of settings, the newest first; for administrators.",
        "SettingsHistory",
        "changes",
        parameters=(MOST_SETTINGS,),
        refusals=(403,),
    ),
    _call(
        "GET",
        "/v1/audit",
        "Who signed in and who changed what, from where, the newest first; of the caller alone, unless an administrator.",
        "Audit",
        "entries",
        parameters=(*OF_USER, MOST_AUDIT),
        refusals=(403,),
    ),
    _call("GET", "/v1/journal", "Size of the journal, and backups; for administrators.", "Journal", refusals=(403,)),
    _change(
        "/v1/backups",
        "Copy the data directory into its folder of backups; for administrators.",
        "BackUp",
        status=201,
        refusals=(403,),
    ),
    _call(
        "GET",
        "/v1/users",
        "Users with a token, and those who are signed in; for administrators.",
        "Users",
        "users",
        parameters=OF_USER,
        refusals=(403,),
    ),
    _call(
        "PUT",
        "/v1/users/{user}",
        "Create a user's token, which replaces an existing one; for administrators. The reply alone has the token.",
        "AddUser",
        parameters=USER,
        refusals=OF_APP,
    ),
    _call(
        "DELETE",
        "/v1/users/{user}",
        "Revoke a user's token; for administrators.",
        "RemoveUser",
        parameters=USER,
        refusals=OF_APP,
    ),
    Page(
        path="/v1/events",
        text="Records of the journal; of a user, those of the user's apps.",
        answer=_events,
        schema={"type": "array", "maxItems": MOST_EVENTS, "items": _RECORD},
        parameters=(*OF_USER, AFTER, LIMIT),
    ),
    Page(
        path="/v1/stream",
        text="Records of the journal as they come, as server-sent events: `id` is the number of the record, `data` the object of "
        "/v1/events. The header Last-Event-ID continues after a record.",
        stream=_stream,
        media=EVENT_STREAM,
        schema={"type": "string"},
        parameters=(*OF_USER, AFTER),
    ),
    Page(
        path="/metrics",
        text="Figures for monitoring, in Prometheus' text format.",
        answer=lambda api, v: metrics(api),
        media=TEXT,
        schema={"type": "string"},
    ),
    _change(
        "/v1/what-if",
        "When the apps in the system would finish under other policies, with other machines or without an app. Changes nothing.",
        "WhatIf",
        refusals=(403, 404),
    ),
    Page(
        path="/v1/dump",
        text="The state of the scheduler, for `themis replay`: a gzipped JSON object; for administrators.",
        stream=_dump,
        media=GZIP,
        schema={"type": "string", "contentMediaType": "application/gzip"},
        refusals=(403,),
    ),
)
"""All of the API over HTTP, except for agents of apps, which need a stream in both directions (gRPC)."""
