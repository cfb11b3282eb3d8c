"""Status as JSON over HTTP: read only, with the same token, for scripts and dashboards (``pages``)."""

from __future__ import annotations

import io
import json
import logging
import socket
import threading
from contextlib import ExitStack, suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import urlsplit

from themis.client.home import joined
from themis.errors import InputError, ThemisError, UnknownName
from themis.service.api.access import Forbidden, NoToken
from themis.service.api.call_limits import CallLimit
from themis.service.api.connections import HeaderReader
from themis.service.api.grpc_server import try_address
from themis.service.api.methods import Api
from themis.service.api.pages import PAGES, find
from themis.service.api.submission import Limit
from themis.service.engine.calls import Closed

MOST_CALLERS, CALLERS_OF_USER, CALLERS_KEPT = 48, 12, 12
"""Requests that are answered at a time: in total, of one user, and of the total for administrators alone."""
FULL = (
    b"HTTP/1.0 503 Service Unavailable\r\nContent-Type: application/json\r\nRetry-After: 1\r\n\r\n"
    b'{"error": "the service answers as many requests as it can; try again in a moment."}\n'
)
log = logging.getLogger("themis.service")


def serve_http(api: Api, host: str, port: int) -> ThreadingHTTPServer:
    """Listen, in threads of its own.

    Raises
    ------
    InputError : the address is taken, or none of this machine's.
    """
    try_address(host, port, "http_port")

    class Handler(_Handler):
        pass

    Handler.api = api
    Handler.callers = CallLimit(
        MOST_CALLERS, CALLERS_OF_USER, CALLERS_KEPT, "read status pages", "try again when one of them has ended"
    )
    try:
        server = _Server((host, port), Handler)
    except OSError as error:
        raise InputError(f"cannot listen on {joined(host, port)} for HTTP: {error.strerror}. Try again.") from None
    server.daemon_threads = True
    threading.Thread(target=server.serve_forever, name="themis-http", daemon=True).start()
    return server


class _Server(ThreadingHTTPServer):
    """Serves at most ``MOST_CALLERS`` requests at a time, each in a thread; ``HeaderReader`` reads its headers before."""

    request_queue_size = 128
    """Connections that the system keeps until they are accepted; one beyond waits for a second."""

    def __init__(self, address: tuple[str, int], handler: type[BaseHTTPRequestHandler]) -> None:
        self.places = threading.BoundedSemaphore(MOST_CALLERS)
        self.address_family = socket.AF_INET6 if ":" in address[0] else socket.AF_INET
        super().__init__(address, handler)
        self.header_reader = HeaderReader(self._admit)

    def process_request(self, request: Any, client_address: Any) -> None:
        self.header_reader.add(request, client_address)

    def _admit(self, connection: socket.socket, address: Any, data: bytes) -> None:
        """A request whose headers are read gets a thread, or is refused."""
        if self.places.acquire(blocking=False):
            try:
                connection.settimeout(_Handler.timeout)
                super().process_request(_Read(connection, data), address)  # type: ignore[arg-type]  # as a socket
                return
            except (OSError, RuntimeError) as error:  # no more threads; headers of others are still read
                self.places.release()
                log.warning("a request for a status page is refused: %s", error)
        with suppress(OSError):
            connection.send(FULL)
        self.shutdown_request(connection)

    def process_request_thread(self, request: Any, client_address: Any) -> None:
        try:
            super().process_request_thread(request, client_address)
        finally:
            self.places.release()

    def server_close(self) -> None:
        super().server_close()
        self.header_reader.close()

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Callers that hang up in the middle are no news either."""


class _Read:
    """A connection, of which what was read already is read first, and nothing after it: pages have no bodies."""

    def __init__(self, connection: socket.socket, data: bytes) -> None:
        self._connection, self._data = connection, data

    def makefile(self, mode: str, *_: object) -> io.BytesIO:
        """The headers."""
        return io.BytesIO(self._data)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._connection, name)


class _Handler(BaseHTTPRequestHandler):
    api: Api
    callers: CallLimit
    server_version, sys_version = "themis", ""
    timeout = 10
    """Seconds for the caller to take an answer."""

    def do_GET(self) -> None:
        """Answer a page."""
        with ExitStack() as place:
            self._do_GET(place)

    def _do_GET(self, place: ExitStack) -> None:
        try:
            self._say(200, self._answer(place))
        except Exception as error:
            code = _status(error)
            if code == 500:
                log.error("GET %s failed", self.path, exc_info=error)
            ours = isinstance(error, ThemisError)
            sentence = str(error) if ours else f"a bug in Themis: {type(error).__name__}; see the arbiter's log."
            self._say(code, {"error": sentence}, **({"WWW-Authenticate": "Bearer"} if code == 401 else {}))

    def _answer(self, place: ExitStack) -> Any:
        """The page's value; the caller's place is held for as long as ``place`` is open."""
        try:
            url = urlsplit(self.path)
        except ValueError as error:
            raise InputError(f"the address cannot be read: {error}.") from None
        page, inside = find(url.path) or (None, {})
        api = self.api
        if page is None or not page.public:
            caller = api.access.caller(self.headers.get("Authorization", ""))
            if caller is None:
                raise NoToken("this request has no valid token; see the file token in the service's data directory.")
            place.enter_context(self.callers.take(caller))
            api = api.by(caller)
        if page is None:
            raise UnknownName("page", url.path[:100], [page.path for page in PAGES])
        return page.answer(api, page.read(inside, url.query))

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


def _status(error: Exception) -> int:
    match error:
        case NoToken():
            return 401
        case Closed():
            return 503
        case Limit():
            return 429
        case Forbidden():
            return 403
        case UnknownName():
            return 404
        case InputError():
            return 400
    return 500
