"""Status as JSON over HTTP: read only, with the same token, for scripts and dashboards.

GET /healthz                      without a token: {"status": "ok"}
GET /v1/info  /v1/apps  /v1/history  /v1/nodes  /v1/share  /v1/usage        ?user=NAME
GET /v1/apps/APP                  an app with its jobs and attempts
GET /v1/events?after=N&limit=M    records of the journal, at most 1000
"""

from __future__ import annotations

import json
import logging
import threading
from collections.abc import Callable, Mapping
from contextlib import suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import parse_qs, unquote, urlsplit

from google.protobuf.json_format import MessageToDict

from themis.client import themis_pb2 as pb
from themis.errors import InputError, ThemisError, UnknownName
from themis.service.access import Forbidden
from themis.service.api import Api
from themis.service.arbiter import Closed

MOST_EVENTS = 1000
MOST_CALLERS = 32
log = logging.getLogger("themis.service")
Get = Callable[[Api, Mapping[str, str]], Any]


def as_dict(message: Any) -> dict[str, Any]:
    """A message as JSON has it: every field, under its own name."""
    out: dict[str, Any] = MessageToDict(
        message, preserving_proto_field_name=True, always_print_fields_with_no_presence=True
    )  # fmt: skip
    return out


PAGES: Mapping[str, Get] = {
    "info": lambda api, q: as_dict(api.Info(pb.InfoRequest())),
    "apps": lambda api, q: as_dict(api.Apps(pb.AppsRequest(user=q.get("user", ""))))["apps"],
    "history": lambda api, q: as_dict(api.Apps(pb.AppsRequest(user=q.get("user", ""), ended=True)))["apps"],
    "nodes": lambda api, q: as_dict(api.Nodes(pb.NodesRequest()))["nodes"],
    "share": lambda api, q: as_dict(api.Share(pb.UsersRequest(user=q.get("user", ""))))["users"],
    "usage": lambda api, q: as_dict(api.Usage(pb.UsersRequest(user=q.get("user", ""))))["users"],
    "events": lambda api, q: _events(api, q),
}


def serve_http(api: Api, host: str, port: int) -> ThreadingHTTPServer:
    """Listen, in threads of its own.

    Raises
    ------
    InputError : the port is taken.
    """

    class Handler(_Handler):
        pass

    Handler.api = api
    try:
        server = _Server((host, port), Handler)
    except OSError as error:
        raise InputError(
            f"cannot listen on {host}:{port} for HTTP ({error.strerror}); choose another http_port."
        ) from None
    server.daemon_threads = True
    threading.Thread(target=server.serve_forever, name="themis-http", daemon=True).start()
    return server


class _Server(ThreadingHTTPServer):
    """Answers so many at once; whoever comes beside them is hung up on, for connections that say nothing cost a thread each."""

    def __init__(self, address: tuple[str, int], handler: type[BaseHTTPRequestHandler]) -> None:
        self.places = threading.BoundedSemaphore(MOST_CALLERS)
        super().__init__(address, handler)

    def process_request(self, request: Any, client_address: Any) -> None:
        if self.places.acquire(blocking=False):
            super().process_request(request, client_address)
        else:
            self.shutdown_request(request)

    def process_request_thread(self, request: Any, client_address: Any) -> None:
        try:
            super().process_request_thread(request, client_address)
        finally:
            self.places.release()

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Callers that hang up in the middle are no news either."""


class _Handler(BaseHTTPRequestHandler):
    api: Api
    server_version, sys_version = "themis", ""
    timeout = 30

    def do_GET(self) -> None:
        """Answer a page."""
        url = urlsplit(self.path)
        if url.path == "/healthz":
            ok = self.api.arbiter.broken is None
            self._say(200 if ok else 500, {"status": "ok" if ok else "broken"})
            return
        caller = self.api.access.caller(self.headers.get("Authorization", ""))
        if caller is None:
            self._say(
                401, {"error": "this request lacks a valid token of the arbiter; see the file token in its home."}
            )
            return
        query = {name: values[-1] for name, values in parse_qs(url.query).items()}
        try:
            self._say(200, _page(self.api.by(caller), url.path, query))
        except UnknownName as error:
            self._say(404, {"error": str(error)})
        except Forbidden as error:
            self._say(403, {"error": str(error)})
        except InputError as error:
            self._say(400, {"error": str(error)})
        except Closed as error:
            self._say(503, {"error": str(error)})
        except ThemisError as error:
            log.error("GET %s failed", url.path, exc_info=error)
            self._say(500, {"error": str(error)})
        except Exception as error:
            log.error("GET %s failed", url.path, exc_info=error)
            self._say(500, {"error": f"a bug in Themis: {type(error).__name__}; see the arbiter's log."})

    def _say(self, code: int, value: object, **headers: str) -> None:
        data = json.dumps(value).encode() + b"\n"
        with suppress(OSError):  # the caller hung up
            self.send_response(code)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(data)))
            for name, text in headers.items():
                self.send_header(name, text)
            self.end_headers()
            if self.command != "HEAD":
                self.wfile.write(data)

    def send_error(self, code: int, message: str | None = None, explain: str | None = None) -> None:
        """What the library refuses by itself, in the form of all else; pages are read only."""
        self.close_connection = True
        if code == 501:
            self._say(405, {"error": f"{self.command} is not allowed, status pages are read only."}, Allow="GET")
        else:
            self._say(code, {"error": f"{message or self.responses.get(code, ('bad request',))[0]}."})

    def log_message(self, format: str, *args: object) -> None:
        """Requests are no news."""


def _page(api: Api, path: str, query: Mapping[str, str]) -> Any:
    parts = [unquote(part) for part in path.strip("/").split("/")]
    if len(parts) == 3 and parts[:2] == ["v1", "apps"]:
        return as_dict(api.Show(pb.AppRef(app=parts[2])))
    if len(parts) == 2 and parts[0] == "v1" and parts[1] in PAGES:
        return PAGES[parts[1]](api, query)
    raise UnknownName("page", path[:100], [f"/v1/{name}" for name in PAGES])


def _events(api: Api, query: Mapping[str, str]) -> Any:
    numbers = {"after": query.get("after", "0"), "limit": query.get("limit", str(MOST_EVENTS))}
    for name, text in numbers.items():
        if not (text.isdecimal() and len(text) < 20):
            raise InputError(f"{name} is {text[:100]!r}, expected a whole number below 1e19.")
    limit = min(int(numbers["limit"]) or MOST_EVENTS, MOST_EVENTS)
    records = api.Events(pb.EventsRequest(after=min(int(numbers["after"]), 2**62), limit=limit))
    return [{"number": r.number, "time": r.time, "kind": r.kind, "record": json.loads(r.json)} for r in records]
