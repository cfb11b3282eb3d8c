"""One operation of the HTTP API: how its request is read, and how OpenAPI describes it. ``pages`` has them all."""

from __future__ import annotations

import re
import threading
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any
from urllib.parse import parse_qsl

from google.protobuf.descriptor import Descriptor

from themis.errors import InputError, closest
from themis.machines.bundles.store import Incoming
from themis.service.api.json_messages import Schema, body_schema, read_message, read_object
from themis.service.api.methods import Api

Values = Mapping[str, Any]
_NUMBER = re.compile(r"-?[0-9]{1,300}(\.[0-9]{1,300})?([eE][+-]?[0-9]{1,3})?")
JSON, TEXT, EVENT_STREAM, GZIP = "application/json", "text/plain", "text/event-stream", "application/gzip"
BYTES = "application/octet-stream"

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
    500: "A bug in Themis; the arbiter's log says more.",
    503: "The service is stopping, its disk is full, or it serves the most requests that it can; try again.",
    507: "The store of bundles has no room, or the service's disk is full.",
}
OF_ALL, WITH_TOKEN, WITH_BODY, OF_APP = (400, 421, 500, 503), (401, 429), (408, 413, 415), (403, 404)
"""Statuses of every page, of those that need a token, of those with a body, and of those about one app."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Parameter:
    """A part of a page's path, or, with a default or ``optional``, of its query.

    Attributes
    ----------
    optional : it may be missing, and then has no value. ``several`` : it may be repeated; its value is a list.
    numbers : what a whole number may be. ``real`` : least and most of any number. ``flag`` : true or false.
    pattern : that a text matches as a whole; ``example`` : of a part of the path.
    choices : what a text may be. None of these: any text.
    """

    name: str
    text: str
    default: str | int | None = None
    optional: bool = False
    several: bool = False
    numbers: range | None = None
    real: tuple[float, float] | None = None
    flag: bool = False
    choices: tuple[str, ...] = ()
    pattern: str = ""
    example: str = "0"

    @property
    def inside(self) -> bool:
        """True if it is a part of the path."""
        return self.default is None and not self.optional

    def values(self, given: Mapping[str, list[str]]) -> dict[str, Any]:
        """Its name and value, from the texts of all parameters; empty if it is optional and missing.

        Raises
        ------
        InputError : as ``read``, or it is given twice and may not be.
        """
        texts = given.get(self.name)
        if texts is None:
            return {} if self.optional else {self.name: self.default}
        if self.several:
            return {self.name: [self.read(text) for text in texts]}
        if len(texts) > 1:
            raise InputError(f"{self.name} is given twice.")
        return {self.name: self.read(texts[0])}

    def read(self, text: str) -> str | int | float:
        """Its value.

        Raises
        ------
        InputError : it is neither true nor false, no number, not a whole number in its range, or none of its choices.
        """
        if self.real is not None:
            least, most = self.real
            if not _NUMBER.fullmatch(text) or not least <= float(text) <= most:
                raise InputError(f"{self.name} is {text[:100]!r}, expected a number from {least:.12g} to {most:.12g}.")
            return float(text)
        if self.flag:
            if text not in ("true", "false"):
                raise InputError(f"{self.name} is {text[:100]!r}, expected true or false.")
            return text == "true"
        if self.choices and text not in self.choices:
            known = [choice for choice in self.choices if choice]
            raise InputError(
                f"{self.name} is {text[:100]!r}, expected one of {', '.join(known)}.{closest(text[:100], known)}"
            )
        if self.pattern and not re.fullmatch(self.pattern, text):
            raise InputError(f"{self.name} is {text[:100]!r}, expected {self.text[0].lower()}{self.text[1:]}")
        if self.numbers is None:
            return text
        # Longer ones are in no range, and costly to read.
        value = int(text) if text.isascii() and text.isdecimal() and len(text) < 20 else -1
        if value not in self.numbers:
            least, most = self.numbers[0], self.numbers[-1]
            raise InputError(f"{self.name} is {text[:100]!r}, expected a whole number from {least} to {most}.")
        return value

    def described(self) -> Schema:
        """Description of the page in OpenAPI."""
        schema: Schema = {"type": "string"}
        if self.choices:
            schema["enum"] = list(self.choices)
        if self.numbers is not None:
            schema = {"type": "integer", "minimum": self.numbers[0], "maximum": self.numbers[-1]}
        if self.real is not None:
            schema = {"type": "number", "minimum": self.real[0], "maximum": self.real[1]}
        if self.flag:
            schema = {"type": "boolean"}
        if self.pattern:
            schema["pattern"] = f"^{self.pattern}$"
        if self.inside:
            return {
                "name": self.name,
                "in": "path",
                "required": True,
                "description": self.text,
                "schema": {**schema, "minLength": 1},
                "example": self.example,
            }
        schema = {"type": "array", "items": schema} if self.several else schema
        default = {} if self.optional else {"default": self.default}
        return {"name": self.name, "in": "query", "description": self.text, "schema": {**schema, **default}}


@dataclass(frozen=True, slots=True, kw_only=True)
class Page:
    """One operation: its path, its reply and who may ask for it.

    Attributes
    ----------
    path : with ``{name}`` where a parameter stands.
    answer : the reply, from the values of all parameters and of the body's fields: JSON, or bytes of another ``media`` type.
    stream : in place of ``answer``, the reply in pieces; ends when the event is set.
    upload : in place of ``answer``, where the body, whose size is announced, is written; the reply names it.
    schema : of the reply. ``message`` : that it refers to.
    body : the message that the body and the path's parameters make. ``status`` : of a success.
    public : needs no token.
    refusals : statuses beyond those of every page.
    """

    path: str
    text: str
    schema: Schema
    method: str = "GET"
    answer: Callable[[Api, Values], Any] | None = None
    stream: Callable[[Api, Values, threading.Event], Iterator[bytes]] | None = None
    media: str = JSON
    upload: Callable[[Api, Values, int], Incoming] | None = None
    message: Descriptor | None = None
    parameters: tuple[Parameter, ...] = ()
    body: Descriptor | None = None
    status: int = 200
    public: bool = False
    refusals: tuple[int, ...] = ()

    def match(self, parts: list[str]) -> dict[str, str] | None:
        """The parameters in a path, or None where the path is another page's."""
        own = self.path.strip("/").split("/")
        if len(own) != len(parts) or any(mine != part and mine[0] != "{" for mine, part in zip(own, parts)):
            return None
        return {mine[1:-1]: part for mine, part in zip(own, parts) if mine[0] == "{"}

    def read(self, inside: Mapping[str, str], query: str, body: bytes = b"") -> Values:
        """The values of all parameters: those in the path, as ``match`` found them, those of the query, defaults, and the body's.

        Raises
        ------
        InputError : one is unknown, given twice or out of its range; left out of account, it would change what is asked.
        """
        given = {name: [text] for name, text in inside.items()}
        known = [p.name for p in self.parameters if p.name not in inside]
        for name, text in parse_qsl(query, keep_blank_values=True):
            if name not in known:
                has = f"has {', '.join(known)}" if known else "has none"
                raise InputError(f"unknown parameter {name[:100]!r}.{closest(name[:100], known)} This page {has}.")
            given.setdefault(name, []).append(text)
        values: dict[str, Any] = {}
        for parameter in self.parameters:
            values |= parameter.values(given)
        if self.body is None:
            return values
        fields = read_object(body)
        read_message(self.body, fields, without=values)
        return {**fields, **values}

    def described(self) -> Schema:
        """Description of the field in OpenAPI."""
        own = () if self.public else WITH_TOKEN
        refusals = sorted(
            {*OF_ALL, *own, *self.refusals, *(WITH_BODY if self.body is not None or self.upload is not None else ())}
        )
        out: Schema = {
            "summary": self.text,
            "parameters": [parameter.described() for parameter in self.parameters],
            "responses": {
                str(self.status): {"description": "OK", "content": {self.media: {"schema": self.schema}}},
                **{str(code): {"$ref": f"#/components/responses/{code}"} for code in refusals},
            },
            "security": [] if self.public else [{"token": []}],
        }
        if self.upload is not None:
            content = {BYTES: {"schema": {"type": "string", "format": "binary"}}}
            out["requestBody"] = {"required": True, "content": content}
        if self.body is not None:
            inside = {p.name for p in self.parameters}
            required = self.status == 201
            content = {JSON: {"schema": body_schema(self.body, inside)}}
            out["requestBody"] = {"required": required, "content": content}
        return out
