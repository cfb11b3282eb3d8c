"""Connections over TLS before they belong to a server: handshakes with a time limit, and how many may be under way.

A server meets a connection only after its handshake, so limits of its own would not hold for one that never ends it. Whoever holds
most handshakes open loses the oldest of them when there are too many, so one address cannot keep the others out.
"""

from __future__ import annotations

import asyncio
import contextlib
import ipaddress
import socket
import ssl
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass

from themis.trust.authority.contexts import HANDSHAKE_S

MOST_HANDSHAKES = 256
"""Handshakes under way, each of which asyncio gives a buffer of 256 KiB."""
LEAST_S = 1.0
"""Seconds that a handshake has in any case: hundreds of callers or machines may dial a service that has just started, and wait."""
HELLO = 0x16
"""First byte of a TLS connection."""
SHUTDOWN_S = 2.0
"""Seconds for the other side to agree to the end of a connection."""
BUSY_S = 0.2
"""Seconds until the next attempt to accept, when the process has no file left."""


@dataclass(frozen=True, slots=True)
class Begun:
    """A handshake under way: when it began, by the loop's clock, and the network that it comes from."""

    at: float
    network: str


class Entrance:
    """Accepts the connections of a listening socket, and gives each to a protocol once its handshake is over.

    Parameters
    ----------
    listener : closed with the entrance. ``context`` : may get a new certificate at any time.
    protocol : made for each connection.
    plain : answer to a caller that does not speak TLS; such a one is closed in any case.
    most : handshakes under way. ``least_s`` : seconds that one has before it is closed for another.
    handshake_s : seconds that one has at most, its first byte included.
    """

    def __init__(
        self,
        listener: socket.socket,
        context: ssl.SSLContext,
        protocol: Callable[[], asyncio.BaseProtocol],
        *,
        plain: bytes = b"",
        most: int = MOST_HANDSHAKES,
        least_s: float = LEAST_S,
        handshake_s: float = HANDSHAKE_S,
    ) -> None:
        self.listener, self.context, self.protocol, self.plain = listener, context, protocol, plain
        self.most, self.least_s, self.handshake_s = most, least_s, handshake_s
        self.handshakes: dict[asyncio.Task[None], Begun] = {}
        """Those under way, the oldest first."""
        self._accepting: asyncio.Task[None] | None = None

    def start(self) -> None:
        """Accept connections, in the running loop."""
        self.listener.setblocking(False)
        self._accepting = asyncio.create_task(self._accept())

    async def close(self) -> None:
        """Stop accepting, and end the handshakes under way; connections that were given to a protocol stay."""
        if self._accepting is not None:
            self._accepting.cancel()
            await asyncio.wait([self._accepting])
        self.listener.close()
        for task in list(self.handshakes):
            task.cancel()

    async def _accept(self) -> None:
        loop = asyncio.get_running_loop()
        while True:
            try:
                connection, address = await loop.sock_accept(self.listener)
            except OSError:
                await asyncio.sleep(BUSY_S)
                continue
            task = loop.create_task(self._enter(connection))
            self.handshakes[task] = Begun(loop.time(), network_of(str(address[0])))
            task.add_done_callback(lambda done: self.handshakes.pop(done, None))
            while len(self.handshakes) > self.most:
                await self._close_one()

    async def _close_one(self) -> None:
        """Wait until a handshake is over; close one if that takes too long."""
        loop, counts = asyncio.get_running_loop(), Counter(begun.network for begun in self.handshakes.values())
        most = max(counts.values())
        victim, begun = next((t, b) for t, b in self.handshakes.items() if counts[b.network] == most)
        patience = begun.at + self.least_s - loop.time()
        if patience > 0:
            await asyncio.wait(self.handshakes, timeout=patience, return_when=asyncio.FIRST_COMPLETED)
        else:
            victim.cancel()
            await asyncio.wait([victim])

    async def _enter(self, connection: socket.socket) -> None:
        """One handshake; who fails it is closed, without a word in the log: anybody can send anything."""
        loop, handed = asyncio.get_running_loop(), False
        try:
            connection.setblocking(False)
            async with asyncio.timeout(self.handshake_s):
                first = await _first_byte(connection)
                if first == HELLO:
                    handed = True
                    await loop.connect_accepted_socket(
                        self.protocol, connection, ssl=self.context, ssl_shutdown_timeout=SHUTDOWN_S
                    )
                elif first is not None and self.plain:
                    await loop.sock_sendall(connection, self.plain)
                    connection.shutdown(socket.SHUT_WR)
        except (OSError, TimeoutError, asyncio.CancelledError):
            pass
        finally:
            if not handed:
                connection.close()


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


def network_of(address: str) -> str:
    """The network that counts as one caller: an IPv4 address, or the first 64 bits of an IPv6 address, since one
    machine may use all addresses in it."""
    try:
        found = ipaddress.ip_address(address.partition("%")[0])
    except ValueError:
        return address
    if isinstance(found, ipaddress.IPv4Address):
        return str(found)
    if found.ipv4_mapped is not None:
        return str(found.ipv4_mapped)
    return str(ipaddress.ip_network((found, 64), strict=False))


def listeners(host: str, port: int, backlog: int) -> list[socket.socket]:
    """Sockets that listen on each address of a host.

    Raises
    ------
    OSError : the host is unknown, or an address cannot be listened on.
    """
    found = socket.getaddrinfo(host or None, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
    opened: list[socket.socket] = []
    try:
        for family, address in dict.fromkeys((family, address) for family, *_, address in found):
            opened.append(socket.create_server(address, family=family, backlog=backlog))
    except OSError:
        for one in opened:
            one.close()
        raise
    return opened
