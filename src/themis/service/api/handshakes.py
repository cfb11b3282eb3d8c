"""uvicorn behind an entrance: it gets connections whose handshakes are over, and none of machines."""

from __future__ import annotations

import asyncio
import json
import socket
import ssl
from collections.abc import Callable
from pathlib import Path
from typing import Any

import uvicorn

from themis.machines.engines.door import Door
from themis.trust.authority.contexts import HANDSHAKE_S
from themis.trust.authority.entrance import Entrance

PLAIN = "this port speaks TLS: use https:// instead of http://."


class EntranceServer(uvicorn.Server):
    """uvicorn on a separate socket. ``context`` : asked at each handshake. ``door`` : where machines are served."""

    def __init__(
        self,
        config: uvicorn.Config,
        listener: socket.socket,
        context: Callable[[], ssl.SSLContext] | None,
        door: Path | None,
    ) -> None:
        super().__init__(config)
        aside = Door(door).takes if door else None
        self.entrance = Entrance(
            listener, context, self._protocol, aside=aside, plain=_refusal(), handshake_s=HANDSHAKE_S
        )

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
