"""The arbiter's API over HTTP with the standard library alone, for commands that must start fast.

``Service.call`` takes a route of ``themis.schema.routes`` and its fields, and gives the reply as JSON has it. Where no answer comes
(a restart, a busy service), ``Client`` makes the same call: it knows how to wait and what to say.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from http.client import HTTPConnection, HTTPException, HTTPResponse
from pathlib import Path
from typing import TYPE_CHECKING, Any, Never
from urllib.parse import urlencode

from themis.client.home import read_endpoint, read_token
from themis.data_dir import default_home
from themis.errors import InputError
from themis.schema.routes import CALLS, Route

if TYPE_CHECKING:
    from themis.client.client import Client

TIMEOUT_S = 30.0
SENTENCES = (400, 403, 404, 413, 415)
"""Statuses of requests that are wrong; the body says how."""


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
        """The same service by a client that waits."""
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
        if self._client is None:
            try:
                return self._asked(CALLS[method], dict(fields))
            except (Unanswered, OSError, ValueError):
                pass
        return self._patiently(method, fields)

    def pieces(self, method: str, **fields: Any) -> Iterator[bytes]:
        """The bytes of a page, as they come.

        Raises
        ------
        InputError : the call is wrong. Unanswered, OSError : no answer of the API.
        """
        connection = self._connection()
        try:
            reply = self._reply(connection, "GET", _query(CALLS[method], fields), None)
            if reply.status != 200:
                _refuse(reply.status, json.loads(reply.read()))
            while piece := reply.read1(1 << 16):
                yield piece
        except (HTTPException, ValueError) as error:
            raise Unanswered from error
        finally:
            connection.close()

    def _asked(self, route: Route, fields: dict[str, Any]) -> dict[str, Any]:
        if route.method == "GET":
            status, found = self._ask("GET", _query(route, fields), None)
        else:
            rest = {key: value for key, value in fields.items() if key not in route.inside}
            status, found = self._ask(route.method, route.filled(fields), json.dumps(rest))
        if status not in (200, 201):
            _refuse(status, found)
        return {route.part: found} if route.part else found

    def _ask(self, verb: str, path: str, body: str | None) -> tuple[int, Any]:
        """Status and body of a request.

        Raises
        ------
        Unanswered : the answer is not one of the API's. OSError : no connection.
        """
        connection = self._connection()
        try:
            reply = self._reply(connection, verb, path, body)
            return reply.status, json.loads(reply.read())
        except HTTPException as error:
            raise Unanswered from error
        finally:
            connection.close()

    def _connection(self) -> HTTPConnection:
        from themis.client.web import connection_to

        return connection_to(self.home, self._http, TIMEOUT_S)

    def _reply(self, connection: HTTPConnection, verb: str, path: str, body: str | None) -> HTTPResponse:
        headers = {"Authorization": f"Bearer {self._token}", "Connection": "close"}
        if body is not None:
            headers["Content-Type"] = "application/json"
        connection.request(verb, path, body, headers)
        return connection.getresponse()

    def _patiently(self, method: str, fields: Mapping[str, Any]) -> dict[str, Any]:
        from themis.schema.wire import as_dict, kind, read

        given = {name: value for name, value in fields.items() if value is not None}
        return as_dict(self.client.call(method, read(kind(CALLS[method].request), given)))


def _query(route: Route, fields: Mapping[str, Any]) -> str:
    """The path of a GET with its query."""
    rest = {key: value for key, value in fields.items() if key not in route.inside}
    given = {key: "true" if value is True else value for key, value in rest.items() if value}
    path = route.filled(dict(fields))
    return f"{path}?{urlencode(given, doseq=True)}" if given else path


def _refuse(status: int, found: Any) -> Never:
    sentence = found.get("error") if isinstance(found, dict) else None
    if status not in SENTENCES or not sentence or sentence.startswith("unknown page"):  # an older service
        raise Unanswered
    raise InputError(sentence)
