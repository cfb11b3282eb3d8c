"""Messages between processes of one machine: lines of JSON, and bytes of files, over a Unix socket in a private folder.

``Channel`` is all that agent and arbiter know of it; another transport has the same three methods.
"""

from __future__ import annotations

import contextlib
import os
import select
import socket
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Protocol

from themis.machines.agent.messages import PIECE, Message, ProtocolError, decode, packed, parsed, raw_bytes

LONGEST = 8 << 20
"""Bytes; a longer line is not one of ours."""
UNREAD, UNREAD_S = 4 * LONGEST, 10.0
"""Bytes that wait for a machine to read, and seconds in which it reads some."""
WINDOW_S, BYTES_S, MESSAGES_S = 10.0, 256 << 20, 5000
"""A machine of a hundred gangs sends a few hundred messages a second; copies of checkpoints are answered piece by piece."""


class ChannelClosed(Exception):
    """The other side is gone."""


class HasFile(Protocol):
    """A socket."""

    def fileno(self) -> int:
        """Number of its file."""
        ...


def readable(things: Iterable[HasFile | int], timeout_s: float, writable: Iterable[HasFile] = ()) -> set[int]:
    """Numbers of the files from which something can be read, waiting for the first; select(2) ends at number 1023.

    ``writable`` : some of them that something waits for to be written to; one that can be is as good as readable.

    Raises
    ------
    ValueError : one of them is closed.
    """
    poll = select.poll()
    for thing in things:
        poll.register(thing, select.POLLIN)
    for thing in writable:
        poll.modify(thing, select.POLLIN | select.POLLOUT)
    return {number for number, _ in poll.poll(1000.0 * timeout_s)}


class Channel(Protocol):
    """A connection between one agent and the arbiter."""

    wrong: ProtocolError | None = None
    """The last messages that were received are followed by something else; ``receive`` raises it next."""

    def send(self, message: Message) -> None:
        """Hand over a message; raises ``ChannelClosed`` when the connection is known to be lost."""
        ...

    def receive(self, timeout_s: float) -> list[Message]:
        """Messages that are there, waiting up to ``timeout_s`` for the first.

        Raises
        ------
        ChannelClosed : the connection is over. ProtocolError : something else than messages came, or too much.
        """
        ...

    def close(self) -> None:
        """End the connection; may be called twice."""
        ...


class Rate:
    """Rate limit of one machine: ``BYTES_S``, ``MESSAGES_S`` on average over ``WINDOW_S``; ``clock`` : seconds."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self.clock = clock
        self.begun, self.bytes, self.messages = clock(), 0, 0

    def take(self, size: int, messages: int) -> None:
        """Count what came.

        Raises
        ------
        ProtocolError : it is too much.
        """
        if self.clock() >= self.begun + WINDOW_S:
            self.begun, self.bytes, self.messages = self.clock(), 0, 0
        self.bytes += size
        self.messages += messages
        for what, count, most in (("bytes", self.bytes, BYTES_S), ("messages", self.messages, MESSAGES_S)):
            if count > most * WINDOW_S:
                raise ProtocolError(f"more than {most * WINDOW_S:.0f} {what} came within {WINDOW_S:g} s.")


class SocketChannel(Channel):
    """Channel over a connected stream socket; ``rate`` : limit of incoming data, None for no limit."""

    def __init__(self, connection: socket.socket, rate: Rate | None = None) -> None:
        self.socket, self.rate = connection, rate
        # An agent that hangs must not hang the arbiter: a peer that reads nothing for this many seconds is lost.
        self.socket.settimeout(10.0)
        self.buffer = bytearray()
        self.head: tuple[object, int] | None = None
        """A line whose bytes have not all come, and their number."""

    def send(self, message: Message) -> None:
        """Hand over a message, or wait until the other side reads."""
        try:
            view = memoryview(packed(message))
            while view:
                view = view[self.socket.send(view) :]
        except OSError as error:
            raise ChannelClosed(str(error)) from error

    def receive(self, timeout_s: float) -> list[Message]:
        """Whole messages only; the rest waits for the next call."""
        if self.wrong is not None:
            raise self.wrong
        try:
            if not readable([self.socket], timeout_s):
                return []
            data = self.socket.recv(PIECE)
        except (OSError, ValueError) as error:
            raise ChannelClosed(str(error)) from error
        if not data:
            raise ChannelClosed("the other side closed the connection")
        if self.rate is not None:
            self.rate.take(len(data), 0)
        at, messages = len(self.buffer), list[Message]()
        self.buffer += data
        try:
            messages.extend(self._whole(at))
        except ProtocolError as error:
            self.wrong = error
            if not messages:
                raise
        return messages

    def _whole(self, at: int) -> Iterator[Message]:
        """Messages that are complete; no line ends before byte ``at``."""
        while True:
            if self.head is None:
                end = self.buffer.find(b"\n", at)
                if end < 0:
                    if len(self.buffer) > LONGEST:
                        raise ProtocolError(f"a message has more than {LONGEST} bytes.")
                    return
                line, at = bytes(self.buffer[:end]), 0
                del self.buffer[: end + 1]
                if self.rate is not None:
                    self.rate.take(0, 1)
                if not line:
                    continue
                found = parsed(line)
                self.head = found, raw_bytes(found)
            found, count = self.head
            if len(self.buffer) < count:
                return
            self.head, at = None, 0
            if isinstance(found, dict) and "data" in found:
                found["data"] = bytes(self.buffer[:count])
                del self.buffer[:count]
            yield decode(found)

    def close(self) -> None:
        """Close the socket."""
        with contextlib.suppress(OSError):
            self.socket.close()


class ServedChannel(SocketChannel):
    """The arbiter's end: incoming data is bounded, and a machine that reads nothing blocks nobody else.

    ``clock`` : seconds, never set back.
    """

    def __init__(self, connection: socket.socket, clock: Callable[[], float]) -> None:
        super().__init__(connection, Rate(clock))
        self.clock = clock
        self.socket.setblocking(False)
        self.unsent = b""
        self.moved_at = 0.0
        """Time of the machine's last read."""

    def send(self, message: Message) -> None:
        """One line, now or as soon as the machine reads."""
        if not self.unsent:
            self.moved_at = self.clock()
        self.unsent += packed(message)
        self.flush()

    def flush(self) -> None:
        """Send what is left, as much as the machine takes; raises ``ChannelClosed`` when it takes nothing for long."""
        try:
            while self.unsent and (sent := self.socket.send(self.unsent)):
                self.unsent, self.moved_at = self.unsent[sent:], self.clock()
        except BlockingIOError:
            if len(self.unsent) > UNREAD or self.clock() >= self.moved_at + UNREAD_S:
                raise ChannelClosed("the machine reads nothing") from None
        except OSError as error:
            raise ChannelClosed(str(error)) from error


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
    """A channel to the process that listens there, or None."""
    client = socket.socket(socket.AF_UNIX)
    try:
        with short(path) as name:
            client.connect(name)
    except OSError:
        client.close()
        return None
    return SocketChannel(client)
