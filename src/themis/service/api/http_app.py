"""The API as an ASGI application: callers, limits, bodies, errors as status codes; ``pages`` has the answers."""

from __future__ import annotations

import asyncio
import errno
import ipaddress
import logging
import math
import threading
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, nullcontext, suppress
from typing import Any, Protocol
from urllib.parse import urlsplit

from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response, StreamingResponse
from starlette.types import Receive, Scope, Send

from themis.errors import InputError, ThemisError, UnknownName
from themis.machines.bundles.store import NoRoomInStore
from themis.schema.messages import BundleRef, BundleReply, EventsRequest, Message
from themis.schema.routes import ANYONE, BYTES, EVENTS, JSON, Route
from themis.schema.wire import as_json, changed, read
from themis.service.api.access import Caller, Forbidden, NoToken
from themis.service.api.call_limits import CallLimit
from themis.service.api.listening import is_loopback
from themis.service.api.methods import READS, STREAMS, Api
from themis.service.api.pages import NotAllowed, answer, find, receive, request_of, stream, takes_body
from themis.service.api.submission import DiskLow, Limit
from themis.service.engine.pending_calls import Closed

MOST_CALLERS, CALLERS_OF_USER, CALLERS_KEPT = 48, 12, 12
"""Limits of concurrently answered requests: in total, of one user, and of the total for administrators only."""
PIECE = 1 << 20
"""Bytes of an upload that are written together."""
MOST_PUBLIC = 1 << 14
"""Bytes of the body of a caller without a token."""
SHORT = 1024
"""Bytes of a body that is read without an account."""
BODY_S = 10.0
"""Seconds for the body of a request to arrive."""
START_S = 0.25
"""Seconds in which a stream of events may be refused; then it begins, even without an event."""
EVENTS_BEGIN = b"retry: 2000\n\n"
"""Readers that lost the connection come back after 2 s."""
HEARTBEAT_S = 15.0
"""Seconds between two lines of a stream of events in which nothing happens, so that proxies keep it open."""
NO_TOKEN = "this request has no valid token, or it has expired; see the file token in the service's data directory."
NO_STORE = {"Cache-Control": "no-store"}
"""Answers are of this instant, and some have tokens."""
log = logging.getLogger("themis.service")


class Refused(ThemisError):
    """A refused request with an HTTP status. ``close`` : nobody can say where the next request begins."""

    def __init__(self, status: int, sentence: str, *, close: bool = False) -> None:
        super().__init__(sentence)
        self.status, self.close = status, close


Run = Callable[[Caller, Callable[[], Response]], Awaitable[Response]]
"""Runs the work of a caller in a thread, within the limit of concurrent requests."""


class Site(Protocol):
    """Pages for browsers on the same port, which say by themselves who calls."""

    def serves(self, path: str) -> bool:
        """True if a path is one of the site."""

    async def answer(self, request: Request, path: str, query: str, run: Run) -> Response:
        """Answer a request for one of its paths; errors are answers too."""


class HttpApp:
    """The application. ``host`` : where it listens. ``most_bytes`` : of a body. ``site`` : pages for browsers."""

    def __init__(self, api: Api, host: str, most_bytes: int, site: Site | None = None) -> None:
        self.api, self.most_bytes, self.site = api, most_bytes, site
        self.local = is_loopback(host)
        self.callers = CallLimit(
            MOST_CALLERS, CALLERS_OF_USER, CALLERS_KEPT, "use the HTTP API", "try again when one of them has ended"
        )
        self.threads = ThreadPoolExecutor(
            MOST_CALLERS + STREAMS + READS + api.arbiter.config.max_agents, thread_name_prefix="themis-http"
        )

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one request."""
        request, began = Request(scope, receive), time.perf_counter()
        with ExitStack() as place:
            try:
                response = await self._answer(request, place)
            except ClientDisconnect:
                return
            except Exception as error:
                response = _refusal(request, error)
            route: Route | None = scope.get("themis.route")
            name = route.name if route is not None else scope.get("themis.called", "unknown page")
            streams = isinstance(response, StreamingResponse)
            seconds = None if streams else time.perf_counter() - began
            self.api.meter.add("http", name, str(response.status_code), seconds)
            await response(scope, receive, send)

    async def _answer(self, request: Request, place: ExitStack) -> Response:
        """The page's reply; the caller's place is held for as long as ``place`` is open."""
        self._check_host(request.headers.get("host", ""))
        if "transfer-encoding" in request.headers and "content-length" in request.headers:
            raise Refused(
                400, "the request has Transfer-Encoding and Content-Length, expected one of them.", close=True
            )
        path, query = _target(request.scope)
        if self.site is not None and self.site.serves(path):
            return await self.site.answer(request, path, query, self._run)
        try:
            route, inside = find(request.method, path)
        except UnknownName:
            self._caller(request)
            raise
        request.scope["themis.route"] = route
        anyone = route.rights == ANYONE
        api = (
            self.api.by(Caller(user="", admin=False, address=address_of(request))) if anyone else self._caller(request)
        )
        if route.stream:
            return await self._streamed(request, route, api, request_of(route, inside, query))
        now = anyone and not takes_body(route)  # answered from memory, also when all threads are busy
        if not now:
            place.enter_context(self.callers.take(api.caller))
        if route.upload:
            return await self._uploaded(request, route, api, read(BundleRef, inside))
        body = await self._body(request, route)
        if now:
            data = rendered(route, api, inside, query, body)
        else:
            data = await asyncio.get_running_loop().run_in_executor(
                self.threads, rendered, route, api, inside, query, body
            )
        return Response(data, route.status, NO_STORE, media_type=route.media)

    async def _run(self, caller: Caller, work: Callable[[], Response]) -> Response:
        with self.callers.take(caller):
            return await asyncio.get_running_loop().run_in_executor(self.threads, work)

    def _check_host(self, given: str) -> None:
        """On loopback, refuse host names that a web page may have made to resolve to this address."""
        if self.local and given and not _is_local(given):
            raise Refused(
                421, f"Host is {given[:100]!r}, expected localhost or 127.0.0.1: the service listens on loopback only."
            )

    def _caller(self, request: Request) -> Api:
        caller = self.api.access.caller(request.headers.get("authorization", ""), address_of(request))
        if caller is None:
            raise NoToken(NO_TOKEN)
        return self.api.by(caller)

    async def _body(self, request: Request, route: Route) -> bytes:
        headers = request.headers
        length, kind = headers.get("content-length", "0"), headers.get("content-type", "")
        there = length != "0" or "transfer-encoding" in headers
        if not takes_body(route):
            if there:
                raise InputError(f"{route.method} {route.path} takes no body, got one.")
            return b""
        words = [word.strip().lower() for word in kind.split(";")]
        if (there or kind) and (words[0] != JSON or any(word not in ("", "charset=utf-8") for word in words[1:])):
            raise Refused(415, f"Content-Type is {kind[:100]!r}, expected application/json.")
        most = MOST_PUBLIC if route.rights == ANYONE else self.most_bytes
        too_large = Refused(413, f"the body has more than {most} bytes; move data to files, or increase max_message.")
        if len(length) > 18 or int(length) > most:
            raise too_large
        data = bytearray()
        try:
            async with asyncio.timeout(BODY_S):
                async for piece in request.stream():
                    data += piece
                    if len(data) > most:
                        raise too_large
        except TimeoutError:
            raise Refused(408, f"the body did not arrive within {BODY_S:g} s.") from None
        return bytes(data)

    async def _uploaded(self, request: Request, route: Route, api: Api, named: BundleRef) -> Response:
        """Write a body to disk as it comes, in a thread; memory holds one piece of it."""
        length, kind = request.headers.get("content-length", ""), request.headers.get("content-type", "")
        if kind.split(";")[0].strip().lower() != BYTES:
            raise Refused(415, f"Content-Type is {kind[:100]!r}, expected {BYTES}.")
        if not length.isdecimal():
            raise Refused(411, "the request has no Content-Length.")
        most = self.api.arbiter.config.max_bundle_bytes
        if len(length) > 18 or int(length) > most:
            raise Refused(413, f"the body has {length[:30]} bytes, more than {most} (max_bundle); send less.")
        loop = asyncio.get_running_loop()
        incoming = await loop.run_in_executor(self.threads, receive, api, named, int(length))
        try:
            pieces, data = request.stream().__aiter__(), bytearray()
            while True:
                try:
                    piece = await asyncio.wait_for(anext(pieces, None), BODY_S)
                except TimeoutError:
                    raise Refused(408, f"nothing more of the body arrived within {BODY_S:g} s.") from None
                data += piece or b""
                if piece is None or len(data) >= PIECE:
                    await loop.run_in_executor(self.threads, incoming.write, bytes(data))
                    data.clear()
                if piece is None:
                    break
            name = await loop.run_in_executor(self.threads, incoming.finish, named.sha256)
        finally:
            await asyncio.shield(loop.run_in_executor(self.threads, incoming.abort))
        made = BundleReply(sha256=name, bytes=incoming.size)
        return Response(as_json(made) + b"\n", route.status, NO_STORE, media_type=route.media)

    # ---- streams -----------------------------------------------------------------------------------------------------

    async def _streamed(self, request: Request, route: Route, api: Api, asked: Message) -> Response:
        """A reply in pieces; an error before the first one is a status code."""
        events = route.media == EVENTS
        if isinstance(asked, EventsRequest) and (after := request.headers.get("last-event-id")):
            asked = changed(asked, after=read(EventsRequest, {"after": after}).after)
        gone = threading.Event()
        pieces = stream(api, route, asked, gone)
        token = request.headers.get("authorization", "")
        follower = _Follower(pieces, gone, self.threads, lambda: self.api.access.caller(token) is not None)
        await follower.begin(request, START_S if isinstance(asked, EventsRequest) else None)
        headers = {**NO_STORE, "X-Accel-Buffering": "no"}
        begin, beat_s = (EVENTS_BEGIN, HEARTBEAT_S) if events else (b"", None)
        return StreamingResponse(follower.pieces(begin, beat_s), route.status, headers, media_type=route.media)


class _Follower:
    """The pieces of a reply, which threads make one after the other, as the event loop sends them."""

    def __init__(
        self, pieces: Iterator[bytes], gone: threading.Event, threads: ThreadPoolExecutor, may: Callable[[], bool]
    ) -> None:
        self._pieces, self._gone, self._threads, self._may = pieces, gone, threads, may
        self._next: asyncio.Future[bytes | None] | None = None

    def _ask(self) -> asyncio.Future[bytes | None]:
        """The next piece, None at the end."""
        if self._next is None:
            loop = asyncio.get_running_loop()
            self._next = loop.run_in_executor(self._threads, lambda: next(self._pieces, None))
        return self._next

    async def begin(self, request: Request, most_s: float | None) -> None:
        """Wait for the first piece, at most ``most_s``.

        Raises
        ------
        ClientDisconnect : the caller disconnected meanwhile. Whatever the call raises.
        """
        left = asyncio.ensure_future(_hung_up(request))
        either: list[asyncio.Future[Any]] = [self._ask(), left]
        await asyncio.wait(either, timeout=most_s, return_when=asyncio.FIRST_COMPLETED)
        if self._ask().done():
            left.cancel()
            self._ask().result()
        elif left.done():
            self._end()
            raise ClientDisconnect
        left.cancel()

    async def pieces(self, begin: bytes, beat_s: float | None) -> AsyncIterator[bytes]:
        """All pieces after ``begin``, and a comment where there was none for ``beat_s``."""
        try:
            if begin:
                yield begin
            while True:
                while not (await asyncio.wait([self._ask()], timeout=beat_s))[0]:
                    self._check()
                    yield b": nothing new\n\n"
                self._check()
                piece = self._ask().result()
                if piece is None:
                    return
                self._next = None
                yield piece
        except ThemisError as error:
            if not begin:  # the connection breaks, so that the reader sees that the rest is missing
                raise
            yield b"event: error\ndata: %s\n\n" % as_json({"error": str(error), "status": status_of(error)})
        finally:
            self._end()

    def _check(self) -> None:
        if not self._may():  # the token was removed while it followed
            raise NoToken(NO_TOKEN)

    def _end(self) -> None:
        """The client disconnected: the thread that makes the next piece ends, and the call with it."""
        self._gone.set()
        close = getattr(self._pieces, "close", None)
        if close is None:
            return
        if self._next is not None and not self._next.done():
            self._next.add_done_callback(lambda _: close())
        else:
            with suppress(RuntimeError):  # the server has ended
                self._threads.submit(close)


async def _hung_up(request: Request) -> None:
    while (await request.receive())["type"] != "http.disconnect":
        pass


# ---- requests and replies --------------------------------------------------------------------------------------------


def _target(scope: Scope) -> tuple[str, str]:
    """Path and query as they were sent, so that a slash that is written %2F belongs to a name."""
    path = scope["raw_path"].decode("ascii", "replace")
    if not path.startswith("/"):  # a whole address, as proxies send it
        try:
            path = urlsplit(path).path
        except ValueError as error:
            raise InputError(f"the address cannot be read: {error}.") from None
    return path, scope["query_string"].decode("ascii", "replace")


def address_of(request: Request) -> str:
    """Address of the other end of the connection; headers of proxies are ignored."""
    return request.client.host if request.client is not None else ""


def _is_local(host: str) -> bool:
    """True if a Host header names this machine's loopback."""
    try:
        name = (urlsplit(f"//{host}").hostname or "").lower()
        return name == "localhost" or ipaddress.ip_address(name).is_loopback
    except ValueError:
        return False


def rendered(route: Route, api: Api, inside: Mapping[str, str], query: str, body: bytes) -> bytes:
    """The reply to a request; not in the event loop, for reading a body takes time."""
    # Short ones cost next to nothing, and a user who has spent too much can still cancel.
    with api.costs.reading(api.caller) if len(body) > SHORT else nullcontext():
        asked = request_of(route, inside, query, body)
    return answer(api, route, asked)


def _refusal(request: Request, error: Exception) -> Response:
    status = status_of(error)
    if status == 500:
        log.error("%s %s failed", request.method, request.url.path, exc_info=error)
    sentence = str(error)
    if isinstance(error, OSError) and status == 503:
        sentence = f"{error.filename or 'a file'}: {error.strerror}."
    elif not isinstance(error, ThemisError):
        sentence = f"a bug in Themis: {type(error).__name__}; see the service's log."
    later = {"Retry-After": str(math.ceil(error.retry_s) if isinstance(error, Limit) else 1)}
    headers = {401: {"WWW-Authenticate": "Bearer"}, 429: later, 503: later}.get(status, {})
    if isinstance(error, NotAllowed):
        headers = {"Allow": ", ".join(error.allowed)}
    if isinstance(error, Refused) and error.close:
        headers = {"Connection": "close"}
    return Response(as_json({"error": sentence}) + b"\n", status, headers, media_type=JSON)


def status_of(error: Exception) -> int:
    """The status code of an error."""
    match error:
        case Refused():
            return error.status
        case NotAllowed():
            return 405
        case NoToken():
            return 401
        case Closed():
            return 503
        case NoRoomInStore() | DiskLow():
            return 507
        case Limit():
            return 429
        case Forbidden():
            return 403
        case UnknownName():
            return 404
        case InputError():
            return 400
        case OSError() if error.errno in (errno.ENOSPC, errno.EDQUOT):
            return 503
    return 500
