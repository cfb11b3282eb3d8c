"""How messages travel between processes of one machine: lines of JSON over a Unix socket in a private folder.

``Channel`` is all that agent and arbiter know of it; another transport (gRPC) has the same three methods.
"""

from __future__ import annotations

import contextlib
import json
import os
import select
import socket
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Protocol

from themis.machines.agent.messages import Message, ProtocolError, decode, encode

LONGEST = 8 << 20
"""Bytes; a longer line is not one of ours."""


class ChannelClosed(Exception):
    """The other side is gone."""


class HasFile(Protocol):
    """A socket."""

    def fileno(self) -> int:
        """Number of its file."""
        ...


def readable(things: Iterable[HasFile | int], timeout_s: float) -> set[int]:
    """Numbers of the files from which something can be read, waiting for the first; select(2) ends at number 1023.

    Raises
    ------
    ValueError : one of them is closed.
    """
    poll = select.poll()
    for thing in things:
        poll.register(thing, select.POLLIN)
    return {number for number, _ in poll.poll(1000.0 * timeout_s)}


class Channel(Protocol):
    """A connection between one agent and the arbiter."""

    def send(self, message: Message) -> None:
        """Hand over a message; raises ``ChannelClosed`` when the connection is known to be lost."""
        ...

    def receive(self, timeout_s: float) -> list[Message]:
        """Messages that are there, waiting up to ``timeout_s`` for the first; raises ``ChannelClosed``."""
        ...

    def close(self) -> None:
        """End the connection; may be called twice."""
        ...


class SocketChannel(Channel):
    """Over a connected stream socket."""

    def __init__(self, connection: socket.socket) -> None:
        self.socket = connection
        # An agent that hangs must not hang the arbiter: a peer that reads nothing for so long is lost.
        self.socket.settimeout(10.0)
        self.buffer = b""

    def send(self, message: Message) -> None:
        """One line."""
        try:
            self.socket.sendall(json.dumps(encode(message)).encode() + b"\n")
        except OSError as error:
            raise ChannelClosed(str(error)) from error

    def receive(self, timeout_s: float) -> list[Message]:
        """Whole lines only; the rest waits for the next call."""
        try:
            if not readable([self.socket], timeout_s):
                return []
            data = self.socket.recv(1 << 16)
        except (OSError, ValueError) as error:
            raise ChannelClosed(str(error)) from error
        if not data or len(self.buffer) > LONGEST:
            raise ChannelClosed("the other side closed the connection")
        *lines, self.buffer = (self.buffer + data).split(b"\n")
        try:
            return [decode(json.loads(line)) for line in lines if line]
        except ValueError as error:
            raise ProtocolError(f"a message is not JSON: {error}.") from error

    def close(self) -> None:
        """Close the socket."""
        with contextlib.suppress(OSError):
            self.socket.close()


@contextmanager
def short(path: Path) -> Iterator[str]:
    """A name for the socket that fits the 107 bytes which Linux allows, however deep the folder is."""
    folder = os.open(path.parent, os.O_RDONLY | os.O_DIRECTORY)
    try:
        yield f"/proc/self/fd/{folder}/{path.name}"
    finally:
        os.close(folder)


def listen(path: Path) -> socket.socket:
    """A listening socket that only this user (and root) can connect to; replaces one that a dead process left."""
    path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    path.unlink(missing_ok=True)
    server = socket.socket(socket.AF_UNIX)
    mask = os.umask(0o177)
    try:
        with short(path) as name:
            server.bind(name)
    finally:
        os.umask(mask)
    server.listen()
    return server


def connect(path: Path) -> SocketChannel | None:
    """A channel to whoever listens there, or None."""
    client = socket.socket(socket.AF_UNIX)
    try:
        with short(path) as name:
            client.connect(name)
    except OSError:
        client.close()
        return None
    return SocketChannel(client)
