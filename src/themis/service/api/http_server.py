"""The HTTP server: uvicorn in a separate thread around ``http_app``."""

from __future__ import annotations

import logging
import socket
import ssl
import threading
import time
from collections.abc import Callable
from pathlib import Path

import uvicorn

from themis.client.home import joined
from themis.errors import InputError
from themis.service.api.connections import MOST_BYTES, Connection
from themis.service.api.handshakes import EntranceServer
from themis.service.api.http_app import HttpApp, Site
from themis.service.api.listening import try_address
from themis.service.api.methods import Api

QUEUED = 128
"""Connections that the system keeps until they are accepted; one beyond waits for a second."""
END_S = 2
"""Seconds for calls under way when the server ends."""
log = logging.getLogger("themis.service")


class HttpServer:
    """A server that listens; ``close`` ends it."""

    def __init__(
        self,
        app: HttpApp,
        listener: socket.socket,
        tls: Callable[[], ssl.SSLContext] | None = None,
        door: Path | None = None,
    ) -> None:
        self.app = app
        self.port = int(listener.getsockname()[1])

        class OfServer(Connection):
            waiting: dict[Connection, None] = {}  # noqa: RUF012  # of this server's connections

        config = uvicorn.Config(
            app,
            http=OfServer,
            ws="none",
            loop="asyncio",
            interface="asgi3",
            lifespan="off",
            log_config=None,
            log_level="critical",  # errors are logged by ``http_app``, and callers get an answer
            access_log=False,
            server_header=False,
            proxy_headers=False,
            backlog=QUEUED,
            h11_max_incomplete_event_size=MOST_BYTES,
            timeout_graceful_shutdown=END_S,
        )
        log.addFilter(app.api.meter)
        apart = tls is not None or door is not None
        self._server = EntranceServer(config, listener, tls, door) if apart else uvicorn.Server(config)
        self._thread = threading.Thread(
            target=self._server.run, args=([listener],), name="themis-http-server", daemon=True
        )
        self._thread.start()
        while not self._server.started and self._thread.is_alive():
            time.sleep(0.005)

    def close(self) -> None:
        """Stop listening, and end calls and streams that are under way."""
        self._server.should_exit = True
        self._thread.join()
        log.removeFilter(self.app.api.meter)
        self.app.threads.shutdown(wait=False, cancel_futures=True)


def serve_http(
    api: Api,
    host: str,
    port: int,
    tls: Callable[[], ssl.SSLContext] | None = None,
    site: Site | None = None,
    door: Path | None = None,
) -> HttpServer:
    """Listen, in separate threads. ``tls`` : gives each handshake its context; None for no TLS. ``site`` : pages for browsers.
    ``door`` : where connections of machines are handed over.

    Raises
    ------
    InputError : the address is taken, or none of this machine's.
    """
    try_address(host, port, "port")
    ipv6 = ":" in host
    try:
        listener = socket.create_server(
            (host, port),
            family=socket.AF_INET6 if ipv6 else socket.AF_INET,
            backlog=QUEUED,
            dualstack_ipv6=ipv6 and host == "::" and socket.has_dualstack_ipv6(),
        )
    except OSError as error:
        raise InputError(f"cannot listen on {joined(host, port)} {error.strerror}. Try again.") from None
    # Headers and body are two writes: without this, each answer would wait 40 ms for the caller's acknowledgement.
    listener.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return HttpServer(HttpApp(api, host, api.arbiter.config.max_message_bytes, site), listener, tls, door)
