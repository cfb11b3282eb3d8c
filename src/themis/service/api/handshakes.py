"""uvicorn behind TLS: it gets connections whose handshakes are over, from ``trust.authority.entrance``."""

from __future__ import annotations

import asyncio
import json
import socket
import ssl
from typing import Any

import uvicorn

from themis.trust.authority.contexts import HANDSHAKE_S
from themis.trust.authority.entrance import Entrance

PLAIN = "this port speaks TLS: use https:// instead of http://."


class TlsServer(uvicorn.Server):
    """uvicorn on a separate socket, with TLS. ``context`` may get a new certificate at any time."""

    def __init__(self, config: uvicorn.Config, listener: socket.socket, context: ssl.SSLContext) -> None:
        super().__init__(config)
        self.entrance = Entrance(listener, context, self._protocol, plain=_refusal(), handshake_s=HANDSHAKE_S)

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Accept connections."""
        self.entrance.start()
        await super().startup([])

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """Stop accepting, then as uvicorn does."""
        await self.entrance.close()
        await super().shutdown([])

    def _protocol(self) -> asyncio.Protocol:
        kind: Any = self.config.http_protocol_class
        made: asyncio.Protocol = kind(config=self.config, server_state=self.server_state, app_state={})
        return made


def _refusal() -> bytes:
    """The answer to a request that is not encrypted."""
    body = json.dumps({"error": PLAIN}).encode() + b"\n"
    head = f"HTTP/1.1 400 Bad Request\r\nContent-Type: application/json\r\nContent-Length: {len(body)}\r\n"
    return head.encode() + b"Connection: close\r\n\r\n" + body
