"""The HTTP status pages: one table, from which a request is read, answered and, as OpenAPI, described.

Replies are messages of the API as JSON (proto3's JSON mapping, under the fields' own names), and so are their schemas.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any
from urllib.parse import parse_qsl, unquote

from google.protobuf.descriptor import Descriptor, FieldDescriptor
from google.protobuf.json_format import MessageToDict

from themis.client import themis_pb2 as pb
from themis.errors import InputError, closest
from themis.service.api.methods import Api
from themis.service.engine.calls import Closed

MOST_EVENTS = 1000
Schema = dict[str, Any]
Values = Mapping[str, Any]

REFUSALS: Mapping[int, str] = {
    400: "A parameter is unknown, given twice or out of its range.",
    401: "The request has no valid token.",
    404: "The app does not exist.",
    429: "This user, or all users together, have too many concurrent requests.",
    500: "A bug in Themis; the arbiter's log says more.",
    503: "The service is stopping, its disk is full, or it serves the most requests that it can; try again.",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Parameter:
    """A part of a page's path, or, with a default, of its query.

    Attributes
    ----------
    numbers : what a whole number may be; None is any text.
    """

    name: str
    text: str
    default: str | int | None = None
    numbers: range | None = None

    def read(self, text: str) -> str | int:
        """Its value.

        Raises
        ------
        InputError : it is not a whole number in its range.
        """
        if self.numbers is None:
            return text
        # Longer ones are in no range, and costly to read.
        value = int(text) if text.isascii() and text.isdecimal() and len(text) < 20 else -1
        if value not in self.numbers:
            least, most = self.numbers[0], self.numbers[-1]
            raise InputError(f"{self.name} is {text[:100]!r}, expected a whole number from {least} to {most}.")
        return value

    def described(self) -> Schema:
        """As OpenAPI has it."""
        schema: Schema = {"type": "string"}
        if self.numbers is not None:
            schema = {"type": "integer", "minimum": self.numbers[0], "maximum": self.numbers[-1]}
        if self.default is None:
            return {
                "name": self.name,
                "in": "path",
                "required": True,
                "description": self.text,
                "schema": {**schema, "minLength": 1},
                "example": "0",
            }
        return {
            "name": self.name,
            "in": "query",
            "description": self.text,
            "schema": {**schema, "default": self.default},
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class Page:
    """One page: its path, its reply and who may read it.

    Attributes
    ----------
    path : with ``{name}`` where a parameter stands.
    answer : the reply, from the values of all parameters.
    schema : of the reply. ``message`` : that it refers to.
    public : needs no token.
    refusals : statuses beyond those of every page.
    """

    path: str
    text: str
    answer: Callable[[Api, Values], Any]
    schema: Schema
    message: Descriptor | None = None
    parameters: tuple[Parameter, ...] = ()
    public: bool = False
    refusals: tuple[int, ...] = ()

    def match(self, parts: list[str]) -> dict[str, str] | None:
        """The parameters in a path, or None where the path is another page's."""
        own = self.path.strip("/").split("/")
        if len(own) != len(parts) or any(mine != part and mine[0] != "{" for mine, part in zip(own, parts)):
            return None
        return {mine[1:-1]: part for mine, part in zip(own, parts) if mine[0] == "{"}

    def read(self, inside: Mapping[str, str], query: str) -> Values:
        """The values of all parameters: those in the path, as ``match`` found them, those of the query, and defaults.

        Raises
        ------
        InputError : one is unknown, given twice or out of its range; left out of account, it would change what is asked.
        """
        given = dict(inside)
        known = [p.name for p in self.parameters if p.name not in inside]
        for name, text in parse_qsl(query, keep_blank_values=True):
            if name not in known:
                has = f"has {', '.join(known)}" if known else "has none"
                raise InputError(f"unknown parameter {name[:100]!r}.{closest(name[:100], known)} This page {has}.")
            if name in given:
                raise InputError(f"{name} is given twice.")
            given[name] = text
        return {p.name: p.read(given[p.name]) if p.name in given else p.default for p in self.parameters}

    def described(self) -> Schema:
        """As OpenAPI has it."""
        refusals = sorted({400, 500, 503, *self.refusals} | (set() if self.public else {401, 429}))
        return {
            "summary": self.text,
            "parameters": [parameter.described() for parameter in self.parameters],
            "responses": {
                "200": {"description": "OK", "content": {"application/json": {"schema": self.schema}}},
                **{str(code): {"$ref": f"#/components/responses/{code}"} for code in refusals},
            },
            "security": [] if self.public else [{"token": []}],
        }


def find(path: str) -> tuple[Page, dict[str, str]] | None:
    """The page at a path, and the parameters in that."""
    parts = [unquote(part) for part in path.strip("/").split("/")]
    for page in PAGES:
        if (inside := page.match(parts)) is not None:
            return page, inside
    return None


def document() -> Schema:
    """All pages, as an OpenAPI document."""
    return {
        "openapi": "3.1.0",
        "info": {
            "title": "Themis",
            "version": "1",
            "description": "Status of a Themis arbiter, read only. Fields are only ever added. Times are seconds since 1970 (UTC).",
        },
        "paths": {page.path: {"get": page.described()} for page in PAGES},
        "components": {
            "schemas": _schemas(page.message for page in PAGES if page.message is not None),
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


# ---- replies ---------------------------------------------------------------------------------------------------------

_ERROR: Schema = {"type": "object", "properties": {"error": {"type": "string"}}, "required": ["error"]}
_NUMBER: Schema = {"anyOf": [{"type": "number"}, {"enum": ["NaN", "Infinity", "-Infinity"]}]}
"""JSON has no others."""
_SCALARS: Mapping[int, Schema] = {
    FieldDescriptor.TYPE_STRING: {"type": "string"},
    FieldDescriptor.TYPE_BOOL: {"type": "boolean"},
    FieldDescriptor.TYPE_INT32: {"type": "integer", "format": "int32"},
    # Readers in JavaScript would round it.
    FieldDescriptor.TYPE_INT64: {"type": "string", "pattern": "^-?[0-9]+$"},
    FieldDescriptor.TYPE_DOUBLE: _NUMBER,
}


def as_dict(message: Any) -> dict[str, Any]:
    """A message as JSON has it: every field, under its own name."""
    out: dict[str, Any] = MessageToDict(
        message, preserving_proto_field_name=True, always_print_fields_with_no_presence=True
    )
    return out


def _schema(field: FieldDescriptor) -> Schema:
    kind = field.message_type
    one = _SCALARS[field.type] if kind is None else {"$ref": f"#/components/schemas/{kind.name}"}
    return {"type": "array", "items": one} if _several(field) else one


def _several(field: FieldDescriptor) -> bool:
    # Newer versions of protobuf warn of the label, older ones have nothing else.
    return bool(field.is_repeated if hasattr(field, "is_repeated") else getattr(field, "label", 0) == 3)


def _schemas(kinds: Iterable[Descriptor]) -> dict[str, Schema]:
    """Of messages, and of all that they hold."""
    out: dict[str, Schema] = {}
    left = list(kinds)
    while left:
        kind = left.pop()
        if kind.name in out:
            continue
        out[kind.name] = {
            "type": "object",
            "properties": {field.name: _schema(field) for field in kind.fields},
            "required": [field.name for field in kind.fields if not field.has_presence],
        }
        left += [field.message_type for field in kind.fields if field.message_type is not None]
    return dict(sorted(out.items()))


# ---- the pages -------------------------------------------------------------------------------------------------------


def _page(path: str, text: str, ask: Callable[[Api, Values], Any], reply: Any, part: str = "", **more: Any) -> Page:
    """A page that says what a method of the API does, or a field of that."""
    kind: Descriptor = reply.DESCRIPTOR
    if not part:
        schema = {"$ref": f"#/components/schemas/{kind.name}"}
        return Page(
            path=path, text=text, answer=lambda api, v: as_dict(ask(api, v)), schema=schema, message=kind, **more
        )
    field = kind.fields_by_name[part]
    return Page(
        path=path,
        text=text,
        answer=lambda api, v: as_dict(ask(api, v))[part],
        schema=_schema(field),
        message=field.message_type,
        **more,
    )


def _health(api: Api) -> dict[str, str]:
    if api.arbiter.broken is not None:
        raise Closed("the arbiter broke; its log says how.")
    return {"status": "ok"}


def _events(api: Api, values: Values) -> list[dict[str, Any]]:
    records = api.Events(pb.EventsRequest(**values))
    return [{"number": r.number, "time": r.time, "kind": r.kind, "record": json.loads(r.json)} for r in records]


_RECORDS: Schema = {
    "type": "array",
    "maxItems": MOST_EVENTS,
    "items": {
        "type": "object",
        "properties": {
            "number": {"type": "integer"},
            "time": {"type": "number"},
            "kind": {"type": "string"},
            "record": {"type": "object", "description": "As a line of an event log."},
        },
        "required": ["number", "time", "kind", "record"],
    },
}

_APP = Parameter(name="app", text="An app's number or name.")
_OF_USER = (Parameter(name="user", text="Only this user's; empty: all users'.", default=""),)
# Whole numbers that every reader of JSON keeps.
_AFTER = Parameter(name="after", text="Only records after this number.", default=0, numbers=range(2**53))
_LIMIT = Parameter(
    name="limit", text="Maximum number of records.", default=MOST_EVENTS, numbers=range(1, MOST_EVENTS + 1)
)

PAGES: tuple[Page, ...] = (
    Page(
        path="/healthz",
        text="Whether the service works.",
        answer=lambda api, v: _health(api),
        public=True,
        schema={"type": "object", "properties": {"status": {"const": "ok"}}, "required": ["status"]},
    ),
    Page(
        path="/openapi.json",
        text="This description.",
        answer=lambda api, v: document(),
        public=True,
        schema={"type": "object", "required": ["openapi", "info", "paths"]},
    ),
    _page(
        "/v1/info", "Version, policy and size of the service.", lambda api, v: api.Info(pb.InfoRequest()), pb.InfoReply
    ),
    _page(
        "/v1/apps",
        "Apps that are queued or running, the oldest first.",
        lambda api, v: api.Apps(pb.AppsRequest(**v)),
        pb.AppsReply,
        "apps",
        parameters=_OF_USER,
    ),
    _page(
        "/v1/apps/{app}",
        "An app with its jobs and their attempts.",
        lambda api, v: api.Show(pb.AppRef(**v)),
        pb.ShowReply,
        parameters=(_APP,),
        refusals=(404,),
    ),
    _page(
        "/v1/history",
        "Finished apps, the oldest first.",
        lambda api, v: api.Apps(pb.AppsRequest(**v, ended=True)),
        pb.AppsReply,
        "apps",
        parameters=_OF_USER,
    ),
    _page(
        "/v1/nodes",
        "Machines; of a user, those that run the user's apps.",
        lambda api, v: api.Nodes(pb.NodesRequest(**v)),
        pb.NodesReply,
        "nodes",
        parameters=_OF_USER,
    ),
    _page(
        "/v1/share",
        "GPUs that each user holds now, and the fair share.",
        lambda api, v: api.Share(pb.UsersRequest(**v)),
        pb.ShareReply,
        "users",
        parameters=_OF_USER,
    ),
    _page(
        "/v1/usage",
        "GPU hours, cost and apps of each user so far; of the caller alone, unless an administrator.",
        lambda api, v: api.Usage(pb.UsageRequest(**v)),
        pb.UsageReply,
        "users",
        parameters=_OF_USER,
    ),
    Page(
        path="/v1/events",
        text="Records of the journal; of a user, those of the user's apps.",
        answer=_events,
        schema=_RECORDS,
        parameters=(*_OF_USER, _AFTER, _LIMIT),
    ),
)
