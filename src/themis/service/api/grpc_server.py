"""The gRPC server around ``service.api``: who calls, errors as status codes, bounds of messages."""

from __future__ import annotations

import errno
import logging
import math
import resource
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any
from urllib.parse import unquote

import grpc
from google.protobuf.message import DecodeError

from themis.client.grpc_channel import METHODS, SERVICE, to_bytes
from themis.client.home import joined
from themis.errors import InputError, ThemisError, UnknownName, counted
from themis.service.api.access import Access, Caller, Forbidden, NoToken
from themis.service.api.listening import try_address
from themis.service.api.methods import WORKERS, Api
from themis.service.api.submission import Limit
from themis.service.engine.agents import TooLate
from themis.service.engine.pending_calls import Closed
from themis.trust.authority.contexts import HANDSHAKE_S

NO_TOKEN = (
    "this call has no valid token, or it has expired; see the file token in the service's data directory, ask an administrator for "
    "one, or sign in with `themis login --oidc`."
)
PUBLIC = frozenset({"SignIn"})
"""Methods for callers without a token."""
MOST_PUBLIC = 1 << 14
"""Bytes of their messages."""
MOST_CONNECTIONS = 2048
"""Open at a time, those in their handshake included; fewer where the process may open few files."""

log = logging.getLogger("themis.service")


def serve(
    api: Api, host: str, port: int, most_bytes: int, credentials: grpc.ServerCredentials | None = None
) -> tuple[grpc.Server, int]:
    """Listen; returns the server, already started, and its port. ``credentials`` : for TLS.

    Raises
    ------
    InputError : the address is taken, or none of this machine's.
    """
    try_address(host, port, "port")
    options = [
        ("grpc.max_receive_message_length", most_bytes),
        ("grpc.so_reuseport", 0),
        # By default a connection may take two minutes for its handshake.
        ("grpc.server_handshake_timeout_ms", round(1000 * HANDSHAKE_S)),
        # gRPC counts all connections together, and closes those above as they come.
        ("grpc.max_allowed_incoming_connections", most_connections(resource.getrlimit(resource.RLIMIT_NOFILE)[0])),
    ]
    server = grpc.server(
        ThreadPoolExecutor(WORKERS + api.arbiter.config.max_agents, thread_name_prefix="themis-api"),
        options=options,
        interceptors=[_Token(api.access)],
    )
    handlers = {name: _handler(api, name) for name in METHODS}
    server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(SERVICE, handlers),))
    address = joined(host, port)
    try:
        port = server.add_secure_port(address, credentials) if credentials else server.add_insecure_port(address)
    except RuntimeError:
        raise InputError(f"cannot listen on {address}; another program has just taken it. Try again.") from None
    server.start()
    return server, port


def most_connections(files: int) -> int:
    """Connections of gRPC that leave enough files for all else; ``files`` : that the process may open, -1 for any number."""
    return MOST_CONNECTIONS if files < 0 else min(MOST_CONNECTIONS, files * 3 // 8)


class _Token(grpc.ServerInterceptor):  # type: ignore[type-arg]  # generic for the type checker only
    """Refuses calls without a valid token, before their message is read."""

    def __init__(self, access: Access) -> None:
        self.access = access

        def refuse(request: object, context: grpc.ServicerContext) -> None:
            context.abort(grpc.StatusCode.UNAUTHENTICATED, NO_TOKEN)

        self.refusal = grpc.unary_unary_rpc_method_handler(refuse)

    def intercept_service(self, continuation: Any, details: Any) -> Any:
        """Continue if the token is right, else refuse."""
        if details.method in _PUBLIC_PATHS:
            return continuation(details)
        right = _caller(self.access, details.invocation_metadata) is not None
        return continuation(details) if right else self.refusal


_PUBLIC_PATHS = frozenset(METHODS[name].path for name in PUBLIC)


def _caller(access: Access, metadata: Any, peer: str = "") -> Caller | None:
    given = dict(metadata).get("authorization", "")
    return access.caller(given if isinstance(given, str) else given.decode(errors="replace"), address_of(peer))


def address_of(peer: str) -> str:
    """The address in gRPC's name of the other end: ``ipv4:10.0.0.7:4711``, ``ipv6:[::1]:4711``; empty if unknown."""
    kind, _, rest = unquote(peer).partition(":")
    return rest.rpartition(":")[0].strip("[]") if kind in ("ipv4", "ipv6") else ""


def _handler(api: Api, name: str) -> Any:
    method = METHODS[name]

    def read(data: bytes) -> Any:
        # Here, not by gRPC, which takes an unreadable request for a mistake of the server.
        try:
            if name in PUBLIC and len(data) > MOST_PUBLIC:
                raise InputError(f"the request of {name} has more than {MOST_PUBLIC} bytes.")
            return method.read(data)
        except DecodeError:
            raise InputError(
                f"the request of {name} is {counted(len(data), 'byte')} that are not a message {method.request}; send one as "
                "themis.proto describes it."
            ) from None

    def by(context: grpc.ServicerContext) -> Callable[..., Any]:
        if name in PUBLIC:
            caller: Caller | None = Caller(user="", admin=False, address=address_of(context.peer()))
        else:
            caller = _caller(api.access, context.invocation_metadata(), context.peer())
        if caller is None:  # removed since the call came in
            raise NoToken(NO_TOKEN)
        do: Callable[..., Any] = getattr(api.by(caller), name)
        return do

    def one(request: Any, context: grpc.ServicerContext) -> Any:
        with _Status(api, context, name):
            return by(context)(read(request))

    def many(request: Any, context: grpc.ServicerContext) -> Iterator[Any]:
        gone = threading.Event()
        context.add_callback(gone.set)  # a stream that has nothing to say would not notice otherwise
        with _Status(api, context, name, stream=True):
            for message in by(context)(read(request), gone):
                if _caller(api.access, context.invocation_metadata()) is None:  # removed while it followed
                    raise NoToken(NO_TOKEN)
                yield message

    if method.stream:
        return grpc.unary_stream_rpc_method_handler(many, None, to_bytes)
    return grpc.unary_unary_rpc_method_handler(one, None, to_bytes)


class _Status:
    """Errors as status codes, and the count of calls."""

    def __init__(self, api: Api, context: grpc.ServicerContext, name: str, *, stream: bool = False) -> None:
        self.meter, self.context, self.name, self.stream = api.meter, context, name, stream

    def __enter__(self) -> None:
        self.began = time.perf_counter()

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: object) -> None:
        self._count(error)
        if isinstance(error, Limit):
            self.context.set_trailing_metadata((("retry-after", str(math.ceil(error.retry_s))),))
        if isinstance(error, ThemisError):
            self.context.abort(code_of(error), str(error))
        elif isinstance(error, OSError) and error.errno in (errno.ENOSPC, errno.EDQUOT):
            self.context.abort(grpc.StatusCode.UNAVAILABLE, f"{error.filename or 'a file'}: {error.strerror}.")
        elif isinstance(error, Exception) and self.context.is_active():
            log.error("%s failed", self.name, exc_info=error)
            self.context.abort(
                grpc.StatusCode.INTERNAL, f"a bug in Themis: {type(error).__name__}; see the arbiter's log."
            )

    def _count(self, error: BaseException | None) -> None:
        gone = error is None or isinstance(error, GeneratorExit)
        code = "OK" if gone else code_of(error).name if isinstance(error, ThemisError) else "INTERNAL"
        self.meter.add("grpc", self.name, code, None if self.stream else time.perf_counter() - self.began)


def code_of(error: ThemisError) -> grpc.StatusCode:
    """The status code of an error."""
    code = grpc.StatusCode
    match error:
        case NoToken():
            return code.UNAUTHENTICATED
        case Closed():
            return code.UNAVAILABLE
        case Limit():
            return code.RESOURCE_EXHAUSTED
        case Forbidden():
            return code.PERMISSION_DENIED
        case TooLate():
            return code.FAILED_PRECONDITION
        case UnknownName():
            return code.NOT_FOUND
        case InputError():
            return code.INVALID_ARGUMENT
        case _:
            return code.INTERNAL
