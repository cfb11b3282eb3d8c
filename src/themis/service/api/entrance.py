"""HTTP connections over TLS before they are requests: handshakes with a time limit, and how many may be under way.

uvicorn sees a connection only after its handshake, so the limits of ``connections`` would not hold for one that never ends it.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
import socket
import ssl
from typing import Any

import uvicorn

from themis.authority.contexts import HANDSHAKE_S

MOST_HANDSHAKES = 128
"""Handshakes under way, each of which asyncio gives a buffer of 256 KiB; for one more, the oldest is closed."""
LEAST_S = 0.25
"""Seconds that a handshake has in any case, so that a burst of callers waits and none of them is closed."""
HELLO = 0x16
"""First byte of a TLS connection."""
SHUTDOWN_S = 2.0
"""Seconds for the other side to agree to the end of a connection."""
BUSY_S = 0.2
"""Seconds until the next attempt to accept, when the process has no file left."""
PLAIN = "this port speaks TLS: use https:// instead of http://."

log = logging.getLogger("themis.service")


class TlsServer(uvicorn.Server):
    """uvicorn on a socket of its own, with TLS. ``context`` may get a new certificate at any time."""

    def __init__(self, config: uvicorn.Config, listener: socket.socket, context: ssl.SSLContext) -> None:
        super().__init__(config)
        self.listener, self.context = listener, context
        self.handshakes: dict[asyncio.Task[None], float] = {}
        """Those under way with the time of their begin, the oldest first."""
        self._accepting: asyncio.Task[None] | None = None

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Accept connections."""
        self.listener.setblocking(False)
        self._accepting = asyncio.create_task(self._accept())
        await super().startup([])

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """Stop accepting, then as uvicorn does."""
        if self._accepting is not None:
            self._accepting.cancel()
            await asyncio.wait([self._accepting])
        self.listener.close()
        for task in list(self.handshakes):
            task.cancel()
        await super().shutdown([])

    async def _accept(self) -> None:
        loop = asyncio.get_running_loop()
        while True:
            try:
                connection, _ = await loop.sock_accept(self.listener)
            except OSError:
                await asyncio.sleep(BUSY_S)
                continue
            task = loop.create_task(self._enter(connection))
            self.handshakes[task] = loop.time()
            task.add_done_callback(lambda done: self.handshakes.pop(done, None))
            while len(self.handshakes) > MOST_HANDSHAKES:
                oldest, began = next(iter(self.handshakes.items()))
                await asyncio.wait([oldest], timeout=max(began + LEAST_S - loop.time(), 0))
                oldest.cancel()
                await asyncio.wait([oldest])

    async def _enter(self, connection: socket.socket) -> None:
        """One handshake; who fails it is closed, without a word in the log: anybody can send anything."""
        loop, handed = asyncio.get_running_loop(), False
        try:
            connection.setblocking(False)
            async with asyncio.timeout(HANDSHAKE_S):
                first = await _first_byte(connection)
                if first == HELLO:
                    handed = True
                    await loop.connect_accepted_socket(
                        self._protocol, connection, ssl=self.context, ssl_shutdown_timeout=SHUTDOWN_S
                    )
                elif first is not None:
                    await loop.sock_sendall(connection, _refusal())
                    connection.shutdown(socket.SHUT_WR)
        except (OSError, TimeoutError, asyncio.CancelledError):
            pass
        finally:
            if not handed:
                connection.close()

    def _protocol(self) -> asyncio.Protocol:
        kind: Any = self.config.http_protocol_class
        made: asyncio.Protocol = kind(config=self.config, server_state=self.server_state, app_state={})
        return made


async def _first_byte(connection: socket.socket) -> int | None:
    """The first byte, which stays to be read; None if the connection ends without one."""
    loop, ready = asyncio.get_running_loop(), asyncio.Event()
    loop.add_reader(connection, ready.set)
    try:
        await ready.wait()
    finally:
        loop.remove_reader(connection)
    with contextlib.suppress(BlockingIOError):
        data = connection.recv(1, socket.MSG_PEEK)
        return data[0] if data else None
    return None


def _refusal() -> bytes:
    """The answer to a request that is not encrypted."""
    body = json.dumps({"error": PLAIN}).encode() + b"\n"
    head = f"HTTP/1.1 400 Bad Request\r\nContent-Type: application/json\r\nContent-Length: {len(body)}\r\n"
    return head.encode() + b"Connection: close\r\n\r\n" + body
