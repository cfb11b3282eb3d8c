"""The gRPC server around ``service.api``: who calls, errors as status codes, bounds of messages."""

from __future__ import annotations

import errno
import logging
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import grpc

from themis.client.channel import METHODS, SERVICE, to_bytes
from themis.errors import InputError, ThemisError, UnknownName
from themis.service.access import Access, Caller, Forbidden
from themis.service.agents import TooLate
from themis.service.api import WORKERS, Api
from themis.service.arbiter import Closed
from themis.service.submission import Limit

NO_TOKEN = "this call lacks a valid token of the arbiter; see the file token in its home, or ask its administrator."

log = logging.getLogger("themis.service")


def serve(api: Api, address: str, most_bytes: int) -> tuple[grpc.Server, int]:
    """Listen; returns the server, already started, and its port.

    Raises
    ------
    InputError : the address is taken.
    """
    options = [("grpc.max_receive_message_length", most_bytes), ("grpc.so_reuseport", 0)]
    server = grpc.server(
        ThreadPoolExecutor(WORKERS + api.arbiter.config.max_agents, thread_name_prefix="themis-api"),
        options=options,
        interceptors=[_Token(api.access)],
    )
    handlers = {name: _handler(api, name) for name in METHODS}
    server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(SERVICE, handlers),))
    try:
        port = server.add_insecure_port(address)
    except RuntimeError:
        port = 0
    if not port:
        raise InputError(f"cannot listen on {address}; something else does already. Choose another port.")
    server.start()
    return server, port


class _Token(grpc.ServerInterceptor):  # type: ignore[type-arg]  # generic for the type checker only
    """Turns away calls without a valid token, before anything of them is read."""

    def __init__(self, access: Access) -> None:
        self.access = access

        def refuse(request: object, context: grpc.ServicerContext) -> None:
            context.abort(grpc.StatusCode.UNAUTHENTICATED, NO_TOKEN)

        self.refusal = grpc.unary_unary_rpc_method_handler(refuse)

    def intercept_service(self, continuation: Any, details: Any) -> Any:
        """Continue if the token is right, else refuse."""
        right = _caller(self.access, details.invocation_metadata) is not None
        return continuation(details) if right else self.refusal


def _caller(access: Access, metadata: Any) -> Caller | None:
    given = dict(metadata).get("authorization", "")
    return access.caller(given if isinstance(given, str) else given.decode(errors="replace"))


def _handler(api: Api, name: str) -> Any:
    method = METHODS[name]

    def by(context: grpc.ServicerContext) -> Callable[..., Any]:
        caller = _caller(api.access, context.invocation_metadata())
        if caller is None:  # removed since the call came in
            context.abort(grpc.StatusCode.UNAUTHENTICATED, NO_TOKEN)
        do: Callable[..., Any] = getattr(api.by(caller), name)
        return do

    def one(request: Any, context: grpc.ServicerContext) -> Any:
        with _Status(context, name):
            return by(context)(request)

    def many(request: Any, context: grpc.ServicerContext) -> Iterator[Any]:
        gone = threading.Event()
        context.add_callback(gone.set)  # a stream that has nothing to say would not notice otherwise
        with _Status(context, name):
            yield from by(context)(request, gone)

    if method.stream:
        return grpc.unary_stream_rpc_method_handler(many, method.read, to_bytes)
    return grpc.unary_unary_rpc_method_handler(one, method.read, to_bytes)


class _Status:
    """Errors as status codes."""

    def __init__(self, context: grpc.ServicerContext, name: str) -> None:
        self.context, self.name = context, name

    def __enter__(self) -> None:
        pass

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: object) -> None:
        if isinstance(error, ThemisError):
            self.context.abort(code_of(error), str(error))
        elif isinstance(error, OSError) and error.errno in (errno.ENOSPC, errno.EDQUOT):
            self.context.abort(grpc.StatusCode.UNAVAILABLE, f"{error.filename or 'a file'}: {error.strerror}.")
        elif isinstance(error, Exception) and self.context.is_active():
            log.error("%s failed", self.name, exc_info=error)
            self.context.abort(
                grpc.StatusCode.INTERNAL, f"a bug in Themis: {type(error).__name__}; see the arbiter's log."
            )


def code_of(error: ThemisError) -> grpc.StatusCode:
    """The status code of an error."""
    code = grpc.StatusCode
    match error:
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
