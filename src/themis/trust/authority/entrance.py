"""Connections over TLS before they belong to a server: handshakes with a time limit, and how many may be under way.

A connection of TLS that asks for a server of its own (SNI) may be given to another process, before its handshake.

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
from collections.abc import Awaitable, Callable
from dataclasses import dataclass

from themis.trust.authority.contexts import HANDSHAKE_S

MOST_HANDSHAKES = 256
"""Handshakes under way, each of which asyncio gives a buffer of 256 KiB."""
LEAST_S = 1.0
"""Seconds that a handshake has in any case: hundreds of callers or machines may dial a service that has just started, and wait."""
HELLO = b"\x16"
"""First byte of a TLS connection."""
LONGEST = 1 << 14
"""Bytes of a record, without its head."""
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
    listener : closed with the entrance; a socket of Unix datagrams receives connections that another process accepted.
    context : gives each handshake its context, so that a certificate may be renewed at any time; None for a server without TLS.
    protocol : made for each connection.
    aside : whether a connection that asks for this server name was given to another process.
    plain : answer to a caller that does not speak TLS; such a one is closed in any case.
    most : handshakes under way. ``least_s`` : seconds that one has before it is closed for another.
    handshake_s : seconds that one has at most, its first byte included.
    """

    def __init__(
        self,
        listener: socket.socket,
        context: Callable[[], ssl.SSLContext] | None,
        protocol: Callable[[], asyncio.BaseProtocol],
        *,
        aside: Callable[[socket.socket, str], Awaitable[bool]] | None = None,
        plain: bytes = b"",
        most: int = MOST_HANDSHAKES,
        least_s: float = LEAST_S,
        handshake_s: float = HANDSHAKE_S,
    ) -> None:
        self.listener, self.context, self.protocol, self.plain = listener, context, protocol, plain
        self.aside = aside
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
                connection = await _next(self.listener)
            except OSError:
                await asyncio.sleep(BUSY_S)
                continue
            task = loop.create_task(self._enter(connection))
            self.handshakes[task] = Begun(loop.time(), network_of(_address(connection)))
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
                first = (await _peek(connection, 1))[:1]
                if first == HELLO and self.aside and await self.aside(connection, await _asked(connection)):
                    pass  # the other process has it
                elif first and self.context is None:
                    handed = True
                    await loop.connect_accepted_socket(self.protocol, connection)
                elif first == HELLO and self.context:
                    handed = True
                    await loop.connect_accepted_socket(
                        self.protocol, connection, ssl=self.context(), ssl_shutdown_timeout=SHUTDOWN_S
                    )
                elif first and self.plain:
                    await loop.sock_sendall(connection, self.plain)
                    connection.shutdown(socket.SHUT_WR)
        except (OSError, TimeoutError, asyncio.CancelledError):
            pass
        finally:
            if not handed:
                connection.close()


async def _next(listener: socket.socket) -> socket.socket:
    """The next connection of a socket that listens, or on which another process hands them over."""
    loop = asyncio.get_running_loop()
    if listener.family != socket.AF_UNIX:
        return (await loop.sock_accept(listener))[0]
    while True:
        await _readable(listener)
        with contextlib.suppress(BlockingIOError):
            for number in socket.recv_fds(listener, 1, 1)[1]:
                return socket.socket(fileno=number)


def _address(connection: socket.socket) -> str:
    with contextlib.suppress(OSError):
        return str(connection.getpeername()[0])
    return ""


async def _readable(one: socket.socket) -> None:
    loop, ready = asyncio.get_running_loop(), asyncio.Event()
    loop.add_reader(one, ready.set)
    try:
        await ready.wait()
    finally:
        loop.remove_reader(one)


async def _asked(connection: socket.socket) -> str:
    """The server name in a handshake's first message, which stays to be read; waits until all of it is there."""
    head = await _peek(connection, 5)
    return server_name(await _peek(connection, 5 + min(int.from_bytes(head[3:5]), LONGEST)))


async def _peek(connection: socket.socket, size: int) -> bytes:
    """The first bytes, which stay to be read; fewer only at the connection's end."""
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVLOWAT, size)
    await _readable(connection)
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVLOWAT, 1)
    with contextlib.suppress(BlockingIOError):
        return connection.recv(size, socket.MSG_PEEK)
    return b""


def server_name(data: bytes) -> str:
    """The server name (SNI) in the first record of a TLS connection, empty for none.

    RFC 8446, 4.1.2, and RFC 6066, 3. A first message in several records counts as one without a name.
    """
    end = 5 + int.from_bytes(data[3:5])
    if not 5 < end <= len(data):
        return ""
    at = 5 + 4 + 2 + 32  # record, head of the message, version, random
    try:
        at += 1 + data[at]  # session
        at += 2 + int.from_bytes(data[at : at + 2])  # ciphers
        at += 1 + data[at] + 2  # compressions, length of the extensions
        while at + 4 <= end:
            kind, size = int.from_bytes(data[at : at + 2]), int.from_bytes(data[at + 2 : at + 4])
            if kind == 0:  # a list with one name: lengths of the list, kind and length of the name
                return data[at + 9 : at + 4 + size].decode("ascii", "replace")
            at += 4 + size
    except IndexError:
        pass
    return ""


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
