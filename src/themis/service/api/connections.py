"""Connections to the status pages whose request headers are not complete yet: one thread reads them all.

A request gets a thread of its own when its headers are complete, so idle connections, and those that send a byte a second, hold
neither a thread nor a call of the limit. Each has ``HEADERS_S`` for its headers, and of more than ``MOST_WAITING`` connections
the oldest is closed.
"""

from __future__ import annotations

import selectors
import socket
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from typing import Any

HEADERS_S = 5.0
"""Seconds from the connection to the end of its headers."""
MOST_WAITING = 256
MOST_BYTES = 1 << 18
"""Of a request line and headers; what is longer is refused by the reader of the headers."""
LOOK_S = 0.25
"""Seconds between two checks for connections that are too late."""

Admit = Callable[[socket.socket, Any, bytes], object]


class HeaderReader:
    """Reads headers; calls ``admit`` with a connection, its address and all bytes read once they hold whole headers."""

    def __init__(self, admit: Admit) -> None:
        self.admit = admit
        self._waiting: dict[socket.socket, tuple[Any, float, bytearray]] = {}
        """Address, deadline and bytes so far, the oldest connection first."""
        self._selector = selectors.DefaultSelector()
        self._new: list[tuple[socket.socket, Any]] = []
        self._lock = threading.Lock()
        self._closing = False
        self._thread = threading.Thread(target=self._run, name="themis-http-headers", daemon=True)
        self._woken, self._wake = socket.socketpair()
        self._wake.setblocking(False)
        self._selector.register(self._woken, selectors.EVENT_READ)
        self._thread.start()

    def add(self, connection: socket.socket, address: Any) -> None:
        """Add a connection; from any thread."""
        connection.setblocking(False)
        with self._lock:
            self._new.append((connection, address))
        with suppress(OSError):
            self._wake.send(b".")

    def close(self) -> None:
        """Close all connections that wait."""
        self._closing = True
        with suppress(OSError):
            self._wake.send(b".")
        self._thread.join()

    def _run(self) -> None:
        while not self._closing:
            for key, _ in self._selector.select(LOOK_S):
                if key.fileobj is self._woken:
                    self._woken.recv(4096)
                elif isinstance(key.fileobj, socket.socket) and key.fileobj in self._waiting:
                    self._read(key.fileobj)
            self._add_new()
            now = time.monotonic()
            for connection in [c for c, (_, until, _) in self._waiting.items() if until <= now]:
                self._close_one(connection)
        for connection in list(self._waiting):
            self._close_one(connection)
        self._selector.close()
        self._woken.close()
        self._wake.close()

    def _add_new(self) -> None:
        with self._lock:
            new, self._new = self._new, []
        for connection, address in new:
            if len(self._waiting) >= MOST_WAITING:
                self._close_one(next(iter(self._waiting)))
            self._waiting[connection] = address, time.monotonic() + HEADERS_S, bytearray()
            self._selector.register(connection, selectors.EVENT_READ)

    def _read(self, connection: socket.socket) -> None:
        address, _, data = self._waiting[connection]
        try:
            more = connection.recv(1 << 16)
        except BlockingIOError:
            return
        except OSError:
            more = b""
        data += more
        if not more and not data:
            self._close_one(connection)
        elif not more or _whole(data, len(more)) or len(data) > MOST_BYTES:
            del self._waiting[connection]
            self._selector.unregister(connection)
            self.admit(connection, address, bytes(data))

    def _close_one(self, connection: socket.socket) -> None:
        self._waiting.pop(connection)
        self._selector.unregister(connection)
        connection.close()


def _whole(data: bytearray, more: int) -> bool:
    """Whether the headers' last line is in; looks at the last ``more`` bytes and those that an end may begin with."""
    start = max(len(data) - more - 3, 0)
    return data.find(b"\r\n\r\n", start) >= 0 or data.find(b"\n\n", start) >= 0
