"""The arbiter's API over HTTP with the standard library alone, for commands that must start fast.

``Service.call`` takes a method of ``themis.proto`` and its fields, and gives the reply as JSON has it. Where HTTP does not
answer (no port, a restart, an older service), the same call goes over gRPC, which knows how to wait and what to say.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import quote, urlencode

from themis.client.home import read_endpoint, read_token
from themis.data_dir import default_home
from themis.errors import InputError

if TYPE_CHECKING:
    from themis.client.client import Client

TIMEOUT_S = 30.0
SENTENCES = (400, 403, 404, 409, 413, 415, 429)
"""Statuses of requests that are wrong; the body says how."""

ROUTES: Mapping[str, tuple[str, str, str]] = {
    "Info": ("GET", "/v1/info", ""),
    "Apps": ("GET", "/v1/apps", "apps"),
    "Show": ("GET", "/v1/apps/{app}", ""),
    "Trials": ("GET", "/v1/apps/{app}/trials", ""),
    "Nodes": ("GET", "/v1/nodes", "nodes"),
    "Share": ("GET", "/v1/share", "users"),
    "Usage": ("GET", "/v1/usage", "users"),
    "History": ("GET", "/v1/history", "apps"),
    "Settings": ("GET", "/v1/settings", "settings"),
    "Submit": ("POST", "/v1/apps", ""),
    "SubmitFile": ("POST", "/v1/jobfiles", ""),
    "Cancel": ("POST", "/v1/apps/{app}/cancel", ""),
    "Hold": ("POST", "/v1/apps/{app}/hold", ""),
    "Resume": ("POST", "/v1/apps/{app}/resume", ""),
    "Drain": ("POST", "/v1/nodes/{node}/drain", ""),
    "Undrain": ("POST", "/v1/nodes/{node}/undrain", ""),
    "RemoveNode": ("POST", "/v1/nodes/{node}/remove", ""),
}
"""HTTP method, path, and the only field of the reply that the page returns (empty: the whole reply), by gRPC method."""


class Unanswered(Exception):
    """HTTP gave no answer of the API."""


class Service:
    """A service, as its data directory names it.

    Parameters
    ----------
    home : the data directory; by default ``$THEMIS_DATA_DIR`` or ``~/.themis``.
    patience_s : seconds to retry while the arbiter is unavailable. ``on_wait`` : called once, with a sentence, when that begins.
    """

    def __init__(
        self, home: Path | None = None, *, patience_s: float = 5.0, on_wait: Callable[[str], object] = lambda _: None
    ) -> None:
        self.home = home or default_home()
        self.patience_s, self.on_wait = patience_s, on_wait
        self._client: Client | None = None
        self._http = read_endpoint(self.home).http
        self._token = read_token(self.home)

    def __enter__(self) -> Service:
        return self

    def __exit__(self, *_: object) -> None:
        if self._client is not None:
            self._client.close()

    @property
    def client(self) -> Client:
        """The same service over gRPC."""
        if self._client is None:
            from themis.client.client import Client

            self._client = Client(self.home, patience_s=self.patience_s, on_wait=self.on_wait)
        return self._client

    def call(self, method: str, **fields: Any) -> dict[str, Any]:
        """The reply of a method, as JSON: every field, under its own name.

        Raises
        ------
        InputError : the call is wrong. Unavailable : the arbiter does not answer.
        """
        try:
            json.dumps(fields, ensure_ascii=False).encode()
        except UnicodeEncodeError:
            raise InputError("the call has text that is not UTF-8, which cannot be sent.") from None
        if self._client is None and self._http and method in ROUTES:
            try:
                return self._over_http(method, dict(fields))
            except (Unanswered, OSError, ValueError):
                pass
        return self._over_grpc(method, fields)

    def _over_http(self, method: str, fields: dict[str, Any]) -> dict[str, Any]:
        verb, path, part = ROUTES[method]
        for name in ("app", "node"):
            if f"{{{name}}}" in path:
                if not str(fields[name]) or "/" in str(fields[name]):
                    raise Unanswered
                path = path.format(**{name: quote(str(fields.pop(name)), safe="")})
        if verb == "GET":
            given = {key: "true" if value is True else value for key, value in fields.items() if value}
            query = urlencode(given, doseq=True)
            status, found = self._ask(verb, f"{path}?{query}" if query else path, None)
        else:
            status, found = self._ask(verb, path, json.dumps(fields))
        if status in (200, 201):
            return {part: found} if part else found
        sentence = found.get("error") if isinstance(found, dict) else None
        if (
            status not in SENTENCES or not sentence or sentence.startswith("unknown pa")
        ):  # page, parameter: an older service
            raise Unanswered
        raise InputError(sentence)

    def _ask(self, verb: str, path: str, body: str | None) -> tuple[int, Any]:
        """Status and body of a request.

        Raises
        ------
        Unanswered : the answer is not one of the API's. OSError : no connection.
        """
        from http.client import HTTPException

        from themis.client.web import connection_to

        headers = {"Authorization": f"Bearer {self._token}", "Connection": "close"}
        if body is not None:
            headers["Content-Type"] = "application/json"
        connection = connection_to(self.home, self._http, TIMEOUT_S)
        try:
            connection.request(verb, path, body, headers)
            reply = connection.getresponse()
            return reply.status, json.loads(reply.read())
        except HTTPException as error:
            raise Unanswered from error
        finally:
            connection.close()

    def _over_grpc(self, method: str, fields: Mapping[str, Any]) -> dict[str, Any]:
        from google.protobuf.json_format import ParseDict, ParseError

        from themis.client import themis_pb2 as pb
        from themis.client.as_json import as_dict
        from themis.client.grpc_channel import METHODS

        try:
            request = ParseDict(dict(fields), getattr(pb, METHODS[method].request)())
        except ParseError as error:
            raise InputError(f"the call cannot be sent: {error}.") from None
        return as_dict(self.client.call(method, request))
