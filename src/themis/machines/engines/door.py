"""Connections of machines, which arrive on the API's port, on their way to the gateway, another process."""

from __future__ import annotations

import asyncio
import os
import socket
from pathlib import Path

from themis.machines.agent.channel import short
from themis.machines.agent.identity import SERVER_NAME

BUSY_S = 0.02
"""Seconds until the next attempt while the gateway has many to take."""


def open_door(path: Path) -> socket.socket:
    """A socket on which connections are received; only this user (and root) can hand them over."""
    path.unlink(missing_ok=True)
    door = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
    mask = os.umask(0o177)
    try:
        with short(path) as name:
            door.bind(name)
    finally:
        os.umask(mask)
    return door


class Door:
    """The way to the gateway that receives at ``path``."""

    def __init__(self, path: Path) -> None:
        self.path = path

    async def takes(self, connection: socket.socket, asked: str) -> bool:
        """Hand over a connection that asks for the machines' server; False for any other.

        Raises
        ------
        OSError : no gateway is there.
        """
        if asked != SERVER_NAME:
            return False
        with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as way:
            way.setblocking(False)
            with short(self.path) as name:
                way.connect(name)
            while True:
                try:
                    socket.send_fds(way, [b"."], [connection.fileno()])
                    return True
                except BlockingIOError:
                    await asyncio.sleep(BUSY_S)
